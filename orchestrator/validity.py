"""What speaks against a sweep's figures: void blocks and failed visits."""

from dataclasses import dataclass

from orchestrator.display import arm_name
from orchestrator.ledger import Ledger
from orchestrator.plan import Plan


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


def void_blocks(plan: Plan, ledger: Ledger) -> list[VoidBlock]:
    arms, workloads = _arm_names(plan), _workload_names(plan)
    return [
        VoidBlock(
            arm=arms.get(block.arm_id, block.arm_id),
            workload=workloads.get(block.workload_id, block.workload_id),
            block_index=block.block_index,
            node=block.node,
            reason=block.void_reason,
        )
        for block in ledger.blocks()
        if block.void_reason is not None
    ]


def failed_visits(plan: Plan, ledger: Ledger) -> list[FailedVisit]:
    arms = _arm_names(plan)
    return [
        FailedVisit(
            arms.get(visit.arm_id, visit.arm_id), visit.node, visit.attempt, visit.error, server_log=visit.server_log
        )
        for visit in ledger.visits()
        if visit.error is not None
    ]


def _arm_names(plan: Plan) -> dict[str, str]:
    return {arm.id: arm_name(arm) for arm in plan.arms}


def _workload_names(plan: Plan) -> dict[str, str]:
    return {workload.id: workload.name for workload in plan.workloads}
