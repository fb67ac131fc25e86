"""What speaks against a sweep's figures: void blocks, failed visits, and a baseline that drifted."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.display import arm_name
from orchestrator.ledger import LedgerView
from orchestrator.plan import Plan


class _Work(NamedTuple):
    """All that is kept of a block: there may be a great many."""

    output_tokens: int
    wall_s: float


@dataclass(frozen=True)
class VoidBlock:
    arm: str
    workload: str
    block_index: int
    node: str
    reason: str


@dataclass(frozen=True)
class FailedVisit:
    arm: str
    node: str
    attempt: int
    error: str
    server_log: str | None


@dataclass(frozen=True)
class Drift:
    """The baseline on one node, on the blocks measured both at the start and at the end."""

    workload: str
    node: str
    num_blocks: int
    opening_tokens_per_s: float
    closing_tokens_per_s: float

    @property
    def change(self) -> float:
        """closing / opening - 1."""
        return self.closing_tokens_per_s / self.opening_tokens_per_s - 1


def void_blocks(plan: Plan, ledger: LedgerView) -> list[VoidBlock]:
    arms, workloads = _arm_names(plan), _workload_names(plan)
    return [
        VoidBlock(
            arm=arms.get(block.arm_id, block.arm_id),
            workload=workloads.get(block.workload_id, block.workload_id),
            block_index=block.block_index,
            node=block.node,
            reason=block.void_reason or "",
        )
        for block in ledger.void_blocks()
    ]


def failed_visits(plan: Plan, ledger: LedgerView) -> list[FailedVisit]:
    arms = _arm_names(plan)
    return [
        FailedVisit(
            arms.get(visit.arm_id, visit.arm_id), visit.node, visit.attempt, visit.error, server_log=visit.server_log
        )
        for visit in ledger.visits()
        if visit.error is not None
    ]


def baseline_drift(plan: Plan, ledger: LedgerView) -> list[Drift]:
    """One entry a workload and node that has both ends; empty where the closing baseline was not measured."""
    ends: dict[tuple[str, str], dict[str, dict[str, _Work]]] = defaultdict(lambda: {"opening": {}, "closing": {}})
    for block in ledger.valid_blocks():
        if block.phase != "arm":
            work = _Work(block.output_tokens, block.wall_s)
            ends[block.workload_id, block.node][block.phase][block.block_id] = work
    names = _workload_names(plan)
    drifts = []
    for (workload_id, node), phases in ends.items():
        common = sorted(phases["opening"].keys() & phases["closing"].keys())
        if common:
            opening = _tokens_per_s([phases["opening"][block_id] for block_id in common])
            closing = _tokens_per_s([phases["closing"][block_id] for block_id in common])
            drifts.append(Drift(names.get(workload_id, workload_id), node, len(common), opening, closing))
    return drifts


def _tokens_per_s(blocks: Sequence[_Work]) -> float:
    return sum(block.output_tokens for block in blocks) / sum(block.wall_s for block in blocks)


def _arm_names(plan: Plan) -> dict[str, str]:
    return {arm.id: arm_name(arm) for arm in plan.arms}


def _workload_names(plan: Plan) -> dict[str, str]:
    return {workload.id: workload.name for workload in plan.workloads}
