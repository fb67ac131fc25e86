"""What a sweep may spend: block measurements and node hours, the closing baselines it owes included. Pure."""

from collections.abc import Callable, Collection, Sequence
from statistics import median

from orchestrator.config import Search, Strict
from orchestrator.ledger import Ledger, measurement_key
from orchestrator.plan import Plan
from orchestrator.records import Arm, Visit

SERVER_START_S = 27.0
"""Supposed until the first visit has shown what a server start costs."""

VisitSeconds = Callable[[Arm, Collection[str]], float]
"""Arm, block ids -> the seconds that a visit of them is expected to take."""


class Budget(Strict):
    max_blocks: int | None
    max_node_hours: float | None

    @classmethod
    def of(cls, search: Search) -> "Budget":
        return cls(max_blocks=search.max_blocks, max_node_hours=search.max_node_hours)

    def affords(self, plan: Plan, ledger: Ledger, visits: Sequence[Visit], visit_s: VisitSeconds) -> bool:
        """Whether `visits` and the closing baselines they ask for may be made after what `ledger` has spent."""
        if self.max_blocks is None and self.max_node_hours is None:
            return True
        closing = _closing(plan, ledger, visits)
        ahead = sum(len(each.block_ids) for each in visits) + sum(len(ids) for ids in closing.values())
        if self.max_blocks is not None and len(ledger.valid_blocks()) + ahead > self.max_blocks:
            return False
        spent_s = sum(done.wall_s for done in ledger.visits())
        ahead_s = sum(visit_s(each.arm, each.block_ids) for each in visits)
        ahead_s += sum(visit_s(plan.baseline, ids) for ids in closing.values() if ids)
        return self.max_node_hours is None or spent_s + ahead_s <= 3600 * self.max_node_hours


def server_start_s(ledger: Ledger) -> float:
    """Seconds of a visit besides its blocks: start, warm-up and stop."""
    overheads = [visit.wall_s - visit.blocks_s for visit in ledger.visits() if visit.error is None]
    return median(overheads) if overheads else SERVER_START_S


def _closing(plan: Plan, ledger: Ledger, planned: Sequence[Visit]) -> dict[str, set[str]]:
    """Node -> ids of the blocks that its closing baseline still owes, once `planned` is measured."""
    owed: dict[str, set[str]] = {}
    for block in ledger.valid_blocks():
        if block.phase == "arm":
            owed.setdefault(block.node, set()).add(block.block_id)
    for visit in planned:
        if visit.phase == "arm":
            owed.setdefault(visit.node, set()).update(visit.block_ids)
    return {
        node: {id_ for id_ in ids if not ledger.has(measurement_key(plan.baseline.id, id_, "closing", node))}
        for node, ids in owed.items()
    }
