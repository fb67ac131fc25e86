"""`orchestrator status`: while a process holds the sweep's lock, and afterwards."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.board import Board
from orchestrator.config import Search
from orchestrator.policy import Grid
from orchestrator.progress import Progress
from orchestrator.records import LedgerRecord, SessionRecord, Visit
from orchestrator.status import show_status
from orchestrator.sweep import decide_and_report
from orchestrator.sweep_dir import SweepDir, open_sweep
from tests.unit.builders import answers, finished, make_config, measured, plan_of, write_all


def shown(folder: object, *, as_json: bool = False) -> str:
    out = Console(file=io.StringIO(), width=140, no_color=True)
    show_status(folder, out, watch=False, as_json=as_json)  # type: ignore[arg-type]
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_a_running_sweep_shows_what_it_does_and_a_stopped_one_that_it_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config((1, 3), results_dir=tmp_path)
    plan = plan_of(config)
    with open_sweep(config, plan) as (folder, _):
        board = Board(plan, Grid(seed=0, max_attempts=2), folder.open_ledger(), folder)
        Progress(config, board, Console(file=io.StringIO()))
        visit = board.next_visit(["a"])
        assert visit is not None
        board.take(answers(plan, visit)[0])
        text = shown(folder)
        shown(folder, as_json=True)
    assert "none" in text
    assert "1/4" in text
    assert "code@c1 block 0: 100 tokens/s" in text
    assert json.loads(capsys.readouterr().out)["live"]["num_done"] == 1
    assert "interrupted after 1 of at most 16 blocks: its process was killed" in shown(folder)
    assert "`orchestrator select` decides" in shown(folder)


SESSION = SessionRecord(started_utc="2026-08-01T09:00:00+00:00", wall_s=1e5, command="orchestrator sweep sweep=small")


def ended(folder: Path, *records: LedgerRecord, is_decided: bool = False, **session: object) -> SweepDir:
    """A sweep with these records, whose last session ended."""
    config = make_config((1, 3), results_dir=folder).model_copy(
        update={"search": Search(strategy="grid", confirm=False)}
    )
    plan = plan_of(config)
    with open_sweep(config, plan) as (sweep_dir, _):
        ledger = sweep_dir.open_ledger()
        if records:
            for record in records:
                ledger.append(record)
        else:
            write_all(ledger, plan)
        ledger.append(SESSION.model_copy(update=session))
        if is_decided:
            decide_and_report(sweep_dir)
    return sweep_dir


def state(sweep_dir: SweepDir, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    shown(sweep_dir, as_json=True)
    return dict(json.loads(capsys.readouterr().out))


def test_a_finished_sweep_shows_the_verdict_and_where_its_report_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ended(tmp_path, ended="measured", is_decided=True)
    text = shown(folder)
    assert f"{folder.sweep_id}: finished, 16 blocks" in text
    assert "Speculation pays on 0 of 1 workloads" in text
    assert f"Report: {folder.path / 'report.html'}" in text.replace("\n", "")
    told = state(folder, capsys)
    assert (told["running"], told["state"], told["live"]) == (False, "finished", None)
    assert told["report"] == str(folder.path / "report.html")
    assert [each["workload"] for each in told["verdicts"]] == ["code@c1"]


def test_all_measured_but_not_decided_says_how_it_is(tmp_path: Path) -> None:
    text = shown(ended(tmp_path, ended="measured"))
    assert "interrupted after 16 of at most 16 blocks: all is measured, `orchestrator select` decides" in text
    assert "Report" not in text


def test_an_interrupted_sweep_says_how_far_it_is_who_leads_and_the_command_that_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(make_config((1, 3)))
    folder = ended(tmp_path, *measured(plan, {0: [100.0] * 4}), ended="interrupted")
    text = shown(folder)
    assert f"{folder.sweep_id}: interrupted after 4 of at most 16 blocks\n" in text
    assert "code@c1" in text
    assert "To continue: orchestrator sweep sweep=small" in text
    told = state(folder, capsys)
    assert (told["state"], told["num_done"], told["num_blocks"]) == ("interrupted", 4, 16)
    assert (told["command"], told["report"]) == ("orchestrator sweep sweep=small", None)


def test_a_failed_sweep_says_why_and_shows_what_was_decided_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(make_config((1, 3)))
    visit = Visit(id="v", arm=plan.arms[2], phase="arm", node="a", attempt=2, block_ids=("b",))
    failed = finished(visit, error="ServerCrashed: no drafter").record
    rest = measured(plan, {0: [100.0] * 4, 1: [150.0, 151, 152, 150]})
    folder = ended(tmp_path, *rest, failed, ended="measured", is_decided=True)
    text = shown(folder)
    assert "failed after 8 of at most 16 blocks: not everything could be measured. dflash-k3: ServerCrashed" in text
    assert "Speculation pays on 1 of 1 workloads" in text
    assert "Report: " in text
    assert state(folder, capsys)["reason"].startswith("not everything could be measured")


def test_a_lost_cluster_is_a_failure_in_its_own_words(tmp_path: Path) -> None:
    plan = plan_of(make_config((1, 3)))
    folder = ended(tmp_path, *measured(plan, {0: [100.0]}), ended="failed", error="the Ray cluster died")
    assert "failed after 1 of at most 16 blocks: the Ray cluster died" in shown(folder)


def test_a_session_from_before_its_end_was_kept_is_interrupted_unless_something_failed(tmp_path: Path) -> None:
    plan = plan_of(make_config((1, 3)))
    [block] = measured(plan, {0: [100.0]})
    assert "interrupted after 1 of at most 16 blocks" in shown(ended(tmp_path / "a", block))
    void = block.model_copy(update={"void_reason": "1 of 2 requests failed", "block_id": plan.blocks[1].id})
    assert "failed after 1 of at most 16 blocks: not everything" in shown(ended(tmp_path / "b", block, void))


def test_what_was_measured_after_the_last_sessions_end_tells_of_a_process_that_was_killed(tmp_path: Path) -> None:
    plan = plan_of(make_config((1, 3)))
    visit = Visit(id="v", arm=plan.baseline, phase="opening", node="a", attempt=1, block_ids=("b",))
    folder = ended(tmp_path, finished(visit).record, ended="interrupted", wall_s=60)
    assert "its process was killed" in shown(folder)


def test_a_finished_sweep_shows_who_leads(tmp_path: Path) -> None:
    config = make_config((1, 3), results_dir=tmp_path)
    plan = plan_of(config)
    with open_sweep(config, plan) as (folder, _):
        write_all(folder.open_ledger(), plan)
    assert "code@c1" in shown(folder)
