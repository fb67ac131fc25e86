"""Progress: a line per visit where nobody watches, one live table on a terminal."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.board import Board
from orchestrator.ledger import Ledger
from orchestrator.live import Live
from orchestrator.live_text import live_view
from orchestrator.policy import Grid
from orchestrator.progress import Progress, show_progress
from orchestrator.records import MeasuredBlock, Visit
from orchestrator.sweep_dir import SweepDir
from tests.unit.builders import answer, answers, finished, make_config, make_plan

CONFIG = make_config([1, 3])


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return new_board(tmp_path)


def new_board(folder: Path) -> Board:
    sweep_dir = SweepDir(folder)
    return Board(make_plan([1, 3]), Grid(seed=0, max_attempts=2), Ledger(sweep_dir.ledger_path), sweep_dir)


def start(board: Board) -> Visit:
    visit = board.next_visit(["a"])
    assert visit is not None
    return visit


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), width=120, force_terminal=terminal, no_color=True)


def text(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


def table(progress: Progress) -> str:
    plain = console(terminal=False)
    plain.print(live_view(progress.live()))
    return text(plain)


def test_not_a_terminal_gets_one_line_a_visit_and_no_control_codes(board: Board) -> None:
    out = console(terminal=False)
    with show_progress([(CONFIG, board, None)], out):
        for event in answers(board.plan, start(board)):
            board.take(event)

    [line] = text(out).splitlines()
    assert line.startswith("none (opening) on a: 4 blocks in 30.0 s; 4 of 16 blocks, about ")
    assert line.endswith(" left (at most 5 min 27 s)")
    assert "\x1b" not in line


@pytest.mark.parametrize("terminal", [True, False])
def test_failed_visit_is_told_with_its_reason_whole_and_as_it_is(board: Board, terminal: bool) -> None:
    out = console(terminal=terminal)
    Progress(CONFIG, board, out)

    board.take(finished(start(board), error="ServerCrashed: [/usr/bin/vllm] exited 1; " + "x" * 200))

    assert "none on a failed: ServerCrashed: [/usr/bin/vllm] exited 1; " + "x" * 200 in text(out)


def test_table_shows_what_runs_where_and_what_it_measured_last(board: Board) -> None:
    progress = Progress(CONFIG, board, console(terminal=True))
    visit = start(board)
    assert "starting the server" in table(progress)

    board.take(answers(board.plan, visit)[0])

    shown = " ".join(table(progress).split())
    assert "a none opening 1/4 code@c1 block 0: 100 tokens/s" in shown
    assert "1 of 16 blocks" in shown


def test_void_block_is_shown_with_its_reason_and_is_not_done(board: Board) -> None:
    progress = Progress(CONFIG, board, console(terminal=True))
    visit = start(board)

    board.take(answer(board.plan, visit, board.plan.blocks[0], void_reason="1 of 2 requests failed"))

    shown = table(progress)
    assert "1 of 2 requests failed" in shown
    assert "0/4" in shown
    assert "0 of 16 blocks" in shown


def test_void_block_is_said_to_be_measured_again_also_once_the_next_one_is_done(board: Board) -> None:
    progress = Progress(CONFIG, board, console(terminal=True))
    visit = start(board)
    board.take(answer(board.plan, visit, board.plan.blocks[0], void_reason="1 of 2 requests failed"))
    assert "1 is void, to be measured again: 1 of 2 requests failed" in table(progress)

    board.take(answer(board.plan, visit, board.plan.blocks[1]))

    assert "code@c1 block 1: 100 tokens/s; 1 is void, to be measured again" in table(progress)


@pytest.mark.parametrize("terminal", [True, False])
def test_voids_are_told_once_a_visit_with_their_number_and_whether_they_are_measured_again(
    board: Board, terminal: bool
) -> None:
    out = console(terminal=terminal)
    Progress(CONFIG, board, out)
    for again in ("to be measured again", "after 2 attempts; the same command tries again"):
        visit = start(board)
        for block, busy in zip(board.plan.blocks, (31, 42), strict=False):
            board.take(answer(board.plan, visit, block, void_reason=f"others took {busy} %"))
        board.take(finished(visit))

        told = [line for line in text(out).splitlines() if "void" in line]
        assert told.pop() == f"none on a: 2 of 4 blocks are void, {again}: the last because others took 42 %"
    assert len(told) == 1


def test_blocks_that_are_void_are_still_to_come(board: Board) -> None:
    progress = Progress(CONFIG, board, console(terminal=True))
    visit = start(board)
    board.take(answer(board.plan, visit, board.plan.blocks[0], void_reason="1 of 2 requests failed"))
    assert "0 of 16 blocks" in table(progress)


def test_finished_visit_leaves_the_table(board: Board) -> None:
    progress = Progress(CONFIG, board, console(terminal=True))
    for event in answers(board.plan, start(board)):
        board.take(event)

    assert "opening" not in table(progress)


def test_blocks_of_earlier_sessions_count_as_done_and_tell_what_the_rest_takes(tmp_path: Path) -> None:
    earlier = new_board(tmp_path)
    for event in answers(earlier.plan, start(earlier)):
        earlier.take(event)

    shown = table(Progress(CONFIG, new_board(tmp_path), console(terminal=True)))

    assert "4 of 16 blocks" in shown
    assert "about 4 min 28 s left" in shown


def test_everything_done_has_no_time_left(board: Board) -> None:
    progress = Progress(CONFIG, board, console(terminal=True))
    while visit := board.next_visit(["a"]):
        for event in answers(board.plan, visit):
            board.take(event)

    assert "16 of 16 blocks" in table(progress)
    assert "left" not in table(progress)


def test_block_that_is_sent_twice_is_counted_once(board: Board) -> None:
    progress = Progress(CONFIG, board, console(terminal=True))
    event = answers(board.plan, start(board))[0]
    assert isinstance(event, MeasuredBlock)

    board.take(event)
    board.take(event)

    assert "1 of 16 blocks" in table(progress)


def test_terminal_gets_a_live_table_that_is_gone_afterwards(board: Board) -> None:
    out = console(terminal=True)
    with show_progress([(CONFIG, board, None)], out):
        pass

    assert "0 of 16 blocks" in text(out)
    assert "\x1b[2K" in text(out)


def test_another_terminal_reads_what_runs_who_leads_and_what_is_left(board: Board) -> None:
    Progress(CONFIG, board, console(terminal=False))
    for arm_rate in (100.0, 200.0):
        visit = start(board)
        by_id = {block.id: block for block in board.plan.blocks}
        for block_id in visit.block_ids:
            board.take(answer(board.plan, visit, by_id[block_id], wall_s=1000 / arm_rate))
        board.take(finished(visit))
    running = start(board)

    live = Live.model_validate_json((board.sweep_dir.path / "live.json").read_bytes())

    assert [(visit.node, visit.arm, visit.num_done) for visit in live.running] == [("a", running.arm.name, 0)]
    [leader] = live.leaders
    assert leader.speedup is not None
    assert leader.speedup.mean == pytest.approx(2)
    assert leader.verdict == "speculate"
    assert (live.num_done, live.num_blocks) == (8, 16)
    assert live.node_hours == pytest.approx(2 * 30 / 3600)
    assert live.usd is None


def test_a_visit_is_shown_from_its_start_on(board: Board) -> None:
    progress = Progress(CONFIG, board, console(terminal=True))
    assert "opening" not in table(progress)
    start(board)
    assert "starting the server" in (board.sweep_dir.path / "live.json").read_text()
