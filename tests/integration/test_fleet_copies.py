"""A sweep goes on where an earlier head left it: copies of its folder in a bucket of a moto server."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator import cli, fleet_sweep
from orchestrator.artifacts import upload_folder
from orchestrator.config import Fleet, FleetSize, SweepConfig
from orchestrator.errors import ArtifactsFailed
from orchestrator.fleet_aws import Aws
from orchestrator.fleet_copies import copies_of, fetch_earlier
from orchestrator.ledger import Ledger
from orchestrator.sweep_dir import SweepDir, open_sweep
from tests.integration import aws
from tests.unit.builders import make_config, plan_of, write_all

FLEET = Fleet(
    region="us-east-1",
    head_image="own/head:1",
    worker_image="own/worker:1",
    sizes={"default": FleetSize(desired_size=1, max_size=1)},
    ttl_hours=4,
    max_hours=24,
    head_usd_per_hour=0.1,
    network_usd_per_hour=0.05,
    results_bucket=aws.BUCKET,
)


@pytest.fixture(scope="module")
def region() -> Iterator[Aws]:
    with aws.s3():
        yield Aws("us-east-1")


@pytest.fixture
def cloud(region: Aws) -> Iterator[Aws]:
    yield region
    aws.empty()


def on_a_head(folder: Path) -> SweepConfig:
    """A small sweep with its results there."""
    folder.mkdir()
    config = make_config(results_dir=folder)
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"aws": FLEET})})


def measure(config: SweepConfig, num_lines: int | None = None) -> SweepDir:
    """All of it, or its first lines: what is there when a head ends in the middle."""
    plan = plan_of(config)
    with open_sweep(config, plan) as (sweep, _):
        write_all(Ledger(sweep.ledger_path), plan)
    (sweep.path / "logs").mkdir()
    (sweep.path / "logs" / "server.log").write_text("ready\n")
    if num_lines is not None:
        lines = sweep.ledger_path.read_bytes().splitlines(keepends=True)
        sweep.ledger_path.write_bytes(b"".join(lines[:num_lines]))
    return sweep


def rescue(results: Path, head: str) -> None:
    """As infra/boot/rescue.sh copies a head's results: `aws s3 sync` follows no links and writes no sums."""
    for path in sorted(results.rglob("*")):
        if path.is_file() and not any(parent.is_symlink() for parent in (path, *path.parents)):
            aws.put(f"rescued/{head}/results/{path.relative_to(results).as_posix()}", path.read_bytes())


def upload(sweep: SweepDir, stamp: str = "2026-11-30T04-00-00Z") -> str:
    uri = f"s3://{aws.BUCKET}/{sweep.sweep_id}/{stamp}"
    upload_folder(sweep.path, uri)
    return uri


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_sweep_of_a_head_that_ended_continues_on_the_next_one(cloud: Aws, tmp_path: Path) -> None:
    old, new = on_a_head(tmp_path / "old"), on_a_head(tmp_path / "new")
    begun = measure(old, num_lines=3)
    rescue(tmp_path / "old", "i-old")
    said = io.StringIO()

    fetch_earlier(new, Console(file=said, width=300))

    with open_sweep(new, plan_of(new)) as (sweep, continues):
        assert continues
        assert sweep.path == tmp_path / "new" / begun.sweep_id
        assert len(sweep.ledger().blocks()) == len(begun.ledger().blocks()) > 0
    assert files(sweep.path).keys() == files(begun.path).keys()
    assert f"Fetched s3://{aws.BUCKET}/rescued/i-old/results/{begun.sweep_id}" in said.getvalue()
    assert [path.name for path in (tmp_path / "new").iterdir() if path.name.startswith(".fetched")] == []


def test_head_fetches_before_it_measures(cloud: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = measure(on_a_head(tmp_path / "old"), num_lines=3)
    rescue(tmp_path / "old", "i-old")
    new, there = on_a_head(tmp_path / "new"), []
    monkeypatch.setattr(fleet_sweep, "fetched_sweep", lambda uri: (new, "orchestrator fleet sweep"))
    monkeypatch.setattr(
        cli, "_measure", lambda configs, command: there.append((tmp_path / "new" / sweep.sweep_id).is_dir())
    )

    cli.run_on_head("s3://b/inputs/0")

    assert there == [True]


def test_newest_of_several_copies_is_the_one_with_the_longest_ledger(cloud: Aws, tmp_path: Path) -> None:
    config = on_a_head(tmp_path / "old")
    sweep = measure(config)
    whole = sweep.ledger_path.read_bytes()
    rescue(tmp_path / "old", "i-whole")
    sweep.ledger_path.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    upload(sweep)
    rescue(tmp_path / "old", "i-earlier")
    new = on_a_head(tmp_path / "new")

    fetch_earlier(new, Console(file=io.StringIO()))

    assert (tmp_path / "new" / sweep.sweep_id / "ledger.jsonl").read_bytes() == whole


def test_every_sweep_of_that_name_comes_and_no_other(cloud: Aws, tmp_path: Path) -> None:
    config = on_a_head(tmp_path / "old")
    first, second = measure(config), measure(config)
    assert first.path != second.path
    other = measure(config.model_copy(update={"name": "small2"}))
    upload(first)
    rescue(tmp_path / "old", "i-old")
    new = on_a_head(tmp_path / "new")

    fetch_earlier(new, Console(file=io.StringIO()))

    assert {path.name for path in (tmp_path / "new" / "small").iterdir() if path.is_dir()} == {
        first.path.name,
        second.path.name,
    }
    assert not (tmp_path / "new" / other.sweep_id).exists()


def test_what_a_head_has_itself_is_not_fetched_over_it(cloud: Aws, tmp_path: Path) -> None:
    config = on_a_head(tmp_path / "head")
    sweep = measure(config)
    upload(sweep)
    (sweep.path / "logs" / "server.log").write_text("ready, and more\n")
    before = files(sweep.path)

    fetch_earlier(config, Console(file=io.StringIO()))

    assert files(sweep.path) == before


def test_upload_that_was_cut_off_is_no_copy(cloud: Aws, tmp_path: Path) -> None:
    sweep = measure(on_a_head(tmp_path / "old"))
    upload(sweep)
    cloud.client("s3").delete_object(Bucket=aws.BUCKET, Key=f"{sweep.sweep_id}/2026-11-30T04-00-00Z/SHA256SUMS")

    assert copies_of(cloud, aws.BUCKET, "small") == []


def test_damaged_upload_is_an_error_and_leaves_no_folder(cloud: Aws, tmp_path: Path) -> None:
    sweep = measure(on_a_head(tmp_path / "old"))
    upload(sweep)
    aws.put(f"{sweep.sweep_id}/2026-11-30T04-00-00Z/logs/server.log", b"other\n")
    new = on_a_head(tmp_path / "new")

    with pytest.raises(ArtifactsFailed, match=r"server\.log is damaged"):
        fetch_earlier(new, Console(file=io.StringIO()))
    assert not (tmp_path / "new" / sweep.sweep_id).exists()


def test_copy_of_another_version_is_told_and_begins_anew(cloud: Aws, tmp_path: Path) -> None:
    sweep = measure(on_a_head(tmp_path / "old"))
    (sweep.path / "plan.json").write_text("{}")
    rescue(tmp_path / "old", "i-old")
    new, said = on_a_head(tmp_path / "new"), io.StringIO()

    fetch_earlier(new, Console(file=said, width=300))

    assert "does not count" in said.getvalue()
    with open_sweep(new, plan_of(new)) as (_, continues):
        assert not continues
