"""What a running sweep has still to measure besides what is under way, as plan, ledger and search have it now. Pure."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from orchestrator.ledger import LedgerView, measurement_key
from orchestrator.plan import Plan
from orchestrator.policy import Policy
from orchestrator.records import Arm, Block, Phase, Visit

Dropped = Mapping[tuple[str, str], str]
"""As `Policy.dropped`."""
NO_NODE_YET = "?"
"""The one node that there will be at least."""


@dataclass(frozen=True)
class ToCome:
    """Visits that are to begin, by their blocks; confirmations, which only the selection knows, come on top."""

    nodes: Set[str]
    """Those that measure, or measured, and are there."""
    openings: Mapping[str, Sequence[Block]]
    """Node -> what its baseline lacks; nodes without any are left out. So for `closings`."""
    arms: Sequence[tuple[Arm, Sequence[Block]]]
    """At most: a search that may stop early may need fewer."""
    closings: Mapping[str, Sequence[Block]]
    num_done: int
    """Valid blocks, confirmations left out."""
    num_under_way: int
    """Blocks that running visits have before them, likewise."""
    num_arms_begun: int
    num_arm_blocks_begun: int
    """Valid ones of arms, and those that running visits have before them."""

    @property
    def num_blocks(self) -> int:
        """Of the whole sweep, at most."""
        ahead = [*self.openings.values(), *(blocks for _, blocks in self.arms), *self.closings.values()]
        return self.num_done + self.num_under_way + sum(map(len, ahead))


def to_come(
    plan: Plan,
    ledger: LedgerView,
    policy: Policy,
    running: Sequence[tuple[Visit, Sequence[str]]],
    dropped: Dropped,
    live: Set[str],
) -> ToCome:
    """All that is missing.

    Args:
        running: visits, and the ids of the blocks that each has still before it. A block that came back void is
            before no visit, so it is to come again.
        dropped: what the search will not measure.
        live: the nodes that are there; empty where that is not known.
    """
    aside = ledger.set_aside
    at_work = [(visit, ahead) for visit, ahead in running if visit.node not in aside]
    valid = [block for block in ledger.valid_blocks() if block.phase != "confirm"]
    measured = {block.node for block in valid if block.phase != "arm"}
    nodes = ((measured & live if live else measured) | {visit.node for visit, _ in at_work}) or {NO_NODE_YET}
    claimed = {
        measurement_key(visit.arm.id, block_id, visit.phase, visit.node)
        for visit, ahead in at_work
        for block_id in ahead
    }

    def missing(arm: Arm, phase: Phase, node: str) -> list[Block]:
        keys = ((block, measurement_key(arm.id, block.id, phase, node)) for block in plan.blocks)
        return [block for block, key in keys if key not in claimed and not ledger.has(key)]

    begun = {block.arm_id for block in valid if block.phase == "arm"}
    begun |= {visit.arm.id for visit, _ in at_work if visit.phase == "arm"}
    under_way = [len(ahead) for visit, ahead in at_work if visit.phase != "confirm"]
    of_arms = [len(ahead) for visit, ahead in at_work if visit.phase == "arm"]
    open_arms = _open_arms(plan, policy, begun)
    arms = [(arm, blocks) for arm in open_arms if (blocks := _kept(arm, missing(arm, "arm", ""), dropped))]
    compared = {block.block_id for block in valid if block.phase == "arm"}
    compared |= {block_id for visit, ahead in at_work for block_id in ahead if visit.phase in ("arm", "confirm")}
    compared |= {block.id for _, blocks in arms for block in blocks}
    if len(plan.arms) == 1:
        compared = {block.id for block in plan.blocks}

    def of_baseline(phase: Phase) -> dict[str, list[Block]]:
        found = {node: missing(plan.baseline, phase, node) for node in sorted(nodes)}
        kept = {node: [block for block in blocks if block.id in compared] for node, blocks in found.items()}
        return {node: blocks for node, blocks in kept.items() if blocks}

    return ToCome(
        nodes=nodes,
        openings=of_baseline("opening"),
        arms=arms,
        closings=of_baseline("closing"),
        num_done=len(valid),
        num_under_way=sum(under_way),
        num_arms_begun=len(begun),
        num_arm_blocks_begun=sum(block.phase == "arm" for block in valid) + sum(of_arms),
    )


def _open_arms(plan: Plan, policy: Policy, begun: Set[str]) -> list[Arm]:
    """Those that were begun, and as many others as may be measured."""
    others = [arm for arm in plan.arms if not arm.is_baseline and arm.id not in begun]
    left = max(0, policy.max_arms(plan) - len(begun))
    return [arm for arm in plan.arms if arm.id in begun] + others[:left]


def _kept(arm: Arm, blocks: Sequence[Block], dropped: Dropped) -> list[Block]:
    return [block for block in blocks if (arm.id, block.workload_id) not in dropped]
