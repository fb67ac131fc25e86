"""Deployment files, each read by the tool that it is for."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from orchestrator.config import Hardware
from orchestrator.deploy import serve_command
from orchestrator.deployment import as_config, deployment_files
from orchestrator.errors import ConfigError
from orchestrator.export import export_files
from orchestrator.measured_server import MeasuredServer, measured_servers
from orchestrator.sweep_dir import open_sweep
from tests.unit.builders import make_config, make_plan, plan_of, write_all

HOSTILE = "50%\"q' $HOME \\ end"
HARDWARE = Hardware(name="r8i_16xlarge", physical_cores=32)


def _server(env: dict[str, str] | None = None, **changes: object) -> MeasuredServer:
    arm = make_plan((7,)).arms[1]
    spec = arm.server.model_copy(update={"env": env or {}, "omp_threads_bind": "0-31", **changes})
    [server] = measured_servers(arm.model_copy(update={"server": spec}))
    return replace(server, engine_version="0.32.0+cpu")


def _written(folder: Path, server: MeasuredServer) -> Path:
    for name, text in deployment_files(server, HARDWARE, "someone").items():
        (folder / name).write_text(text)
    return folder


def _run(tool: str, arguments: Sequence[str], folder: Path) -> str:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    done = subprocess.run([tool, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.engine
def test_vllm_reads_its_config_file_as_the_measured_flags(tmp_path: Path) -> None:
    cli_args = pytest.importorskip("vllm.entrypoints.launchers.cli_args", reason="vLLM is not installed here")
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    server = _server()
    _written(tmp_path, server)
    parser = cli_args.make_arg_parser(FlexibleArgumentParser())
    model, *flags = serve_command(server.spec)
    from_flags = parser.parse_args(["--model", model, *flags, "--port", "8000"])
    assert parser.parse_args(parser.load_config_file(str(tmp_path / "vllm.yaml"))) == from_flags


def test_compose_reads_its_file_with_every_value_as_it_is(tmp_path: Path) -> None:
    printed = _run("docker-compose", ["-f", "compose.yaml", "config"], _written(tmp_path, _server({"ODD": HOSTILE})))
    service = yaml.safe_load(printed)["services"]["vllm"]
    assert service["environment"]["ODD"].replace("$$", "$") == HOSTILE
    assert service["command"][:1] == ["org/target"]


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    assert _run("systemd-analyze", ["verify", "./vllm.service"], _written(tmp_path, _server({"ODD": HOSTILE}))) == ""


def test_systemd_is_given_a_user_who_sees_models_that_lie_in_folders(tmp_path: Path) -> None:
    """The user that DynamicUser makes has a /tmp of its own, and no way into a home."""
    (tmp_path / "model").mkdir()
    server = replace(_server(target=str(tmp_path / "model")), cpus="0-3,8-11")
    folder = _written(tmp_path, server)
    assert _run("systemd-analyze", ["verify", "./vllm.service"], folder) == ""
    settings = [line for line in (folder / "vllm.service").read_text().splitlines() if not line.startswith("#")]
    assert {"User=someone", "CPUAffinity=0-3,8-11"} <= set(settings)
    assert "DynamicUser=yes" not in settings
    assert "DynamicUser=yes" in deployment_files(_server(), HARDWARE, "someone")["vllm.service"].splitlines()


def test_kubernetes_accepts_deployment_and_service(tmp_path: Path) -> None:
    text = (_written(tmp_path, _server({"ODD": HOSTILE})) / "kubernetes.yaml").read_text()
    deployment, service = yaml.safe_load_all(text)
    for document in (deployment, service):
        kubernetes_validate.validate(document, "1.31", strict=True)
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][:-2] == serve_command(_server().spec)
    assert {"name": "ODD", "value": HOSTILE} in container["env"]
    assert container["resources"] == {"requests": {"cpu": "32"}}


def test_no_file_holds_a_key() -> None:
    for text in deployment_files(_server(), HARDWARE, "someone").values():
        assert "VLLM_API_KEY=s" not in text
        assert "--api-key" not in text


def test_flags_become_keys_of_the_config_file() -> None:
    flags = ["--dtype", "bfloat16", "--enforce-eager", "--no-enable-prefix-caching", "--port=1", "--allowed", "a", "b"]
    assert as_config(flags) == {
        "dtype": "bfloat16",
        "enforce-eager": True,
        "enable-prefix-caching": False,
        "port": "1",
        "allowed": ["a", "b"],
    }


def test_a_named_arm_is_exported_from_a_sweep_and_an_unknown_one_refused(tmp_path: Path) -> None:
    config = make_config((1, 7), results_dir=tmp_path)
    plan = plan_of(config)
    with open_sweep(config, plan) as (folder, _):
        write_all(folder.open_ledger(), plan)
    exported = export_files(folder, "dflash-k7", None)
    paths = exported.paths
    assert [path.name for path in paths] == ["vllm.yaml", "compose.yaml", "vllm.service", "kubernetes.yaml"]
    assert all("num_speculative_tokens" in path.read_text() for path in paths)
    assert exported.arm.name == "dflash-k7"
    assert re.fullmatch(
        r"asked for by name, not recommended \(that is baseline\); over the traffic mix \(verdict: undecided\) "
        r"1\.00 \[0\.\d+, 1\.\d+\] times the baseline",
        exported.why,
    )
    with pytest.raises(ConfigError, match="did you mean dflash-k7"):
        export_files(folder, "dflash-k8", None)
