"""An engine in a container, and one that is already there: the same visit, another way to the server."""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.config import Server
from orchestrator.records import BlockRecord, ServerSpec, VisitRecord
from tasks.server import VllmServer
from tests.integration.visiting import run, visit_task
from tests.standin import standin
from tests.unit.builders import make_plan

DOCKER = (sys.executable, str(Path(__file__).parents[1] / "standin" / "docker.py"))
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _keeps_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the tests' own."""
    monkeypatch.setattr("tasks.visit.take_normal_priority", lambda: None)


@pytest.fixture
def docker_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STANDIN_DOCKER_LOG", str(tmp_path / "docker.jsonl"))
    return tmp_path / "docker.jsonl"


def calls(log: Path) -> list[list[str]]:
    return [json.loads(line)["argv"] for line in log.read_text().splitlines()]


def spec(tmp_path: Path, k: int, **changes: object) -> ServerSpec:
    """Models as local folders, which nothing has to fetch."""
    plan = make_plan([7])
    server = plan.arms[1].server if k else plan.baseline.server
    target, drafter = tmp_path / "target", tmp_path / "drafter"
    for folder in (target, drafter):
        folder.mkdir(exist_ok=True)
    config = {"method": "dflash", "model": str(drafter), "num_speculative_tokens": k} if k else None
    return server.model_copy(update={"target": str(target), "speculative_config": config, **changes})


def visit(server: ServerSpec, k: int = 7) -> tuple[list[BlockRecord], VisitRecord]:
    return run(visit_task(make_plan([7], num_blocks=2), server, k=k))


def container(tmp_path: Path, **changes: object) -> ServerSpec:
    return spec(tmp_path, 7, launcher="docker", image="vllm/vllm-openai-cpu:v0.32.0", command=DOCKER, **changes)


def test_a_visit_is_measured_in_a_container_that_is_removed_afterwards(tmp_path: Path, docker_log: Path) -> None:
    [block], finished = visit(container(tmp_path, env={"ODD": "a b"}))
    assert (finished.error, block.void_reason) == (None, None)
    docker_run = next(call for call in calls(docker_log) if call[0] == "run")
    port = docker_run[docker_run.index("-p") + 1].split(":")[-1]
    image = docker_run.index("vllm/vllm-openai-cpu:v0.32.0")
    assert docker_run[:5] == ["run", "--rm", "--init", "--name", "v"]
    assert {"--ipc=host", "--cap-add=SYS_NICE", "seccomp=unconfined"} <= set(docker_run[:image])
    assert f"127.0.0.1:{port}:{port}" in docker_run
    assert f"{tmp_path / 'target'}:{tmp_path / 'target'}:ro" in docker_run
    assert f"{tmp_path / 'drafter'}:{tmp_path / 'drafter'}:ro" in docker_run
    assert docker_run[image + 1] == str(tmp_path / "target")
    assert "--speculative-config" in docker_run[image:]
    assert calls(docker_log)[-1] == ["rm", "--force", "v"]


def test_what_the_container_is_given_is_named_and_its_values_are_not_in_the_command(
    tmp_path: Path, docker_log: Path
) -> None:
    with VllmServer(container(tmp_path, env={"ODD": "a b"}), name="v", log_path=tmp_path / "log") as server:
        server.wait_until_ready(timeout_s=30)
        command = psutil.Process(server.pid).cmdline()
    docker_run = next(call for call in calls(docker_log) if call[0] == "run")
    for name in ("VLLM_API_KEY", "VLLM_CPU_KVCACHE_SPACE", "ODD"):
        assert docker_run[docker_run.index(name) - 1] == "-e"
    assert not any(server.api_key in part or "a b" in part for part in [*docker_run, *command])


def test_a_container_is_removed_even_where_its_command_was_killed(tmp_path: Path, docker_log: Path) -> None:
    with VllmServer(container(tmp_path), name="v", log_path=tmp_path / "log") as server:
        server.wait_until_ready(timeout_s=30)
        os.kill(server.pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while calls(docker_log)[-1][0] != "rm" and time.monotonic() < deadline:
            time.sleep(0.05)
    assert calls(docker_log)[-1] == ["rm", "--force", "v"]


def external(url: str, tmp_path: Path, k: int) -> ServerSpec:
    return spec(tmp_path, k, launcher="external", url=url, command=None)


def flags(k: int) -> Mapping[str, Any]:
    config = {"method": "dflash", "model": "/drafter", "num_speculative_tokens": k}
    return {"speculative": ("--speculative-config", json.dumps(config)) if k else ()}


@pytest.mark.parametrize("k", [0, 7])
def test_a_server_that_is_already_there_is_measured_and_goes_on(tmp_path: Path, k: int) -> None:
    with standin(*flags(k)["speculative"], "--max-model-len", "1024", model=str(tmp_path / "target")) as there:
        [block], finished = visit(external(there.base_url, tmp_path, k), k)
        assert (finished.error, block.void_reason) == (None, None)
        assert finished.server_log is None
        assert there.process.poll() is None


def test_a_server_that_is_another_arm_is_not_measured_as_this_one(tmp_path: Path) -> None:
    with standin(*flags(3)["speculative"], "--max-model-len", "1024", model=str(tmp_path / "target")) as there:
        blocks, finished = visit(external(there.base_url, tmp_path, 7))
    assert blocks == []
    assert "should draft 7 tokens a step, but the engine drafted 3" in (finished.error or "")


def test_a_server_with_another_model_is_refused(tmp_path: Path) -> None:
    with standin("--max-model-len", "1024", model="other") as there:
        blocks, finished = visit(external(there.base_url, tmp_path, 7))
    assert blocks == []
    assert "but got 'other'" in (finished.error or "")


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    blocks, finished = visit(external("http://127.0.0.1:9", tmp_path, 7))
    assert blocks == []
    assert "nothing answers at http://127.0.0.1:9" in (finished.error or "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"launcher": "docker"}, "image=vllm/vllm-openai-cpu"),
        ({"launcher": "external"}, r"url=http://10\.0\.0\.5:8000"),
        ({"url": "http://a:1"}, "launcher=external and url go together"),
        ({"launcher": "external", "url": "http://a:1", "command": ["vllm"]}, "starts nothing"),
        ({"launcher": "external", "url": "http://user:secret@a:1"}, "pattern"),
    ],
)
def test_a_launcher_without_what_it_needs_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Server.model_validate(settings)
