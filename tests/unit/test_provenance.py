"""What a result was made with; what cannot be known is null, not invented."""

import platform
import subprocess
from pathlib import Path

import pytest

from orchestrator.config import Hardware
from orchestrator.provenance import IMAGE_COMMIT, collect_provenance, git_commit
from orchestrator.records import VisitRecord
from tests.unit.report_fixture import NODE, make_plan, make_visit

HARDWARE = Hardware(name="r8i_16xlarge", usd_per_hour=4.5)


@pytest.fixture
def visit() -> VisitRecord:
    return make_visit(make_plan())


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "file").write_text("one")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "file")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "--quiet", "--no-verify", "-m", "m")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    run = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return run.stdout.strip()


def test_versions_are_the_drivers_and_the_engine_is_what_the_visits_reported(visit: VisitRecord) -> None:
    other = visit.model_copy(update={"engine_version": "0.33.0"})
    failed = visit.model_copy(update={"engine_version": None, "node_info": None, "node": "node-b"})

    provenance = collect_provenance("plan", HARDWARE, [other, visit, visit, failed], {})

    assert provenance.versions["python"] == platform.python_version()
    assert provenance.versions["vllm"] == "0.32.0, 0.33.0"
    assert "ray" in provenance.versions
    assert provenance.plan_id == "plan"


def test_engine_that_nobody_reported_is_unknown() -> None:
    assert collect_provenance("plan", HARDWARE, [], {}).versions["vllm"] == "unknown"


def test_hardware_is_the_profile_and_each_node_as_probed(visit: VisitRecord) -> None:
    hardware = collect_provenance("plan", HARDWARE, [visit], {}).hardware

    assert hardware["profile"] == HARDWARE.model_dump(mode="json")
    assert hardware["nodes"] == {"node-a": NODE.model_dump(mode="json")}


def test_commit_of_a_clean_checkout_is_its_head(checkout: Path) -> None:
    (checkout / "untracked").write_text("results do not make a checkout differ")

    assert git_commit(checkout) == git(checkout, "rev-parse", "HEAD")


def test_commit_of_an_edited_checkout_is_marked(checkout: Path) -> None:
    (checkout / "file").write_text("two")

    assert git_commit(checkout) == git(checkout, "rev-parse", "HEAD") + "+"


def test_outside_of_a_checkout_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    assert git_commit(tmp_path) is None


def test_image_without_git_has_the_commit_that_its_build_was_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for told, known in (("abc+", "abc+"), ("", None)):
        monkeypatch.setenv(IMAGE_COMMIT, told)
        assert git_commit(tmp_path) == known
    head = Path(__file__).parents[2] / "infra" / "containers" / "head.Dockerfile"
    assert f"{IMAGE_COMMIT}=$GIT_COMMIT" in head.read_text(encoding="utf-8")


def test_checkout_goes_before_what_an_image_was_told(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IMAGE_COMMIT, "abc")

    assert git_commit(checkout) == git(checkout, "rev-parse", "HEAD")


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert git_commit(Path(__file__).parent) is None
