"""The search that measures only what can still win: a pure function of plan and ledger, see docs/methodology.md.

Every arm that may win somewhere gets its first blocks there, the most promising first; then those that cannot be told
apart get more, until each workload's winner is settled, all is measured, or the budget is spent.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import PrivateAttr

from orchestrator.budget import Budget
from orchestrator.config import Search, SelectionRules, Strict
from orchestrator.ledger import LedgerView, measurement_key
from orchestrator.plan import Plan
from orchestrator.policy import given_up_blocks, gone_nodes, make_visit, missing_blocks, num_first, num_tries
from orchestrator.records import Arm, Block, Phase, Visit
from orchestrator.worth import Wanted, Worth

MOST_OPENING_ROUNDS = 2
"""The opening baseline takes all planned blocks where that is at most this many times `first_blocks`: coming back for
more would cost a server start."""


class Adaptive(Strict):
    """Rounds over arms and workloads, within `search`'s budget; settled by the rules that select."""

    search: Search
    rules: SelectionRules
    budget: Budget
    _latest: tuple[LedgerView, int, Worth] | None = PrivateAttr(default=None)
    """An idle node asks again and again while others measure: the answer changes only with the ledger."""

    def next_visit(
        self, plan: Plan, ledger: LedgerView, started: Sequence[Visit], running: Collection[str], node: str
    ) -> Visit | None:
        """As `policy.Grid.next_visit`; an arm comes back where it is worth measuring further."""
        session = _Session(plan, ledger, started, node, self.search.max_attempts)
        under_way = [visit for visit in started if visit.id in running]
        if session.missing(plan.baseline, "opening", self._opening(plan)):
            opening = session.visit(plan.baseline, "opening", self._opening(plan))
            return opening if opening and self.affords(plan, ledger, [*under_way, opening]) else None
        found = self._next_arm(session, under_way)
        if found:
            arm, wanted = found
            return session.visit(plan.baseline, "opening", wanted) or session.visit(arm, "arm", wanted)
        if any(visit.phase == "arm" for visit in under_way):
            return None
        return session.visit_of(plan.baseline, "closing", session.to_close)

    def is_complete(self, plan: Plan, ledger: LedgerView) -> bool:
        """Whether nothing is worth measuring, or affordable, any more, and every node that measured has closed."""
        nodes = {block.node for block in ledger.valid_blocks() if block.phase in _compared(plan)}
        sessions = [_Session(plan, ledger, (), node, self.search.max_attempts) for node in sorted(nodes)]
        return (
            bool(nodes)
            and not self._next_arm(sessions[0], ())
            and not any(session.to_close for session in sessions if session.node not in gone_nodes(ledger))
        )

    def dropped(self, plan: Plan, ledger: LedgerView) -> dict[tuple[str, str], str]:
        """(arm id, workload id) -> why the arm is not measured (further) there."""
        return self._worth(plan, ledger).dropped()

    def affords(self, plan: Plan, ledger: LedgerView, visits: Sequence[Visit]) -> bool:
        """Whether the budget takes `visits` and the closing baselines they ask for."""
        return self.budget.affords(plan, ledger, visits, self._worth(plan, ledger).visit_s)

    @property
    def may_stop_early(self) -> bool:
        return True

    def max_arms(self, plan: Plan) -> int:
        """All of them: how many are worth measuring, only measuring tells."""
        return len(plan.arms) - 1

    def _next_arm(self, session: "_Session", under_way: Sequence[Visit]) -> tuple[Arm, Wanted] | None:
        """The most worthy arm, if the budget takes it, and its blocks."""
        busy = {visit.arm.id for visit in under_way}
        for arm, wanted in self._worth(session.plan, session.ledger).due(busy):
            visit = session.visit(arm, "arm", wanted) if arm.id not in busy else None
            if visit and not session.is_given_up(session.plan.baseline, "opening", wanted):
                extended = session.visit(session.plan.baseline, "opening", wanted)
                visits = [*under_way, visit, *([extended] if extended else [])]
                return (arm, wanted) if self.affords(session.plan, session.ledger, visits) else None
        return None

    def _worth(self, plan: Plan, ledger: LedgerView) -> Worth:
        if not self._latest or self._latest[0] is not ledger or self._latest[1] != ledger.num_records:
            self._latest = (ledger, ledger.num_records, Worth(plan, ledger, self.search, self.rules))
        return self._latest[2]

    def _opening(self, plan: Plan) -> Wanted:
        planned = Counter(block.workload_id for block in plan.blocks)
        first = num_first(self.search, self.rules)
        return {
            cell_id: number if number <= MOST_OPENING_ROUNDS * first or len(plan.arms) == 1 else first
            for cell_id, number in planned.items()
        }


@dataclass(frozen=True)
class _Session:
    """What is missing on a node, and how often it was tried in this session."""

    plan: Plan
    ledger: LedgerView
    started: Sequence[Visit]
    node: str
    max_attempts: int

    @cached_property
    def _given_up(self) -> frozenset[str]:
        return given_up_blocks(self.plan, self.ledger, self.started, self.node, self.max_attempts)

    def missing(self, arm: Arm, phase: Phase, wanted: Wanted) -> list[Block]:
        """First blocks of all workloads first, as `policy.missing_blocks`. The next ones stand in for those that have
        no baseline here."""
        taken: Counter[str] = Counter()
        blocks = []
        for block in self.plan.blocks:
            if block.id not in self._given_up and taken[block.workload_id] < wanted.get(block.workload_id, 0):
                taken[block.workload_id] += 1
                if not self.ledger.has(measurement_key(arm.id, block.id, phase, self.node)):
                    blocks.append(block)
        return sorted(blocks, key=lambda block: block.index)

    @property
    def to_close(self) -> list[Block]:
        """What the closing baseline misses: the blocks that arms measured here; of a plan without arms, those of the
        opening baseline."""
        phases, plan = _compared(self.plan), self.plan
        there = {b.block_id for b in self.ledger.valid_blocks() if b.phase in phases and b.node == self.node}
        missing = missing_blocks(plan, self.ledger, plan.baseline, "closing", self.node)
        return [block for block in missing if block.id in there]

    def visit(self, arm: Arm, phase: Phase, wanted: Wanted) -> Visit | None:
        """None where nothing is missing, or some of it was tried too often."""
        return self.visit_of(arm, phase, self.missing(arm, phase, wanted))

    def visit_of(self, arm: Arm, phase: Phase, missing: Sequence[Block]) -> Visit | None:
        """The same, of blocks that are known to be missing."""
        attempt = self._tries(arm, phase, missing) + 1
        if not missing or attempt > self.max_attempts:
            return None
        return make_visit(self.plan, arm, phase, self.node, attempt, missing)

    def is_given_up(self, arm: Arm, phase: Phase, wanted: Wanted) -> bool:
        """Whether something is missing that was tried as often as may be."""
        missing = self.missing(arm, phase, wanted)
        return bool(missing) and self._tries(arm, phase, missing) >= self.max_attempts

    def _tries(self, arm: Arm, phase: Phase, blocks: Sequence[Block]) -> int:
        return num_tries(self.started, arm, phase, self.node, {block.id for block in blocks})


def _compared(plan: Plan) -> tuple[Phase, ...]:
    """The phases whose blocks a node's closing baseline has to match."""
    return ("arm", "confirm") if len(plan.arms) > 1 else ("opening",)
