"""Which visit comes next: a pure function of plan, ledger and what is under way."""

import random
from collections.abc import Collection, Sequence
from typing import Protocol

from orchestrator.config import Search, SelectionRules, Strict
from orchestrator.ids import content_id
from orchestrator.ledger import Ledger, measurement_key
from orchestrator.plan import Plan
from orchestrator.records import Arm, Block, Phase, Visit


class Policy(Protocol):
    """Decides from plan and ledger alone, so that a sweep can go on from them at any time."""

    def next_visit(
        self, plan: Plan, ledger: Ledger, started: Sequence[Visit], running: Collection[str], node: str
    ) -> Visit | None:
        """The next visit for the idle `node`; see `Grid.next_visit`."""
        ...

    def is_complete(self, plan: Plan, ledger: Ledger) -> bool:
        """Whether nothing is left to measure."""
        ...

    def dropped(self, plan: Plan, ledger: Ledger) -> dict[tuple[str, str], str]:
        """(arm id, workload id) -> why the arm is not measured (further) there, where that was decided."""
        ...

    def affords(self, plan: Plan, ledger: Ledger, visits: Sequence[Visit]) -> bool:
        """Whether the budget takes `visits` and the closing baselines they ask for."""
        ...


class Grid(Strict):
    """Every arm, all its blocks, in seeded random order; on each node between two visits of the baseline."""

    seed: int
    max_attempts: int

    def next_visit(
        self, plan: Plan, ledger: Ledger, started: Sequence[Visit], running: Collection[str], node: str
    ) -> Visit | None:
        """The next visit for the idle `node`, or None while there is nothing for it.

        `started` are the visits of this session, `running` the ids of those under way. None may change once a
        running visit ends: while an arm runs elsewhere it may fail and come here, so this node does not close yet.
        """
        opening = self._visit(plan, ledger, started, plan.baseline, "opening", node)
        if opening:
            return opening
        if not _measured_all(plan, ledger, "opening", node):
            return None  # without its own baseline a node's figures compare with nothing
        under_way = {visit.arm.id for visit in started if visit.id in running and visit.phase == "arm"}
        for arm in self._shuffled(plan):
            visit = None if arm.id in under_way else self._visit(plan, ledger, started, arm, "arm", node)
            if visit:
                return visit
        if under_way:
            return None
        return self._visit(plan, ledger, started, plan.baseline, "closing", node)

    def is_complete(self, plan: Plan, ledger: Ledger) -> bool:
        """Whether every arm is measured, between two baselines on every node that measured one."""
        return is_complete(plan, ledger)

    def dropped(self, plan: Plan, ledger: Ledger) -> dict[tuple[str, str], str]:
        """Nothing: every arm is measured."""
        return {}

    def affords(self, plan: Plan, ledger: Ledger, visits: Sequence[Visit]) -> bool:
        """Anything: the grid has no budget."""
        return True

    def _shuffled(self, plan: Plan) -> list[Arm]:
        arms = [arm for arm in plan.arms if not arm.is_baseline]
        random.Random(f"{self.seed}/arms").shuffle(arms)
        return arms

    def _visit(
        self, plan: Plan, ledger: Ledger, started: Sequence[Visit], arm: Arm, phase: Phase, node: str
    ) -> Visit | None:
        same = [v for v in started if (v.arm.id, v.phase) == (arm.id, phase) and (phase == "arm" or v.node == node)]
        missing = missing_blocks(plan, ledger, arm, phase, node)
        if not missing or len(same) >= self.max_attempts:
            return None
        return make_visit(plan, arm, phase, node, len(same) + 1, missing)


def make_visit(plan: Plan, arm: Arm, phase: Phase, node: str, attempt: int, blocks: Sequence[Block]) -> Visit:
    """A visit whose id says what it is, the same whenever it is asked for again."""
    block_ids = tuple(block.id for block in blocks)
    identity = [plan.id, arm.id, phase, node, attempt, list(block_ids)]
    return Visit(
        id=f"{arm.name}-{phase}-{content_id(identity)}",
        arm=arm,
        phase=phase,
        node=node,
        attempt=attempt,
        block_ids=block_ids,
    )


def num_first(search: Search, rules: SelectionRules) -> int:
    """Blocks an arm gets at first: fewer than the selection's minimum would always have to be followed up."""
    return max(search.first_blocks, rules.min_blocks)


def missing_blocks(plan: Plan, ledger: Ledger, arm: Arm, phase: Phase, node: str) -> list[Block]:
    """Blocks of `arm` without a valid measurement, first blocks of all workloads first, so that a visit that
    ends early has measured something of everything."""
    blocks = [block for block in plan.blocks if not ledger.has(measurement_key(arm.id, block.id, phase, node))]
    return sorted(blocks, key=lambda block: block.index)


def _measured_all(plan: Plan, ledger: Ledger, phase: Phase, node: str) -> bool:
    return not missing_blocks(plan, ledger, plan.baseline, phase, node)


def num_measurements(plan: Plan, nodes: Collection[str]) -> int:
    """Block measurements of a whole sweep: the baseline twice on every node, any other arm once."""
    return len(plan.blocks) * (len(plan.arms) - 1 + 2 * len(nodes))


def is_complete(plan: Plan, ledger: Ledger) -> bool:
    """Whether every arm is measured, between two baselines on every node that measured one."""
    blocks = ledger.valid_blocks()
    nodes = {block.node for block in blocks if block.phase in ("arm", "confirm")}
    nodes = nodes or {block.node for block in blocks if block.phase == "opening"}
    arms = all(not missing_blocks(plan, ledger, arm, "arm", "") for arm in plan.arms if not arm.is_baseline)
    return bool(nodes) and arms and all(_measured_all(plan, ledger, "closing", node) for node in nodes)
