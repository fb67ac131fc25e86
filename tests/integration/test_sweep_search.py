"""Whole sweeps whose search decides: what is confirmed, what is withdrawn from a small budget, and what goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.records import SCHEDULE_KEY
from tests.integration.sweeping import Sandbox, measured_twice, sandbox, slow, small

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path) as found:
        yield found


def test_recommended_settings_are_measured_again_before_the_node_closes(box: Sandbox) -> None:
    """Half of the drafts are accepted: that gains at one stream and loses at six, so a schedule beats every k."""
    box.write_prompts("half.jsonl", [f"task number {i}" for i in range(40)])
    ended = box.run(
        *small(
            "search.confirm=true",
            "datasets.code.data_files=half.jsonl",
            "speculation.num_speculative_tokens=[3]",
            "workload.max_concurrency=[1,6]",
            "workload.traffic={1:0.9,6:0.1}",
            "workload.num_blocks=3",
            "workload.output_len=48",
            extra_args=slow(20),
        )
    )
    assert ended.exit_code == 0, ended
    ledger, selection = box.ledger(), box.selection()
    assert not measured_twice(ledger)
    phases = [visit.phase for visit in ledger.visits()]
    assert phases[0] == "opening"
    assert "confirm" in phases
    assert phases.index("confirm") < phases.index("closing")
    assert [result.verdict == "speculate" for result in selection.workloads] == [True, False]
    assert all(found.verdict in ("holds", "withdrawn") for found in selection.confirmations)
    schedule = next(found for found in selection.confirmations if found.setting == "schedule")
    assert schedule.verdict == "holds"
    assert schedule.predicted is not None
    assert schedule.confirmed is not None
    assert SCHEDULE_KEY in schedule.speculative_config
    assert selection.recommendation is not None
    assert "measured again at the mix" in selection.recommendation.reason
    assert "measured again" in (box.sweep.path / "report.md").read_text()


def test_larger_budget_goes_on_where_the_smaller_one_ended(box: Sandbox) -> None:
    arguments = small(
        "search=adaptive",
        "speculation.num_speculative_tokens=[1,3,5,7]",
        "workload.num_blocks=4",
        extra_args=slow(10),
    )
    ended = box.run(*arguments, "search.max_blocks=12")
    assert ended.exit_code == 0, ended
    few = box.ledger().blocks()
    assert len(few) == 12
    assert {block.phase for block in few} == {"opening", "arm", "closing"}
    ended = box.run(*arguments, "search.max_blocks=100")
    assert ended.exit_code == 0, ended
    assert f"Continuing results/small/{box.sweep.path.name}" in ended.stdout
    ledger = box.ledger()
    assert ledger.blocks()[:12] == few
    assert not measured_twice(ledger)
    assert len(ledger.blocks()) > 12
