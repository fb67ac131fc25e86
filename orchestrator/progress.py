"""Follows the boards of a running sweep: one live view on a terminal, a line per visit elsewhere, a file for others."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Console, Group
from rich.live import Live as LiveScreen

from orchestrator.board import Board
from orchestrator.config import SweepConfig
from orchestrator.display import duration, number
from orchestrator.leaders import Leader, leaders
from orchestrator.ledger import measurement_key
from orchestrator.live import Live, RunningVisit
from orchestrator.live_text import live_view, progress_text
from orchestrator.policy import num_measurements
from orchestrator.records import FinishedVisit, MeasuredBlock, Visit, VisitEvent

REFRESH_PER_S = 1
"""Slow on purpose: on a single machine the screen shares its cores with the engine being measured."""


class Progress:
    """Counts what the board takes in; confirmation visits come on top.

    The time left is what this session took per block so far, server starts included, times what is missing. Who leads
    is worked out when a visit ends, while the next server starts: beside a measured block it would take CPU time.
    """

    def __init__(self, config: SweepConfig, board: Board, console: Console) -> None:
        self._config = config
        self._board = board
        self._console = console
        self._begun = time.monotonic()
        self._names = {arm.id: arm.name for arm in board.plan.arms}
        self._workloads = {cell.id: cell.name for cell in board.plan.workloads}
        self._session = 0
        self._visits_done = 0
        self._started_utc: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._said_aside: set[str] = set()
        self._leaders: tuple[Leader, ...] = ()
        board.listeners.append(self._on_event)

    def _on_event(self, event: Visit | VisitEvent) -> None:
        if isinstance(event, Visit):
            self._started_utc[event.id] = _now()
        elif isinstance(event, MeasuredBlock):
            self._on_block(event)
        else:
            self._on_finished(event)
        self._board.sweep_dir.write_live(self.live())

    def _on_block(self, event: MeasuredBlock) -> None:
        record = event.record
        self._session += record.void_reason is None and record.phase != "confirm"
        where = f"{self._workloads[record.workload_id]} block {record.block_index}"
        rate = number(record.output_tokens_per_s)
        self._last[record.visit_id] = record.void_reason or f"{where}: {rate} tokens/s"

    def _on_finished(self, event: FinishedVisit) -> None:
        record = event.record
        name = self._names.get(record.arm_id, "schedule")
        self._visits_done += 1
        self._leaders = leaders(self._config, self._board.plan, self._board.ledger)
        if record.error:
            line = f"{name} on {record.node} failed: {record.error}"
            self._console.print(line, style="yellow", soft_wrap=True, markup=False, highlight=False)
        elif not self._console.is_terminal:
            took = f"{record.num_blocks} blocks in {duration(record.wall_s)}"
            line = f"{name} ({record.phase}) on {record.node}: {took}; {progress_text(self.live())}"
            self._console.print(line, soft_wrap=True, highlight=False)
        self._say_aside()

    def _say_aside(self) -> None:
        for node, reason in self._board.ledger.set_aside.items():
            if node not in self._said_aside:
                self._said_aside.add(node)
                line = f"node {node} is set aside, its blocks are measured elsewhere: {reason}"
                self._console.print(line, style="yellow", soft_wrap=True, markup=False, highlight=False)

    def live(self) -> Live:
        done, total = self._counts()
        spent_s = sum(visit.wall_s for visit in self._board.ledger.visits())
        price = self._config.hardware.usd_per_server_hour
        return Live(
            updated_utc=_now(),
            running=tuple(self._running_visit(visit) for visit in list(self._board.running.values())),
            num_done=done,
            num_blocks=total,
            is_at_most=self._board.policy.may_stop_early,
            left_s=self._left_s(done, total),
            node_hours=spent_s / 3600,
            usd=price * spent_s / 3600 if price else None,
            leaders=self._leaders,
        )

    def _running_visit(self, visit: Visit) -> RunningVisit:
        keys = [measurement_key(visit.arm.id, block, visit.phase, visit.node) for block in visit.block_ids]
        return RunningVisit(
            node=visit.node,
            arm=visit.arm.name,
            phase=visit.phase,
            num_done=sum(self._board.ledger.has(key) for key in keys),
            num_blocks=len(keys),
            started_utc=self._started_utc.get(visit.id) or _now(),
            last=self._last.get(visit.id, "starting the server"),
        )

    def _counts(self) -> tuple[int, int]:
        counting = [block for block in self._board.ledger.valid_blocks() if block.phase != "confirm"]
        nodes = {block.node for block in counting if block.phase != "arm"}
        nodes |= {visit.node for visit in self._board.running.values()} - self._board.ledger.set_aside.keys()
        plan = self._board.plan
        return len(counting), num_measurements(plan, nodes or {"?"}, self._board.policy.max_arms(plan))

    def _left_s(self, done: int, total: int) -> float | None:
        # Before the first visit is done its server start would count for a block or two.
        if not self._visits_done or not self._session or done >= total:
            return None
        return (time.monotonic() - self._begun) / self._session * (total - done)


@contextmanager
def show_progress(sweeps: Sequence[tuple[SweepConfig, Board]], console: Console) -> Iterator[None]:
    """Shows the sweeps' progress on `console` while the block runs."""
    all_progress = [Progress(config, board, console) for config, board in sweeps]
    if not console.is_terminal:
        yield
        return

    def render() -> Group:
        return Group(*(live_view(progress.live()) for progress in all_progress))

    with LiveScreen(console=console, get_renderable=render, refresh_per_second=REFRESH_PER_S, transient=True):
        yield


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
