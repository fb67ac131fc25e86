"""What was started, what runs where, what came back: late and double results do not count."""

import gzip
from pathlib import Path

import pytest

from orchestrator.board import MAX_EXCUSED, Board
from orchestrator.ledger import Ledger
from orchestrator.policy import Grid, is_complete
from orchestrator.records import FinishedVisit, MeasuredBlock, Visit, VisitEvent
from orchestrator.sweep_dir import SweepDir
from tests.unit.builders import answer, answers, finished, make_plan


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return new_board(tmp_path)


def new_board(folder: Path) -> Board:
    sweep_dir = SweepDir(folder)
    return Board(make_plan([1, 3]), Grid(seed=0, max_attempts=2), Ledger(sweep_dir.ledger_path), sweep_dir)


def start(board: Board, *nodes: str) -> Visit:
    visit = board.next_visit(nodes or ["a"])
    assert visit is not None
    return visit


def finish(board: Board, visit: Visit) -> None:
    for event in answers(board.plan, visit):
        board.take(event)


def test_node_that_works_gets_no_second_visit(board: Board) -> None:
    first = start(board, "a", "b")
    second = start(board, "a", "b")

    assert {first.node, second.node} == {"a", "b"}
    assert board.next_visit(["a", "b"]) is None


def test_two_nodes_never_run_the_same_arm_at_once(board: Board) -> None:
    for _ in range(2):
        opening = start(board, "a", "b")
        finish(board, opening)
        if opening.node == "a":
            on_a = start(board, "a")
    on_b = start(board, "b")

    assert on_a.phase == on_b.phase == "arm"
    assert on_a.arm.id != on_b.arm.id


def test_whole_sweep_measures_every_block_once(board: Board) -> None:
    while visit := board.next_visit(["a"]):
        finish(board, visit)

    assert is_complete(board.plan, board.ledger)
    assert len(board.ledger.blocks()) == len(board.plan.blocks) * 4
    assert len(board.ledger.visits()) == 4
    assert not board.running


def test_result_of_a_visit_that_does_not_run_is_dropped(board: Board) -> None:
    visit = start(board)
    board.lose(visit.id, "node died")
    heard: list[Visit | VisitEvent] = []
    board.listeners.append(heard.append)

    for event in answers(board.plan, visit):
        board.take(event)

    assert board.ledger.blocks() == []
    assert [record.error for record in board.ledger.visits()] == ["node died"]
    assert heard == []
    assert not (board.ledger.path.parent / "raw").exists()


def test_block_sent_twice_counts_once(board: Board) -> None:
    visit = start(board)
    event = answer(board.plan, visit, board.plan.blocks[0])
    heard: list[Visit | VisitEvent] = []
    board.listeners.append(heard.append)

    board.take(event)
    board.take(event)

    assert len(board.ledger.blocks()) == len(heard) == 1
    [raw] = (board.ledger.path.parent / "raw").iterdir()
    assert len(gzip.decompress(raw.read_bytes()).splitlines()) == len(event.requests)


def test_lost_visits_finished_blocks_are_kept_and_only_the_rest_is_visited_again(board: Board) -> None:
    lost = start(board)
    kept = [event for event in answers(board.plan, lost) if isinstance(event, MeasuredBlock)][:3]
    for event in kept:
        board.take(event)

    board.lose(lost.id, "node died")
    again = start(board)

    assert [block.block_id for block in board.ledger.valid_blocks()] == list(lost.block_ids[:3])
    assert again.block_ids == lost.block_ids[3:]
    assert (again.attempt, again.id != lost.id) == (2, True)
    [record] = board.ledger.visits()
    assert (record.error, record.num_blocks) == ("node died", 3)
    assert record.blocks_s == pytest.approx(sum(event.record.wall_s for event in kept))


def test_losing_a_visit_that_is_over_changes_nothing(board: Board) -> None:
    visit = start(board)
    finish(board, visit)

    board.lose(visit.id, "worker exited")

    assert [record.error for record in board.ledger.visits()] == [None]


def test_new_board_on_the_same_folder_goes_on_where_the_old_one_was_killed(tmp_path: Path) -> None:
    killed = new_board(tmp_path)
    finish(killed, start(killed))
    half = start(killed)
    killed.take(answers(killed.plan, half)[0])

    board = new_board(tmp_path)
    visit = start(board)

    assert (visit.arm.id, visit.block_ids) == (half.arm.id, half.block_ids[1:])
    assert visit.id != half.id


def test_server_log_is_kept_beside_the_ledger(board: Board) -> None:
    visit = start(board)

    board.take(finished(visit, error="crashed", server_log="INFO 1\nERROR 2\n"))

    assert (board.ledger.path.parent / "logs" / f"{visit.id}.log").read_text() == "INFO 1\nERROR 2\n"


def test_listener_hears_of_a_result_only_when_it_is_in_the_ledger(board: Board) -> None:
    seen: list[int] = []
    visit = start(board)
    board.listeners.append(lambda event: seen.append(len(board.ledger.blocks()) + len(board.ledger.visits())))

    finish(board, visit)

    assert seen == [1, 2, 3, 4, 5]


def test_raw_data_is_written_before_the_ledgers_line_makes_a_block_count(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = start(board)

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(SweepDir, "write_raw", full)
    with pytest.raises(OSError, match="no space"):
        board.take(answers(board.plan, visit)[0])

    assert board.ledger.blocks() == []


def test_end_of_a_visit_frees_its_node(board: Board) -> None:
    visit = start(board)
    assert board.next_visit(["a"]) is None

    event = finished(visit, error="crashed")
    board.take(event)

    assert isinstance(event, FinishedVisit)
    assert start(board).attempt == 2


def interrupt(board: Board, visit: Visit, num_blocks: int) -> None:
    """The node hands in what is finished and goes."""
    for event in answers(board.plan, visit)[:num_blocks]:
        board.take(event)
    ended = finished(visit, error="NodeInterrupted: announced")
    board.take(ended.model_copy(update={"record": ended.record.model_copy(update={"interrupted": True})}))


def test_interruption_is_no_attempt_and_the_rest_goes_to_another_node(board: Board) -> None:
    for node in ("a", "b"):
        finish(board, start(board, node))
    on_a = start(board, "a")
    interrupt(board, on_a, num_blocks=1)

    on_b = start(board, "a", "b")

    assert (on_b.node, on_b.arm, on_b.attempt) == ("b", on_a.arm, on_a.attempt)
    assert on_b.block_ids == on_a.block_ids[1:]


def test_node_that_is_about_to_go_gets_nothing_until_it_has_gone_and_come_back(board: Board) -> None:
    interrupt(board, start(board, "a"), num_blocks=0)

    assert board.next_visit(["a"]) is None
    assert board.staying(["a", "b"]) == {"b"}
    assert start(board, "a", "b").node == "b"
    board.staying(["b"])
    assert board.next_visit(["a", "b"]) is not None


def test_node_that_was_taken_away_owes_no_closing_baseline(board: Board) -> None:
    finish(board, start(board, "a"))
    finish(board, start(board, "a"))
    interrupt(board, start(board, "a"), num_blocks=1)
    while visit := board.next_visit(["b"]):
        finish(board, visit)

    assert is_complete(board.plan, board.ledger)
    assert {record.node for record in board.ledger.visits() if record.phase == "closing"} == {"b"}


def test_visit_lost_to_its_node_is_no_attempt_of_its_arm(board: Board) -> None:
    finish(board, start(board, "a"))
    for _ in range(3):  # more than max_attempts
        board.lose(start(board, "a").id, "node a left the cluster", blames_node=True)

    assert start(board, "a").phase == "arm"


def test_arm_that_brings_down_every_node_is_given_up_in_the_end(board: Board) -> None:
    finish(board, start(board, "a"))
    lost = 0
    while (visit := start(board, "a")).phase == "arm":
        board.lose(visit.id, "node a left the cluster", blames_node=True)
        lost += 1

    assert lost == 2 * (MAX_EXCUSED + 2)  # two arms, each of two attempts


def test_node_that_says_it_cannot_measure_gets_nothing_more_and_the_arm_goes_elsewhere(board: Board) -> None:
    for node in ("a", "b"):
        finish(board, start(board, node))
    unfit = start(board, "a")
    event = finished(unfit, error="NodeUnavailable: only 3 MB are free")
    board.take(event.model_copy(update={"record": event.record.model_copy(update={"blames_node": True})}))

    assert board.next_visit(["a"]) is None
    again = start(board, "a", "b")
    assert (again.node, again.arm.id, again.attempt) == ("b", unfit.arm.id, 1)
