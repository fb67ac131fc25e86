"""The live view of a sweep half-way through: the shipped example's ledger, taken in again up to a moment."""

import io
from pathlib import Path

from rich.console import Console

from orchestrator.board import Board
from orchestrator.live_text import live_view
from orchestrator.policies import policy_for
from orchestrator.progress import Progress
from orchestrator.records import BlockRecord, FinishedVisit, LedgerRecord, MeasuredBlock, Visit, VisitRecord
from orchestrator.sweep_dir import SweepDir, open_sweep

NUM_RECORDS = 98
"""Of the ledger's: three visits are over, and the fourth has measured some blocks."""
LEFT_S, AT_MOST_LEFT_S = 137, 180
"""As the sweep said when its third visit had ended."""
WIDTH = 110


def live_picture(example: SweepDir, scratch: Path) -> Path:
    """An SVG of what the terminal shows then."""
    config = example.config().model_copy(update={"results_dir": str(scratch)})
    plan = example.plan()
    records = _in_order(example)
    with open_sweep(config, plan) as (folder, _):
        board = Board(plan, policy_for(config), folder.open_ledger(), folder)
        progress = Progress(config, board, Console(file=io.StringIO()))
        for record in records[:NUM_RECORDS]:
            _take(board, record, [each for each in records if isinstance(each, BlockRecord)])
        screen = Console(record=True, file=io.StringIO(), width=WIDTH, force_terminal=True)
        # It follows from how fast records came in, which here tells nothing.
        said = {"left_s": LEFT_S, "at_most_left_s": AT_MOST_LEFT_S}
        screen.print(live_view(progress.live().model_copy(update=said)))
    path = scratch / "live.svg"
    screen.save_svg(str(path), title="make sweep")
    return path


def _in_order(example: SweepDir) -> list[LedgerRecord]:
    """Blocks, each visit's own record after them, as they were written."""
    ledger = example.ledger()
    ordered: list[LedgerRecord] = []
    for visit in ledger.visits():
        ordered += [block for block in ledger.blocks() if block.visit_id == visit.visit_id]
        ordered.append(visit)
    return ordered


def _take(board: Board, record: LedgerRecord, blocks: list[BlockRecord]) -> None:
    if isinstance(record, BlockRecord):
        if record.visit_id not in board.running:
            board.running[record.visit_id] = _visit(board, record, blocks)
        board.take(MeasuredBlock(record=record, requests=()))
    elif isinstance(record, VisitRecord):
        board.take(FinishedVisit(record=record, server_log=""))


def _visit(board: Board, first: BlockRecord, blocks: list[BlockRecord]) -> Visit:
    return Visit(
        id=first.visit_id,
        arm=board.plan.arm(first.arm_id),
        phase=first.phase,
        node=first.node,
        attempt=first.attempt,
        block_ids=tuple(block.block_id for block in blocks if block.visit_id == first.visit_id),
    )
