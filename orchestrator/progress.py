"""Follows the boards of a running sweep: one live view on a terminal, a line per visit elsewhere, a file for others."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Console, Group
from rich.live import Live as LiveScreen

from orchestrator.board import Board
from orchestrator.config import SweepConfig
from orchestrator.display import duration, number
from orchestrator.ending import said_at_interrupt
from orchestrator.leaders import Leader, leaders
from orchestrator.ledger import measurement_key
from orchestrator.live import Live, RunningVisit
from orchestrator.live_text import live_view, progress_text
from orchestrator.pace import Foreseen
from orchestrator.records import FinishedVisit, MeasuredBlock, Visit, VisitEvent
from orchestrator.time_left import TimeLeft
from orchestrator.to_come import Dropped, to_come

REFRESH_PER_S = 1
"""Slow on purpose: on a single machine the screen shares its cores with the engine being measured."""

ENDING = "stopping: ending the servers"


class Progress:
    """Counts what the board takes in; confirmation visits come on top.

    Who leads, and what is dropped, is worked out when a visit ends, while the next server starts: beside a measured
    block it would take CPU time.
    """

    def __init__(
        self,
        config: SweepConfig,
        board: Board,
        console: Console,
        foreseen: Foreseen | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._board, self._console, self._clock = config, board, console, clock
        self._names = {arm.id: arm.name for arm in board.plan.arms}
        self._workloads = {cell.id: cell.name for cell in board.plan.workloads}
        self._time_left = TimeLeft(config, board.plan, board.policy, foreseen)
        self._time_left.read(board.ledger)
        self._started_utc: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._void: defaultdict[str, list[str]] = defaultdict(list)
        """Visit id -> why blocks of it are void."""
        self._said_aside: set[str] = set()
        self._leaders: tuple[Leader, ...] = ()
        self._dropped: Dropped = {}
        if board.ledger.num_records:
            self._look_at_arms()
        self._look_ahead()
        board.sweep_dir.write_live(self.live())  # in the place of what an earlier session left
        board.listeners.append(self._on_event)

    def _on_event(self, event: Visit | VisitEvent) -> None:
        if isinstance(event, Visit):
            self._started_utc[event.id] = _now()
            self._time_left.begin(event, self._clock())
        elif isinstance(event, MeasuredBlock):
            self._on_block(event)
        else:
            self._on_finished(event)
        self._look_ahead()
        self._board.sweep_dir.write_live(self.live())
        if isinstance(event, FinishedVisit):
            self._say(event)

    def _on_block(self, event: MeasuredBlock) -> None:
        record = event.record
        self._time_left.note_block(record)
        void = self._void[record.visit_id]
        if record.void_reason:
            void.append(record.void_reason)
            self._last[record.visit_id] = f"{_void_text(void, record.attempt, self._most_attempts)}: {void[-1]}"
        else:
            where = f"{self._workloads[record.workload_id]} block {record.block_index}"
            self._last[record.visit_id] = f"{where}: {number(record.output_tokens_per_s)} tokens/s"
            if void:
                self._last[record.visit_id] += f"; {_void_text(void, record.attempt, self._most_attempts)}"

    def _on_finished(self, event: FinishedVisit) -> None:
        self._time_left.note_visit(event.record)
        self._look_at_arms()

    def _look_at_arms(self) -> None:
        plan, ledger = self._board.plan, self._board.ledger
        self._dropped = self._board.policy.dropped(plan, ledger)
        self._leaders = leaders(self._config, plan, ledger, self._dropped)

    def _look_ahead(self) -> None:
        board = self._board
        self._to_come = to_come(
            board.plan, board.ledger, board.policy, self._time_left.running, self._dropped, board.live
        )
        self._time_left.update(self._to_come, board.ledger)

    @property
    def _most_attempts(self) -> int:
        return self._config.search.max_attempts

    def _say(self, event: FinishedVisit) -> None:
        record = event.record
        name = self._names.get(record.arm_id, "schedule")
        if record.error:
            self._warn(f"{name} on {record.node} failed: {record.error}")
        elif not self._console.is_terminal:
            took = f"{record.num_blocks} blocks in {duration(record.wall_s)}"
            line = f"{name} ({record.phase}) on {record.node}: {took}; {progress_text(self.live())}"
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)
        if void := self._void.pop(record.visit_id, None):
            told = _void_text(void, record.attempt, self._most_attempts, f"of {record.num_blocks} blocks ")
            self._warn(f"{name} on {record.node}: {told}: {_reasons(void)}")
        self._say_aside()

    def _warn(self, line: str) -> None:
        self._console.print(line, style="yellow", soft_wrap=True, markup=False, highlight=False)

    def _say_aside(self) -> None:
        for node, reason in self._board.ledger.set_aside.items():
            if node not in self._said_aside:
                self._said_aside.add(node)
                self._warn(f"node {node} is set aside, its blocks are measured elsewhere: {reason}")

    def live(self) -> Live:
        spent_s = sum(visit.wall_s for visit in self._board.ledger.visits())
        price, left = self._config.hardware.usd_per_server_hour, self._time_left.left(self._clock())
        return Live(
            updated_utc=_now(),
            running=tuple(self._running_visit(visit) for visit in list(self._board.running.values())),
            num_done=self._to_come.num_done,
            num_blocks=self._to_come.num_blocks,
            is_at_most=self._board.policy.may_stop_early,
            left_s=left.expected_s if left else None,
            at_most_left_s=left.at_most_s if left else None,
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
            num_void=len(self._void.get(visit.id, ())),
        )


def _void_text(void: Sequence[str], attempt: int, most: int, of: str = "") -> str:
    """`2 of 8 blocks are void, to be measured again`"""
    given_up = f"after {most} attempts; the same command tries again"
    again = "to be measured again" if attempt < most else given_up
    return f"{len(void)} {of}{'is' if len(void) == 1 else 'are'} void, {again}"


def _reasons(void: Sequence[str]) -> str:
    """Blocks of a visit are mostly void for one reason, in other figures."""
    return void[0] if len(set(void)) == 1 else f"the last because {void[-1]}"


@contextmanager
def show_progress(sweeps: Sequence[tuple[SweepConfig, Board, Foreseen | None]], console: Console) -> Iterator[None]:
    """Shows the sweeps' progress on `console` while the block runs."""
    all_progress = [Progress(config, board, console, foreseen) for config, board, foreseen in sweeps]
    if not console.is_terminal:
        with said_at_interrupt(ENDING):
            yield
        return

    def render() -> Group:
        width, height = console.size
        each = (height - 1) // len(all_progress)
        return Group(*(live_view(progress.live(), width=width, height=each) for progress in all_progress))

    screen = LiveScreen(console=console, get_renderable=render, refresh_per_second=REFRESH_PER_S, transient=True)
    with screen, said_at_interrupt(ENDING, screen.stop):
        yield


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
