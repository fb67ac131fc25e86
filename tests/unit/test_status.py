"""`orchestrator status`: while a process holds the sweep's lock, and afterwards."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.board import Board
from orchestrator.policy import Grid
from orchestrator.progress import Progress
from orchestrator.status import show_status
from orchestrator.sweep_dir import open_sweep
from tests.unit.builders import answers, make_config, plan_of, write_all


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
    assert "is not running; `orchestrator select` decides" in shown(folder)


def test_a_finished_sweep_shows_who_leads(tmp_path: Path) -> None:
    config = make_config((1, 3), results_dir=tmp_path)
    plan = plan_of(config)
    with open_sweep(config, plan) as (folder, _):
        write_all(folder.open_ledger(), plan)
    assert "code@c1" in shown(folder)
