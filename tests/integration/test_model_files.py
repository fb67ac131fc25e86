"""Model files from a stand-in hub and from S3 by moto, in processes of their own: huggingface_hub reads its settings
once, at import."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.integration import aws
from tests.integration.aws import BUCKET
from tests.standin.hub import COMMIT, Hub, hub

pytestmark = pytest.mark.timeout(120)

MIRROR = f"s3://{BUCKET}/models"
TARGET, DRAFTER = "org/target", "org/drafter"
ERROR = "ModelFilesUnavailable: "
FETCH = """
import sys
from tasks.model_files import fetch_model, resolve_revision
model, revision, mirror = sys.argv[1:]
commit = resolve_revision(model, revision or None)
print(fetch_model(model, commit, mirror or None))
"""
FILL = """
import sys
from tasks.model_files import fill_mirror
print(*fill_mirror({sys.argv[1]: None, "demo://target": None}, sys.argv[2]))
"""


@pytest.fixture
def service() -> Iterator[Hub]:
    with hub() as found:
        for model in (TARGET, DRAFTER):
            found.models[model] = {
                "config.json": b"{}",
                "model.safetensors": model.encode(),
                "original/consolidated.00.pth": b"the same again",
            }
        yield found


class Node:
    """A machine: its cache, and the environment of its processes."""

    def __init__(self, home: Path, hub_url: str) -> None:
        self.home = home
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self.env = kept | {"HF_HOME": str(home), "HF_ENDPOINT": hub_url, "HF_HUB_DISABLE_XET": "1"}

    def start(self, code: str, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env=self.env
            | {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
            | dict(env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def fetch(self, model: str = TARGET, revision: str = "", mirror: str = "", **env: str) -> str:
        """The folder, or the last line of the error."""
        process = self.start(FETCH, model, revision, mirror, env=env)
        out, err = process.communicate(timeout=60)
        return out.strip() if process.returncode == 0 else err.strip().splitlines()[-1]


@pytest.fixture
def node(tmp_path: Path, service: Hub) -> Node:
    return Node(tmp_path / "hf", service.url)


def names(folder: str) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def test_two_processes_of_a_node_fetch_once_and_only_what_is_served(node: Node, service: Hub) -> None:
    both = [node.start(FETCH, TARGET, "", "", env={"HF_TOKEN": "hf_mine"}) for _ in range(2)]
    first, second = [process.communicate(timeout=60)[0].strip() for process in both]

    assert first == second
    assert Path(first).name == COMMIT
    assert names(first) == ["config.json", "model.safetensors"]
    assert sorted(Path(path).name for path in service.downloads) == names(first)
    assert "Bearer hf_mine" in service.tokens


def test_cache_serves_without_a_network_but_never_half_a_model(node: Node, service: Hub) -> None:
    folder = node.fetch()

    assert node.fetch(HF_HUB_OFFLINE="1") == folder
    assert node.fetch(HF_ENDPOINT="http://127.0.0.1:9") == folder
    (Path(folder) / "model.safetensors").unlink()
    assert "the hub cannot be reached and the files are not (all) in " in node.fetch(HF_HUB_OFFLINE="1")
    assert node.fetch(DRAFTER, HF_ENDPOINT="http://127.0.0.1:9").startswith(f"orchestrator.errors.{ERROR}{DRAFTER} at ")


def test_what_the_hub_refuses_is_said_with_what_to_do(node: Node, service: Hub) -> None:
    service.gated.add(DRAFTER)

    assert "org/drafter at its default branch: the model is gated; accept its terms" in node.fetch(DRAFTER)
    assert "org/target at v9: the hub has the model, but no such revision" in node.fetch(revision="v9")
    assert "org/other at its default branch: the hub has no such model" in node.fetch("org/other")


def test_mirror_stands_for_the_hub_and_is_verified(node: Node, service: Hub, tmp_path: Path) -> None:
    with aws.s3():
        filling = node.start(FILL, TARGET, MIRROR)
        assert filling.communicate(timeout=60)[0].split() == [f"{MIRROR}/org--target/{COMMIT}"]
        assert aws.keys() == [
            f"models/org--target/{COMMIT}/{name}" for name in ("SHA256SUMS", "config.json", "model.safetensors")
        ]
        service.downloads.clear()
        others = [Node(tmp_path / name, "http://127.0.0.1:9") for name in ("b", "c")]
        fetched = others[0].fetch(revision=COMMIT, mirror=MIRROR)
        assert names(fetched) == ["SHA256SUMS", "config.json", "model.safetensors"]
        aws.put(f"models/org--target/{COMMIT}/model.safetensors", b"damaged")
        assert others[0].fetch(revision=COMMIT, mirror=MIRROR) == fetched  # whole already
        assert "model.safetensors is damaged: SHA256SUMS says " in others[1].fetch(revision=COMMIT, mirror=MIRROR)
        assert "no such object" in others[1].fetch(DRAFTER, revision=COMMIT, mirror=MIRROR)
    assert not service.downloads


VISIT = """
import sys, json
from orchestrator.records import Message, Prompt, VisitTask
from tasks.visit import run_visit
import tasks.visit
tasks.visit.take_normal_priority = lambda: None
prompts = {"code": tuple(Prompt(messages=(Message(role="user", content=f"code {i}"),)) for i in range(1500))}
*_, finished = run_visit(VisitTask.model_validate_json(sys.stdin.read()), prompts)
print(finished.model_dump_json())
"""


def test_visit_serves_the_fetched_folders_offline_and_its_clock_begins_after_them(node: Node, service: Hub) -> None:
    from tests.integration.visiting import visit_task
    from tests.standin import COMMAND
    from tests.unit.builders import make_plan

    plan = make_plan([7], num_blocks=2)
    arm = plan.arms[1]
    env_of_engine = ["/bin/sh", "-c", f'echo "offline=$HF_HUB_OFFLINE" && exec {" ".join(COMMAND)} "$@"', "sh"]
    spec = arm.server.model_copy(update={"command": tuple(env_of_engine)})
    task = visit_task(plan, spec, model_revisions={TARGET: COMMIT, DRAFTER: COMMIT})
    run = subprocess.run(
        [sys.executable, "-c", VISIT],
        input=task.model_dump_json(),
        env=node.env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    finished = json.loads(run.stdout)
    record, log = finished["record"], finished["server_log"]

    assert record["error"] is None
    assert record["num_blocks"] == 1
    assert record["model_revisions"] == {TARGET: COMMIT, DRAFTER: COMMIT}
    assert record["fetch_s"] > 0
    assert "offline=1" in log
    for model in ("org--target", "org--drafter"):
        assert f"hub/models--{model}/snapshots/{COMMIT}" in log
