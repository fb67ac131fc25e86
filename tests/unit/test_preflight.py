"""The engine and the checkpoints are read from their files; nothing is started."""

import json
from pathlib import Path

import pytest

from orchestrator.compose import compose
from orchestrator.errors import ConfigError
from tasks.engine_build import installed_engine
from tasks.preflight import checkpoint_config, refuse_plan
from tests.unit.builders import plan_of


def environment(folder: Path, version: str, *, triton_backends: tuple[str, ...] = ()) -> str:
    """An environment with a `vllm` command; returns the command."""
    site = folder / "lib" / "python3.11" / "site-packages"
    for name, text in {"vllm": version, "arctic_inference": "0.1.1"}.items():
        info = site / f"{name}-{text}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {text}\n")
    for backend in triton_backends:
        (site / "triton" / "backends" / backend).mkdir(parents=True)
        (site / "triton" / "backends" / backend / "driver.py").touch()
    command = folder / "bin" / "vllm"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\nexit 9\n")
    command.chmod(0o755)
    return str(command)


def test_engine_of_an_environment_is_read_without_running_it(tmp_path: Path) -> None:
    found = installed_engine([environment(tmp_path, "0.41.0+cpu", triton_backends=("cpu", "amd"))])

    assert found is not None
    assert (found.version, set(found.triton_backends)) == ("0.41.0+cpu", {"cpu", "amd"})
    assert found.packages == {"arctic-inference": "0.1.1"}


@pytest.mark.parametrize("command", [["docker", "run", "vllm"], ["/no/such/bin/vllm"], ["/usr/bin/env", "vllm"]])
def test_engine_behind_another_command_is_not_known_before_it_runs(command: list[str]) -> None:
    assert installed_engine(command) is None


def test_plan_refuses_what_the_engine_named_by_server_command_refuses(tmp_path: Path) -> None:
    command = environment(tmp_path, "0.32.0+cpu", triton_backends=("nvidia",))
    config = compose(["speculation=dflash", "workload.temperature=0.7", f"server.command=[{command}]"])

    with pytest.raises(ConfigError, match=r"temperature=0\.7 .* on vLLM 0\.32\.0\+cpu"):
        refuse_plan(config, plan_of(config))


def test_plan_for_a_cluster_leaves_the_engine_to_its_nodes(tmp_path: Path) -> None:
    command = environment(tmp_path, "0.32.0+cpu")
    cluster = ["cluster=address", "cluster.address=10.0.0.1:6379"]
    config = compose(["speculation=dflash", "workload.temperature=0.7", f"server.command=[{command}]", *cluster])

    refuse_plan(config, plan_of(config))


def test_checkpoint_in_a_folder_is_read_and_one_that_is_nowhere_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"block_size": 8}))

    assert checkpoint_config(str(tmp_path), None) == {"block_size": 8}
    assert checkpoint_config(str(tmp_path / "missing"), None) is None
    assert checkpoint_config("no-such-owner/no-such-model", None) is None


def test_plan_holds_k_against_the_drafters_own_block(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"block_size": 8, "architectures": ["DFlashDraftModel"]}))
    drafter = [f"model.drafters.dflash.model={tmp_path}", "model.drafters.dflash.block_size=null"]
    config = compose(["speculation=dflash", "speculation.num_speculative_tokens=[7,8]", *drafter])

    with pytest.raises(ConfigError, match=r"block_size - 1 = 7 tokens with .*, but got 8"):
        refuse_plan(config, plan_of(config))
    allowed = compose([*drafter, "speculation.num_speculative_tokens=[8]", "speculation.allow_beyond_block=true"])
    refuse_plan(allowed, plan_of(allowed))
