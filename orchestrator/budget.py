"""What a sweep may spend: block measurements and node hours, the closing baselines it owes included. Pure."""

from collections.abc import Callable, Collection, Sequence
from statistics import median

from orchestrator.config import Strict, SweepConfig
from orchestrator.ledger import LedgerView
from orchestrator.plan import Plan
from orchestrator.records import Arm, Visit

SERVER_START_S = 27.0
"""Supposed until the first visit has shown what a server start costs."""

VisitSeconds = Callable[[Arm, Collection[str]], float]
"""Arm, block ids -> the seconds that a visit of them is expected to take."""


class Budget(Strict):
    """Closing baselines count as what they are expected to take, whether they ran or not: else a sweep that has spent
    its budget might find some left once it has closed."""

    max_blocks: int | None
    max_node_hours: float | None

    @classmethod
    def of(cls, config: SweepConfig) -> "Budget":
        """`config.search`'s, dollars turned into hours by the price of a server."""
        search, price = config.search, config.hardware.usd_per_server_hour
        paid_for = search.max_usd / price if search.max_usd is not None and price is not None else None
        hours = [limit for limit in (search.max_node_hours, paid_for) if limit is not None]
        return cls(max_blocks=search.max_blocks, max_node_hours=min(hours, default=None))

    @property
    def is_limited(self) -> bool:
        return self.max_blocks is not None or self.max_node_hours is not None

    def affords(self, plan: Plan, ledger: LedgerView, visits: Sequence[Visit], visit_s: VisitSeconds) -> bool:
        """Whether `visits` and the closing baselines they ask for may be made after what `ledger` has spent."""
        if not self.is_limited:
            return True
        ahead = [visit for visit in visits if visit.phase != "closing"]
        closing = _closing(ledger, ahead)
        num_blocks = sum(block.phase != "closing" for block in ledger.valid_blocks())
        num_blocks += sum(len(visit.block_ids) for visit in ahead) + sum(map(len, closing.values()))
        if self.max_blocks is not None and num_blocks > self.max_blocks:
            return False
        seconds = sum(visit.wall_s for visit in ledger.visits() if visit.phase != "closing")
        seconds += sum(visit_s(visit.arm, visit.block_ids) for visit in ahead)
        seconds += sum(visit_s(plan.baseline, ids) for ids in closing.values())
        return self.max_node_hours is None or seconds <= 3600 * self.max_node_hours


def server_start_s(ledger: LedgerView) -> float:
    """Seconds of a visit besides its blocks: start, warm-up and stop."""
    overheads = [v.wall_s - v.blocks_s for v in ledger.visits() if v.error is None and v.phase != "closing"]
    return median(overheads) if overheads else SERVER_START_S


def _closing(ledger: LedgerView, ahead: Sequence[Visit]) -> dict[str, set[str]]:
    """Node -> ids of the blocks of its closing baseline, once `ahead` is measured."""
    closing: dict[str, set[str]] = {}
    for block in ledger.valid_blocks():
        if block.phase in ("arm", "confirm"):
            closing.setdefault(block.node, set()).add(block.block_id)
    for visit in ahead:
        if visit.phase in ("arm", "confirm"):
            closing.setdefault(visit.node, set()).update(visit.block_ids)
    return closing
