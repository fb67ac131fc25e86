"""Whole sweeps that go well: what they leave, and that they are continued with what is missing only."""

import gzip
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.ledger import key_of
from orchestrator.records import VisitRecord
from orchestrator.sweep_dir import SweepDir
from tests.integration.sweeping import Ended, Sandbox, measured_twice, sandbox, slow, small
from tests.standin import free_port

pytestmark = pytest.mark.timeout(240)

GOOD = small(
    "name=good",
    "dataset@datasets=[demo_code,demo_chat]",
    "datasets.chat.data_files=chat.jsonl",
    "workload.max_concurrency=[1,2]",
    "workload.num_blocks=4",
    "workload.output_len=24",
    "tracking=sqlite",
    extra_args=slow(4),
)


def _span(visit: VisitRecord) -> tuple[float, float]:
    start = datetime.fromisoformat(visit.started_utc).timestamp()
    return start, start + visit.wall_s


@dataclass(frozen=True)
class Good:
    sandbox: Sandbox
    ended: Ended
    sweep: SweepDir


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Good]:
    with sandbox(tmp_path_factory.mktemp("good")) as box:
        ended = box.run(*GOOD)
        assert ended.exit_code == 0, ended
        yield Good(box, ended, box.sweep)


def test_prints_its_own_lines_only(good: Good) -> None:
    first, *visits = good.ended.stdout.splitlines()[:5]
    assert first.startswith("Starting results/good/")
    assert [line.split(" on ")[0] for line in visits][::3] == ["none (opening)", "none (closing)"]
    assert {line.split(" on ")[0] for line in visits[1:3]} == {"dflash-k1 (arm)", "dflash-k7 (arm)"}
    assert visits[-1].endswith("64 of 64 blocks")
    assert good.ended.stderr == ""
    assert not any(word in good.ended.stdout for word in ("(raylet)", "Tune", "Trial", "alembic", "\x1b"))


def test_leaves_the_folder_that_the_design_describes(good: Good) -> None:
    path = good.sweep.path
    names = {"config.yaml", "plan.json", "ledger.jsonl", "selection.json", "report.html", "report.md", "raw", "logs"}
    assert names <= {entry.name for entry in path.iterdir()}
    assert not list(path.rglob("*.tmp"))
    assert path.parent.name == "good"
    assert (good.sandbox.path / "results/latest").is_symlink()
    visits = {visit.visit_id for visit in good.sandbox.ledger().visits()}
    assert {file.name.removesuffix(".log") for file in (path / "logs").iterdir()} == visits
    assert {file.name.removesuffix(".jsonl.gz") for file in (path / "raw").iterdir()} == visits
    num_requests = 0
    for file in (path / "raw").iterdir():
        with gzip.open(file, "rt") as lines:
            num_requests += len(list(lines))
    assert num_requests == 4 * 2 * 4 * (2 + 4)  # visits x datasets x blocks x requests a block at one and two streams


def test_ledger_has_every_measurement_once_and_the_baseline_twice(good: Good) -> None:
    ledger, plan = good.sandbox.ledger(), good.sweep.plan()
    assert not measured_twice(ledger)
    assert ledger.blocks() == ledger.valid_blocks()
    for arm in plan.arms:
        phases = Counter(block.phase for block in ledger.blocks() if block.arm_id == arm.id)
        expected = {"opening": 16, "closing": 16} if arm.is_baseline else {"arm": 16}
        assert phases == expected


def test_verdicts_are_the_known_truth(good: Good) -> None:
    results = {(result.dataset, result.max_concurrency): result for result in good.sandbox.selection().workloads}
    assert results.keys() == {("code", 1), ("code", 2), ("chat", 1), ("chat", 2)}
    for (dataset, _), result in results.items():
        k7 = next(arm for arm in result.arms if arm.num_speculative_tokens == 7)
        assert k7.speedup is not None
        assert all(arm.num_blocks == 4 for arm in result.arms)
        if dataset == "code":
            assert result.verdict == "speculate"
            assert result.best is not None
            assert result.best.num_speculative_tokens == 7
            assert k7.speedup.mean > 1.5
        else:
            assert result.verdict != "speculate"
            assert k7.speedup.mean < 1
        assert k7.outputs_match_baseline == 1.0
        assert k7.survival is not None
        assert len(k7.survival) == 7


def test_every_output_is_kept_as_token_ids_and_said_to_equal_the_baselines(good: Good) -> None:
    visits = good.sandbox.ledger().visits()
    requests = [request for visit in visits for request in good.sweep.read_raw(visit.visit_id)]
    assert {len(request.output_token_ids or ()) for request in requests} == {24}
    num_compared = 3 * 2 * 4 * (2 + 4)  # two arms and the closing baseline
    said = f"All {num_compared} outputs compared at temperature 0 equal the opening baseline's."
    assert said in (good.sweep.path / "report.md").read_text()
    assert "Outputs differ" not in good.ended.stdout


def test_leaves_no_process_no_temporary_folder_and_nothing_of_ray_in_the_home(good: Good) -> None:
    assert good.sandbox.leftovers() == []
    assert not (good.sandbox.home / ".ray").exists()
    assert not list(good.sandbox.temporary.glob("specsweep*"))


def test_is_recorded_as_a_parent_with_a_child_for_every_arm_and_workload(good: Good) -> None:
    with sqlite3.connect(good.sandbox.path / "mlflow.db") as database:
        runs = database.execute("select status from runs").fetchall()
        parents = database.execute("select value from tags where key = 'mlflow.parentRunId'").fetchall()
    assert len(parents) == 12
    assert len(set(parents)) == 1
    assert runs == [("FINISHED",)] * 13


def test_one_more_k_takes_over_what_is_measured(good: Good) -> None:
    before = {key_of(block): block for block in good.sandbox.ledger().blocks()}
    ended = good.sandbox.run(*GOOD, "speculation.num_speculative_tokens=[1,3,7]", "tracking=none")
    assert ended.exit_code == 0, ended
    ledger, arms = good.sandbox.ledger(), {arm.id: arm.name for arm in good.sandbox.sweep.plan().arms}
    assert good.sandbox.sweep.path != good.sweep.path
    new = [block for block in ledger.blocks() if before.get(key_of(block)) != block]
    assert {(arms[block.arm_id], block.phase) for block in new} == {("dflash-k3", "arm"), ("none", "closing")}
    assert len(new) == 2 * 16
    assert not measured_twice(ledger)
    assert len(ledger.blocks()) == 5 * 16
    assert len(SweepDir(good.sweep.path).plan().arms) == 3  # the first one stays as it was


def test_cluster_shares_the_arms_and_measures_the_baseline_on_every_node(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with sandbox(tmp_path) as box:
        box.start_ray(
            *("--head", f"--port={address.rpartition(':')[2]}", "--node-ip-address=127.0.0.1", "--num-cpus=1"),
            *("--include-dashboard=false", f"--temp-dir={box.temporary}/r", "--object-store-memory=100000000"),
        )
        arguments = small(
            *("cluster=address", f"cluster.address={address}", "cluster.auth_mode=disabled"),
            *("speculation.num_speculative_tokens=[1,3,5,7]", "workload.num_blocks=3"),
            extra_args=slow(10),
        )
        refused = box.run(*arguments)
        assert refused.exit_code == 2, refused
        assert "offers the resource 'xeon_node' that hardware=local asks for; start workers with" in refused.stderr
        assert not box.sweeps

        for name in ("a", "b"):
            box.start_ray(
                *(f"--address={address}", "--node-ip-address=127.0.0.1", "--num-cpus=1", f"--node-name={name}"),
                *("--resources", '{"xeon_node": 1}', "--object-store-memory=100000000"),
            )
        ended = box.run(*arguments)
        assert ended.exit_code == 0, ended
        assert ended.stderr == ""
        visits, blocks = box.ledger().visits(), box.ledger().blocks()
        for phase in ("opening", "closing"):
            assert sorted(visit.node for visit in visits if visit.phase == phase) == ["a", "b"]
        arms = [visit for visit in visits if visit.phase == "arm"]
        assert len(arms) == 4
        assert {visit.node for visit in arms} == {"a", "b"}
        assert not measured_twice(box.ledger())
        assert len(blocks) == 3 * (2 * 2 + 4)
        for node in ("a", "b"):
            spans = sorted(_span(visit) for visit in visits if visit.node == node)
            assert all(end <= start for (_, end), (start, _) in pairwise(spans)), "two visits at once on one node"
