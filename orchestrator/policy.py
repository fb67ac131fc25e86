"""Which visit comes next: a pure function of plan, ledger and what is under way."""

import random
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence, Set
from typing import Protocol
from weakref import WeakKeyDictionary

from orchestrator.config import Search, SelectionRules, Strict
from orchestrator.ids import content_id
from orchestrator.ledger import LedgerView, measurement_key
from orchestrator.plan import Plan
from orchestrator.records import Arm, Block, Phase, Visit


class Policy(Protocol):
    """Decides from plan and ledger alone, so that a sweep can go on from them at any time."""

    def next_visit(
        self, plan: Plan, ledger: LedgerView, started: Sequence[Visit], running: Collection[str], node: str
    ) -> Visit | None:
        """The next visit for the idle `node`; see `Grid.next_visit`."""
        ...

    def is_complete(self, plan: Plan, ledger: LedgerView) -> bool:
        """Whether nothing is left to measure."""
        ...

    def dropped(self, plan: Plan, ledger: LedgerView) -> dict[tuple[str, str], str]:
        """(arm id, workload id) -> why the arm is not measured (further) there, where that was decided."""
        ...

    def affords(self, plan: Plan, ledger: LedgerView, visits: Sequence[Visit]) -> bool:
        """Whether the budget takes `visits` and the closing baselines they ask for."""
        ...

    def max_arms(self, plan: Plan) -> int:
        """How many arms are measured at most, besides the baseline."""
        ...

    @property
    def may_stop_early(self) -> bool:
        """Whether fewer may do."""
        ...


class WholeArms(Strict):
    """A visit measures all that its arm misses; on each node between two visits of the baseline.

    Which arms, in which order, and whether they are paid for, is the subclass's to say.
    """

    max_attempts: int

    @property
    def may_stop_early(self) -> bool:
        return False

    @abstractmethod
    def _arms(self, plan: Plan, ledger: LedgerView, under_way: Collection[str]) -> Iterable[Arm]:
        """The arms to measure, the next one first; measured ones and those `under_way` (ids) are passed over."""

    def affords(self, plan: Plan, ledger: LedgerView, visits: Sequence[Visit]) -> bool:
        """Whether `visits`, some of them under way, may be made."""
        return True

    def next_visit(
        self, plan: Plan, ledger: LedgerView, started: Sequence[Visit], running: Collection[str], node: str
    ) -> Visit | None:
        """The next visit for the idle `node`, or None while there is nothing for it.

        `started` are the visits of this session, `running` the ids of those under way. None may change once a
        running visit ends: while an arm runs elsewhere it may fail and come here, so this node does not close yet.
        """
        under_way = [visit for visit in started if visit.id in running]
        left_out = given_up_blocks(plan, ledger, started, node, self.max_attempts)
        opening = self._visit(plan, ledger, plan.baseline, "opening", node, started, left_out)
        if opening:
            return opening if self.affords(plan, ledger, [*under_way, opening]) else None
        if any(block.id not in left_out for block in missing_blocks(plan, ledger, plan.baseline, "opening", node)):
            return None  # without its own baseline a node's figures compare with nothing
        visit = self._next_arm(plan, ledger, started, under_way, node, left_out)
        if visit or any(other.phase == "arm" for other in under_way):
            return visit
        return self._visit(plan, ledger, plan.baseline, "closing", node, started, left_out)

    def _next_arm(
        self,
        plan: Plan,
        ledger: LedgerView,
        started: Sequence[Visit],
        under_way: Sequence[Visit],
        node: str,
        left_out: Collection[str] = (),
    ) -> Visit | None:
        busy = {visit.arm.id for visit in under_way if visit.phase == "arm"}
        for arm in self._arms(plan, ledger, busy):
            visit = None if arm.id in busy else self._visit(plan, ledger, arm, "arm", node, started, left_out)
            if visit:
                return visit if self.affords(plan, ledger, [*under_way, visit]) else None
        return None

    def _visit(
        self,
        plan: Plan,
        ledger: LedgerView,
        arm: Arm,
        phase: Phase,
        node: str,
        started: Sequence[Visit],
        left_out: Collection[str],
    ) -> Visit | None:
        missing = [block for block in missing_blocks(plan, ledger, arm, phase, node) if block.id not in left_out]
        num_tried = num_tries(started, arm, phase, node, {block.id for block in missing})
        if not missing or num_tried >= self.max_attempts:
            return None
        return make_visit(plan, arm, phase, node, num_tried + 1, missing)


def num_tries(started: Iterable[Visit], arm: Arm, phase: Phase, node: str, block_ids: Set[str]) -> int:
    """Visits of this session that were to measure some of these blocks; one that measured others is no attempt."""
    return sum(
        not block_ids.isdisjoint(visit.block_ids)
        for visit in started
        if (visit.arm.id, visit.phase) == (arm.id, phase) and (phase == "arm" or visit.node == node)
    )


def given_up_blocks(
    plan: Plan, ledger: LedgerView, started: Sequence[Visit], node: str, max_attempts: int
) -> frozenset[str]:
    """Ids of the blocks that nobody measures on `node` (any more in this session), since they have no baseline there:
    it was void as often as it may be tried; with all of a workload's where none of its is valid.

    None where the baseline has nothing valid at all on the node, which then measures nothing; and none of a visit that
    failed, which says something of the node rather than of a block.
    """
    openings = [visit for visit in started if (visit.phase, visit.node) == ("opening", node)]
    tried = Counter(block_id for visit in openings for block_id in visit.block_ids)
    often = {block_id for block_id, number in tried.items() if number >= max_attempts}
    if not often:
        return frozenset()
    ids = {visit.id for visit in openings}
    void = {block.block_id for block in ledger.void_blocks() if block.phase == "opening" and block.visit_id in ids}
    missing = {block.id for block in missing_blocks(plan, ledger, plan.baseline, "opening", node)}
    alive = {block.workload_id for block in plan.blocks if block.id not in missing}
    given_up = often & void & missing
    if not alive or not given_up:
        return frozenset()
    dead = {block.workload_id for block in plan.blocks if block.id in given_up} - alive
    return frozenset(given_up).union(block.id for block in plan.blocks if block.workload_id in dead)


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


class Grid(WholeArms):
    """Every arm, in seeded random order."""

    seed: int

    def is_complete(self, plan: Plan, ledger: LedgerView) -> bool:
        """Whether every arm is measured, between two baselines on every node that measured one."""
        return is_complete(plan, ledger)

    def dropped(self, plan: Plan, ledger: LedgerView) -> dict[tuple[str, str], str]:
        """Nothing: every arm is measured."""
        return {}

    def max_arms(self, plan: Plan) -> int:
        """All of them."""
        return len(plan.arms) - 1

    def _arms(self, plan: Plan, ledger: LedgerView, under_way: Collection[str]) -> list[Arm]:
        open_ones = _unmeasured(plan, ledger)
        if not open_ones:
            return []
        arms = [arm for arm in plan.arms if not arm.is_baseline]
        random.Random(f"{self.seed}/arms").shuffle(arms)
        return [arm for arm in arms if arm.id in open_ones]


_UNMEASURED: WeakKeyDictionary[LedgerView, tuple[tuple[str, int], frozenset[str]]] = WeakKeyDictionary()


def _unmeasured(plan: Plan, ledger: LedgerView) -> frozenset[str]:
    """Ids of the arms that miss blocks. Every idle node of a large fleet asks, with the same ledger: it is kept until
    the ledger grows."""
    state = plan.id, ledger.num_records
    known = _UNMEASURED.get(ledger)
    if known is None or known[0] != state:
        arms = (arm for arm in plan.arms if not arm.is_baseline and not _measured_all(plan, ledger, arm, "arm", ""))
        known = _UNMEASURED[ledger] = state, frozenset(arm.id for arm in arms)
    return known[1]


def missing_blocks(plan: Plan, ledger: LedgerView, arm: Arm, phase: Phase, node: str) -> list[Block]:
    """Blocks of `arm` without a valid measurement, first blocks of all workloads first, so that a visit that
    ends early has measured something of everything."""
    blocks = [block for block in plan.blocks if not ledger.has(measurement_key(arm.id, block.id, phase, node))]
    return sorted(blocks, key=lambda block: block.index)


def _measured_all(plan: Plan, ledger: LedgerView, arm: Arm, phase: Phase, node: str) -> bool:
    return all(ledger.has(measurement_key(arm.id, block.id, phase, node)) for block in plan.blocks)


def num_measurements(plan: Plan, nodes: Collection[str], num_arms: int | None = None) -> int:
    """Block measurements of a whole sweep: the baseline twice on every node, any other arm once.

    `num_arms` are the arms besides the baseline that are measured; None: all of the plan.
    """
    return len(plan.blocks) * ((len(plan.arms) - 1 if num_arms is None else num_arms) + 2 * len(nodes))


def is_complete(plan: Plan, ledger: LedgerView) -> bool:
    """Whether every arm is measured, between two baselines on every node that measured one (a node that was taken away
    has the first alone)."""
    arms = all(_measured_all(plan, ledger, arm, "arm", "") for arm in plan.arms if not arm.is_baseline)
    return arms and is_closed(plan, ledger)


def is_closed(plan: Plan, ledger: LedgerView) -> bool:
    """Whether the baseline was measured again on every node that measures and has not gone."""
    nodes, gone = measuring_nodes(ledger), gone_nodes(ledger)
    return bool(nodes) and all(
        _measured_all(plan, ledger, plan.baseline, "closing", node) for node in nodes if node not in gone
    )


def gone_nodes(ledger: LedgerView) -> set[str]:
    """Nodes that are not asked for a closing baseline: they were taken away, or had left when the last session ended
    while others were there."""
    taken_away = {visit.node for visit in ledger.visits() if visit.interrupted}
    sessions = ledger.sessions()
    return taken_away.union(sessions[-1].nodes_gone if sessions else ())


def unclosed_nodes(ledger: LedgerView) -> set[str]:
    """Nodes with blocks of an arm that have no closing baseline there: nothing shows whether such a node drifted."""
    measured: defaultdict[str, set[str]] = defaultdict(set)
    closed: defaultdict[str, set[str]] = defaultdict(set)
    for block in ledger.valid_blocks():
        if block.phase in ("arm", "confirm"):
            measured[block.node].add(block.block_id)
        elif block.phase == "closing":
            closed[block.node].add(block.block_id)
    return {node for node, blocks in measured.items() if not blocks <= closed[node]}


def measuring_nodes(ledger: LedgerView) -> list[str]:
    """The nodes that measured an arm, or confirmed one; where none did, those that measured the opening baseline."""
    nodes: defaultdict[Phase, set[str]] = defaultdict(set)
    for block in ledger.valid_blocks():
        nodes[block.phase].add(block.node)
    return sorted(nodes["arm"] | nodes["confirm"] or nodes["opening"])
