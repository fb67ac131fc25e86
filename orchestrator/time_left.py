"""How long a running sweep still takes. Pure; clock times are handed in.

What runs takes what its visit is expected to, less what has passed of it: seconds go down one by one, whatever a server
start takes, and stand still where something takes longer. What comes after it is what plan and ledger say is missing.
"""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import NamedTuple

from orchestrator.budget import Budget
from orchestrator.config import SweepConfig
from orchestrator.forecast import CONFIRMATIONS, typical_arms
from orchestrator.ledger import LedgerView
from orchestrator.pace import Foreseen, Pace
from orchestrator.plan import Plan
from orchestrator.policy import Policy, num_first
from orchestrator.records import Arm, Block, BlockRecord, Visit, VisitRecord
from orchestrator.to_come import ToCome


class Left(NamedTuple):
    """Seconds of wall time."""

    expected_s: float
    at_most_s: float
    """Every arm that is not dropped over all its blocks, and every confirmation."""


@dataclass
class _Begun:
    """A visit that runs."""

    visit: Visit
    at_s: float
    took_s: float = 0.0
    """Its blocks that came back, void ones included: the first `num_seen`."""
    num_seen: int = 0

    @property
    def ahead(self) -> Sequence[str]:
        return self.visit.block_ids[self.num_seen :]


@dataclass(frozen=True)
class _Ahead:
    """Seconds of the visits to come."""

    nodes: Sequence[str]
    openings: Mapping[str, float]
    """Node -> its baseline's."""
    arms: Sequence[float]
    """At most."""
    typical_arms: Sequence[float]
    confirmation_s: float
    confirmations: int
    """At most; of two one is expected, of one none."""
    closing_s: float
    node_s: float
    """What the search's own budget leaves for these and for what runs."""


class TimeLeft:
    """Told of every visit that begins and of all that comes back; `update` then takes in what is to come."""

    def __init__(self, config: SweepConfig, plan: Plan, policy: Policy, foreseen: Foreseen | None) -> None:
        self._config, self._plan, self._policy = config, plan, policy
        self._pace = Pace(plan, foreseen)
        self._blocks = {block.id: block for block in plan.blocks}
        self._begun: dict[str, _Begun] = {}
        self._ahead: _Ahead | None = None

    def read(self, ledger: LedgerView) -> None:
        """What earlier sessions measured."""
        for block in ledger.blocks():
            self._pace.note_block(block)
        for visit in ledger.visits():
            self._pace.note_visit(visit)

    def begin(self, visit: Visit, now_s: float) -> None:
        self._begun[visit.id] = _Begun(visit, now_s)

    def note_block(self, block: BlockRecord) -> None:
        self._pace.note_block(block)
        begun = self._begun.get(block.visit_id)
        if begun:
            begun.took_s += block.wall_s
            begun.num_seen += 1

    def note_visit(self, visit: VisitRecord) -> None:
        self._pace.note_visit(visit)
        self._begun.pop(visit.visit_id, None)

    @property
    def running(self) -> list[tuple[Visit, Sequence[str]]]:
        """Visits, and the blocks that each has still before it."""
        return [(begun.visit, begun.ahead) for begun in self._begun.values()]

    def update(self, ahead: ToCome, ledger: LedgerView) -> None:
        """Price what is to come. Nothing of it changes until the next event."""
        self._ahead = self._priced(ahead, ledger)

    def _priced(self, ahead: ToCome, ledger: LedgerView) -> _Ahead | None:
        is_done = not self._begun and ahead.num_done == ahead.num_blocks
        if is_done or self._pace.visit_s(self._plan.baseline, self._plan.blocks) is None:
            return None
        arms = [self._visit_s(arm, blocks) for arm, blocks in ahead.arms]
        closings = [self._visit_s(self._plan.baseline, blocks) for blocks in ahead.closings.values()]
        return _Ahead(
            nodes=sorted(ahead.nodes),
            openings={node: self._visit_s(self._plan.baseline, found) for node, found in ahead.openings.items()},
            arms=arms,
            typical_arms=_first(arms, self._typical_s(ahead)) if self._policy.may_stop_early else arms,
            confirmation_s=self._confirmation_s(),
            confirmations=self._num_confirmations(ledger, is_closing=bool(ahead.nodes) and not closings),
            closing_s=max(closings, default=0.0),
            node_s=self._budget_s(ledger),
        )

    def left(self, now_s: float) -> Left | None:
        """None where neither a forecast nor a measured block tells, and where all is done."""
        ahead = self._ahead
        if ahead is None:
            return None
        free = defaultdict(float, {node: ahead.openings.get(node, 0.0) for node in ahead.nodes})
        running = list(self._begun.values())  # a screen asks from a thread of its own
        for begun in running:
            free[begun.visit.node] += self._running_s(begun, now_s)
        busy = list(free.values())
        most_s = _wall_s(busy, ahead.arms, [ahead.confirmation_s] * ahead.confirmations) + ahead.closing_s
        expected = [ahead.confirmation_s] * (ahead.confirmations // 2)
        expected_s = _wall_s(busy, ahead.typical_arms, expected) + ahead.closing_s
        limit_s = max(0.0, ahead.node_s - sum(now_s - begun.at_s for begun in running)) / len(busy)
        return Left(min(expected_s, limit_s), min(most_s, limit_s))

    def _running_s(self, begun: _Begun, now_s: float) -> float:
        """Of what it has still to do: no less than its blocks after the one that it is at."""
        ahead = [self._pace.block_s(begun.visit.arm, self._blocks[block_id]) or 0.0 for block_id in begun.ahead]
        whole_s = self._pace.overhead_s(begun.visit.arm) + begun.took_s + sum(ahead)
        return max(whole_s - (now_s - begun.at_s), sum(ahead[1:]))

    def _visit_s(self, arm: Arm, blocks: Sequence[Block]) -> float:
        return self._pace.visit_s(arm, blocks) or 0.0

    def _typical_s(self, ahead: ToCome) -> float:
        """Of the arms to come: what a search of this size typically takes for its arms, less those that were begun."""
        arms = [arm for arm in self._plan.arms if not arm.is_baseline]
        if not arms:
            return 0.0
        whole_s = fmean(self._visit_s(arm, self._plan.blocks) for arm in arms)
        start_s = fmean(self._pace.overhead_s(arm) for arm in arms)
        block_s = (whole_s - start_s) / len(self._plan.blocks)
        typical = typical_arms(self._config, self._policy.max_arms(self._plan)) * whole_s
        return max(0.0, typical - ahead.num_arms_begun * start_s - ahead.num_arm_blocks_begun * block_s)

    def _confirmation_s(self) -> float:
        number = num_first(self._config.search, self._config.selection)
        first = [block for block in self._plan.blocks if block.index < number]
        arms = [arm for arm in self._plan.arms if not arm.is_baseline]
        return fmean(self._visit_s(arm, first) for arm in arms) if arms else 0.0

    def _num_confirmations(self, ledger: LedgerView, *, is_closing: bool) -> int:
        """They come before the closing baseline."""
        if is_closing or not self._config.search.confirm or len(self._plan.arms) == 1:
            return 0
        made = {visit.arm_id for visit in ledger.visits() if visit.phase == "confirm" and visit.error is None}
        made |= {begun.visit.arm.id for begun in self._begun.values() if begun.visit.phase == "confirm"}
        return max(0, CONFIRMATIONS - len(made))

    def _budget_s(self, ledger: LedgerView) -> float:
        hours = Budget.of(self._config).max_node_hours
        return inf if hours is None else 3600 * hours - sum(visit.wall_s for visit in ledger.visits())


def _first(visits: Sequence[float], seconds: float) -> list[float]:
    """The first ones that fill `seconds`, the last of them cut."""
    found = []
    for visit_s in visits:
        if seconds <= 0:
            break
        found.append(min(visit_s, seconds))
        seconds -= visit_s
    return found


def _wall_s(busy: Sequence[float], arms: Sequence[float], confirmations: Sequence[float]) -> float:
    """Each next visit goes to the server that is free first; confirmations begin once the arms are measured."""
    measured_s = _spread(busy, arms)
    return _spread([measured_s] * len(busy), confirmations)


def _spread(busy: Sequence[float], visits: Sequence[float]) -> float:
    free = list(busy)
    heapq.heapify(free)
    for visit_s in visits:
        heapq.heapreplace(free, free[0] + visit_s)
    return max(free)
