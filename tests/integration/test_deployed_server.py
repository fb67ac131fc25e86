"""A server put into service is the server that was measured: same arguments, same environment. Real visits of the
stand-in, whose record alone makes the commands and files; the exported shell lines are run by a shell."""

import json
import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from orchestrator.config import Hardware
from orchestrator.deploy import LIB_IN_IMAGE, recommend_commands
from orchestrator.deployment import ENGINE_HOME, as_config, deployment_files
from orchestrator.measured_server import MeasuredServer, measured_servers
from orchestrator.records import Arm, FinishedVisit, MeasuredBlock, ServerSpec
from tasks.visit import run_visit
from tests.integration.visiting import PROMPTS, visit_task
from tests.standin import SERVER
from tests.unit.builders import make_plan

TCMALLOC = "libtcmalloc_minimal.so.4"
COMMITS = {"org/target": "a" * 40, "org/drafter": "b" * 40}
MARKER = uuid.uuid4().hex
OURS = {"VLLM_API_KEY", "PYTHONUNBUFFERED", "VLLM_RPC_BASE_PATH"}
"""Of the measuring process, for itself."""
TRANSPORT = {"--host": 2, "--port": 2, "--disable-uvicorn-access-log": 1}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both models, as the hub's own library finds them without a network."""
    for model, commit in COMMITS.items():
        folder = tmp_path / "hub" / f"models--{model.replace('/', '--')}" / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.fixture
def arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arm:
    """dflash-k7 with every kind of setting; its engine has an OpenMP, and its node an allocator."""
    monkeypatch.setattr("tasks.visit.take_normal_priority", lambda: None)
    monkeypatch.setattr("tasks.server_command.find_library", lambda name: TCMALLOC)
    monkeypatch.setenv("OMP_PROC_BIND", "close")  # of the user's shell, in no exported file
    (tmp_path / "env/lib").mkdir(parents=True)
    (tmp_path / "env/lib/libiomp5.so").touch()
    _executable(tmp_path / "env/bin/vllm", f'exec {shlex.join([sys.executable, str(SERVER)])} "$@"')
    found = make_plan([7]).arms[1]
    settings: dict[str, object] = {
        "command": (str(tmp_path / "env/bin/vllm"),),
        "preload_tcmalloc": True,
        "reserved_cores": len(os.sched_getaffinity(0)) - 1,
        "extra_args": ("--block-size", "32"),
        "env": {"ODD": "a 'b' $c", "MARKER": MARKER},
    }
    return found.model_copy(update={"server": found.server.model_copy(update=settings)})


Measured = tuple[list[str], dict[str, str], MeasuredServer]


@pytest.fixture
def measured(arm: Arm, hub_cache: Path) -> Measured:
    """The engine's arguments and environment while it was measured, and what its record says of it."""
    task = visit_task(make_plan([7]), arm.server, hardware=_hardware(arm.server), model_revisions=COMMITS)
    events = run_visit(task, PROMPTS)
    first = next(events)
    assert isinstance(first, MeasuredBlock), first
    engine = _engine()
    argv, env = engine.cmdline(), engine.environ()
    *_, finished = events
    assert isinstance(finished, FinishedVisit)
    assert finished.record.error is None
    [server] = measured_servers(arm, (), [finished.record])
    return argv[argv.index("serve") + 1 :], {key: env[key] for key in env if os.environ.get(key) != env[key]}, server


def _engine() -> psutil.Process:
    """The stand-in that runs for this test."""
    mine = f"MARKER={MARKER}".encode()
    return next(
        process
        for process in psutil.process_iter(["cmdline"])
        if "serve" in (process.info["cmdline"] or ()) and mine in Path(f"/proc/{process.pid}/environ").read_bytes()
    )


def test_exported_servers_have_the_arguments_and_the_environment_that_were_measured(
    tmp_path: Path, measured: Measured
) -> None:
    argv, env, server = measured
    wanted_args, wanted_env = _by_hub_names(argv), {key: env[key] for key in env.keys() - OURS - {"HF_HUB_OFFLINE"}}
    assert wanted_env["LD_PRELOAD"] == f"{tmp_path}/env/lib/libiomp5.so:{TCMALLOC}"
    assert set(wanted_env) >= {"VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", "VLLM_NO_USAGE_STATS", "ODD"}
    assert server.environment("").keys() == wanted_env.keys()
    commands = recommend_commands([server], "")
    files = deployment_files(server, _hardware(server.spec), "someone")
    header = next(line[2:] for line in files["vllm.yaml"].splitlines() if " vllm serve " in line)
    compose = yaml.safe_load(files["compose.yaml"])["services"]["vllm"]
    pod = next(yaml.safe_load_all(files["kubernetes.yaml"]))["spec"]["template"]["spec"]["containers"][0]
    unit_args, unit_env = _of_unit(files["vllm.service"])
    by_shell, by_header = (_run_by_shell(tmp_path, line) for line in (commands.vllm_serve, header))
    by_docker = _run_by_shell(tmp_path, commands.docker_run)

    lib = f"{tmp_path}/deployed/bin/../lib"
    found: dict[str, tuple[list[str], Mapping[str, str], str]] = {
        "shell": (by_shell[0], by_shell[1], lib),
        "docker": (_after_image(by_docker[0]), _flags(by_docker[0], "-e"), LIB_IN_IMAGE),
        "compose": (_unescaped(compose["command"]), compose["environment"], LIB_IN_IMAGE),
        "kubernetes": (pod["args"], {each["name"]: each.get("value", "") for each in pod["env"]}, LIB_IN_IMAGE),
        "systemd": (unit_args, unit_env, f"{ENGINE_HOME}/lib"),
    }
    for where, (args, environment, at) in found.items():
        assert _without_transport(args) == wanted_args, where
        expected = wanted_env | {"LD_PRELOAD": f"{at}/libiomp5.so:{TCMALLOC}"}
        assert {key: environment[key].replace("$$", "$") for key in expected} == expected, where
    assert {key: by_header[1][key] for key in wanted_env} == {key: by_shell[1][key] for key in wanted_env}
    model, *flags = wanted_args
    assert yaml.safe_load(files["vllm.yaml"]) == {"model": model, **as_config(flags), "port": 8000}


def _hardware(spec: ServerSpec) -> Hardware:
    return Hardware(name="local", reserved_cores=spec.reserved_cores, max_other_cpu_share=None)


def _executable(path: Path, command: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)


def _by_hub_names(argv: list[str]) -> list[str]:
    """The folders that were served, as what they are: a model of the hub at a commit."""
    folder, *flags = _without_transport(argv)
    at = flags.index("--speculative-config")
    config = json.loads(flags[at + 1])
    assert [Path(each).name for each in (folder, config["model"])] == list(COMMITS.values())
    config |= {"model": "org/drafter", "revision": COMMITS["org/drafter"]}
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return ["org/target", *flags[:at], "--revision", COMMITS["org/target"], flags[at], text, *flags[at + 2 :]]


def _without_transport(argv: list[str]) -> list[str]:
    kept, at = [], 0
    while at < len(argv):
        skipped = TRANSPORT.get(argv[at], 0)
        kept += [] if skipped else [argv[at]]
        at += skipped or 1
    return kept


def _run_by_shell(tmp_path: Path, line: str) -> tuple[list[str], dict[str, str]]:
    """What the program at its end was given."""
    told = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    for name in ("vllm", "docker"):
        _executable(tmp_path / "deployed/bin" / name, f'exec {sys.executable} -c {shlex.quote(told)} "$@"')
    path = f"{tmp_path}/deployed/bin:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line], env={"PATH": path, "HOME": "/h"}, capture_output=True, text=True, timeout=30, check=True
    )
    argv, env = json.loads(done.stdout)
    return argv[1:], env


def _flags(argv: list[str], flag: str) -> dict[str, str]:
    pairs = [argv[at + 1].partition("=") for at, part in enumerate(argv[:-1]) if part == flag]
    return {name: value for name, _, value in pairs}


def _after_image(argv: list[str]) -> list[str]:
    return argv[next(at for at, part in enumerate(argv) if part.startswith("vllm/")) + 1 :]


def _unescaped(words: list[str]) -> list[str]:
    return [word.replace("$$", "$") for word in words]


def _of_unit(text: str) -> tuple[list[str], dict[str, str]]:
    settings = [line.partition("=")[::2] for line in text.splitlines() if not line.startswith("#")]
    values: list[tuple[str, Any]] = [
        (key, [part.replace("$$", "$").replace("%%", "%") for part in shlex.split(value)])
        for key, value in settings
        if key in ("ExecStart", "Environment")
    ]
    argv = next(words for key, words in values if key == "ExecStart")
    env = dict(words[0].split("=", 1) for key, words in values if key == "Environment")
    return argv[argv.index("serve") + 1 :], env
