"""What runs, what is done, how long it will take: one live table on a terminal, a line per visit elsewhere."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from orchestrator.board import Board
from orchestrator.display import duration, number
from orchestrator.ledger import measurement_key
from orchestrator.policy import num_measurements
from orchestrator.records import MeasuredBlock, VisitEvent

REFRESH_PER_S = 1
"""Slow on purpose: on a single machine the screen shares its cores with the engine being measured."""


class Progress:
    """Counts what the board takes in; confirmation visits come on top.

    The time left is what this session took per block so far, server starts included, times what is missing.
    """

    def __init__(self, board: Board, console: Console) -> None:
        self._board = board
        self._console = console
        self._begun = time.monotonic()
        self._names = {arm.id: arm.name for arm in board.plan.arms}
        self._workloads = {cell.id: cell.name for cell in board.plan.workloads}
        self._session = 0
        self._visits_done = 0
        self._last: dict[str, str] = {}
        self._said_aside: set[str] = set()
        board.listeners.append(self._on_event)

    def _on_event(self, event: VisitEvent) -> None:
        record = event.record
        name = self._names.get(record.arm_id, "schedule")
        if isinstance(event, MeasuredBlock):
            self._session += event.record.void_reason is None and event.record.phase != "confirm"
            rate = number(event.record.output_tokens_per_s)
            where = f"{self._workloads[event.record.workload_id]} block {event.record.block_index}"
            self._last[record.visit_id] = event.record.void_reason or f"{where}: {rate} tokens/s"
            return
        self._visits_done += 1
        if event.record.error:
            line = f"{name} on {record.node} failed: {event.record.error}"
            self._console.print(line, style="yellow", soft_wrap=True, markup=False, highlight=False)
        elif not self._console.is_terminal:
            took = f"{event.record.num_blocks} blocks in {duration(event.record.wall_s)}"
            line = f"{name} ({record.phase}) on {record.node}: {took}; {self._done_text()}"
            self._console.print(line, soft_wrap=True, highlight=False)
        self._say_aside()

    def _say_aside(self) -> None:
        for node, reason in self._board.ledger.set_aside.items():
            if node not in self._said_aside:
                self._said_aside.add(node)
                line = f"node {node} is set aside, its blocks are measured elsewhere: {reason}"
                self._console.print(line, style="yellow", soft_wrap=True, markup=False, highlight=False)

    def _counts(self) -> tuple[int, int]:
        counting = [block for block in self._board.ledger.valid_blocks() if block.phase != "confirm"]
        nodes = {block.node for block in counting if block.phase != "arm"}
        nodes |= {visit.node for visit in self._board.running.values()} - self._board.ledger.set_aside.keys()
        plan = self._board.plan
        return len(counting), num_measurements(plan, nodes or {"?"}, self._board.policy.max_arms(plan))

    def _done_text(self) -> str:
        done, total = self._counts()
        at_most = "at most " if self._board.policy.may_stop_early else ""
        text = f"{done} of {at_most}{total} blocks"
        # Before the first visit is done its server start would count for a block or two.
        if self._visits_done and self._session and done < total:
            left_s = (time.monotonic() - self._begun) / self._session * (total - done)
            text += f", {at_most}about {duration(left_s)} left"
        return text

    def render(self) -> Group:
        done, total = self._counts()
        table = Table.grid(padding=(0, 2))
        for visit in list(self._board.running.values()):
            keys = [measurement_key(visit.arm.id, block, visit.phase, visit.node) for block in visit.block_ids]
            measured = sum(self._board.ledger.has(key) for key in keys)
            last = self._last.get(visit.id, "starting the server")
            table.add_row(visit.node, visit.arm.name, visit.phase, f"{measured}/{len(keys)}", last)
        bar = Table.grid(padding=(0, 2))
        bar.add_row(ProgressBar(total=total, completed=done, width=30), self._done_text())
        return Group(table, bar)


@contextmanager
def show_progress(boards: Sequence[Board], console: Console) -> Iterator[None]:
    """Shows the boards' progress on `console` while the block runs."""
    all_progress = [Progress(board, console) for board in boards]
    if not console.is_terminal:
        yield
        return

    def render() -> Group:
        return Group(*(progress.render() for progress in all_progress))

    with Live(console=console, get_renderable=render, refresh_per_second=REFRESH_PER_S, transient=True):
        yield
