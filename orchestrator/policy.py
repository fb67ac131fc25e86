"""Which visit comes next: a pure function of plan, ledger and what is under way."""

import random
from collections.abc import Collection, Sequence

from orchestrator.config import Strict
from orchestrator.ids import content_id
from orchestrator.ledger import LedgerView, measurement_key
from orchestrator.plan import Plan
from orchestrator.records import Arm, Block, Phase, Visit


class Grid(Strict):
    """Every arm, all its blocks, in seeded random order; on each node between two visits of the baseline."""

    seed: int
    max_attempts: int

    def next_visit(
        self, plan: Plan, ledger: LedgerView, started: Sequence[Visit], running: Collection[str], node: str
    ) -> Visit | None:
        """The next visit for the idle `node`, or None while there is nothing for it.

        `started` are the visits of this session, `running` the ids of those under way. None may change once a
        running visit ends: while an arm runs elsewhere it may fail and come here, so this node does not close yet.
        """
        opening = self._visit(plan, ledger, started, plan.baseline, "opening", node)
        if opening:
            return opening
        if not _measured_all(plan, ledger, plan.baseline, "opening", node):
            return None  # without its own baseline a node's figures compare with nothing
        under_way = {visit.arm.id for visit in started if visit.id in running and visit.phase == "arm"}
        for arm in self._shuffled(plan):
            visit = None if arm.id in under_way else self._visit(plan, ledger, started, arm, "arm", node)
            if visit:
                return visit
        if under_way:
            return None
        return self._visit(plan, ledger, started, plan.baseline, "closing", node)

    def is_complete(self, plan: Plan, ledger: LedgerView) -> bool:
        """Whether every arm is measured, between two baselines on every node that measured one."""
        return is_complete(plan, ledger)

    def dropped(self, plan: Plan, ledger: LedgerView) -> dict[tuple[str, str], str]:
        """Nothing: every arm is measured."""
        return {}

    def _shuffled(self, plan: Plan) -> list[Arm]:
        arms = [arm for arm in plan.arms if not arm.is_baseline]
        random.Random(f"{self.seed}/arms").shuffle(arms)
        return arms

    def _visit(
        self, plan: Plan, ledger: LedgerView, started: Sequence[Visit], arm: Arm, phase: Phase, node: str
    ) -> Visit | None:
        same = [v for v in started if (v.arm.id, v.phase) == (arm.id, phase) and (phase == "arm" or v.node == node)]
        if len(same) >= self.max_attempts or _measured_all(plan, ledger, arm, phase, node):
            return None
        missing = missing_blocks(plan, ledger, arm, phase, node)
        attempt = len(same) + 1
        identity = [plan.id, arm.id, phase, node, attempt, [block.id for block in missing]]
        return Visit(
            id=f"{arm.name}-{phase}-{content_id(identity)}",
            arm=arm,
            phase=phase,
            node=node,
            attempt=attempt,
            block_ids=tuple(block.id for block in missing),
        )


def missing_blocks(plan: Plan, ledger: LedgerView, arm: Arm, phase: Phase, node: str) -> list[Block]:
    """Blocks of `arm` without a valid measurement, first blocks of all workloads first, so that a visit that
    ends early has measured something of everything."""
    blocks = [block for block in plan.blocks if not ledger.has(measurement_key(arm.id, block.id, phase, node))]
    return sorted(blocks, key=lambda block: block.index)


def _measured_all(plan: Plan, ledger: LedgerView, arm: Arm, phase: Phase, node: str) -> bool:
    return all(ledger.has(measurement_key(arm.id, block.id, phase, node)) for block in plan.blocks)


def num_measurements(plan: Plan, nodes: Collection[str]) -> int:
    """Block measurements of a whole sweep: the baseline twice on every node, any other arm once."""
    return len(plan.blocks) * (len(plan.arms) - 1 + 2 * len(nodes))


def is_complete(plan: Plan, ledger: LedgerView) -> bool:
    """Whether every arm is measured, between two baselines on every node that measured one."""
    nodes: dict[Phase, set[str]] = {"opening": set(), "arm": set(), "closing": set()}
    for block in ledger.valid_blocks():
        nodes[block.phase].add(block.node)
    measuring = nodes["arm"] or nodes["opening"]
    arms = all(_measured_all(plan, ledger, arm, "arm", "") for arm in plan.arms if not arm.is_baseline)
    closed = all(_measured_all(plan, ledger, plan.baseline, "closing", node) for node in measuring)
    return bool(measuring) and arms and closed
