"""The policy around a search: once it has measured its arms, the settings it would recommend are measured again."""

from collections.abc import Collection, Sequence

from orchestrator.config import SweepConfig
from orchestrator.decide import decide
from orchestrator.ledger import LedgerView, measurement_key
from orchestrator.mix import mixed_workloads, traffic_of
from orchestrator.plan import Plan
from orchestrator.policy import Policy, given_up_blocks, make_visit, num_first, num_tries
from orchestrator.records import Arm, Block, Phase, Visit


class Confirming:
    """Lets `search` measure; before a node closes, it measures what would be recommended, on a fresh server start.

    The closing baseline may change what is recommended; the new setting is then measured after it.
    """

    def __init__(self, search: Policy, config: SweepConfig) -> None:
        self._search, self._config = search, config
        self._latest: tuple[LedgerView, int, list[Arm]] | None = None

    def next_visit(
        self, plan: Plan, ledger: LedgerView, started: Sequence[Visit], running: Collection[str], node: str
    ) -> Visit | None:
        """As `policy.Grid.next_visit`."""
        visit = self._search.next_visit(plan, ledger, started, running, node)
        if visit and visit.phase != "closing":
            return visit
        if any(other.id in running and other.phase == "arm" for other in started):
            return visit
        for arm in self._due(plan, ledger):
            confirming = self._visit(plan, ledger, started, running, arm, node)
            if confirming:
                return confirming
        return visit

    def is_complete(self, plan: Plan, ledger: LedgerView) -> bool:
        """Whether the search is done, and every setting that it recommends was measured again or cannot be paid for."""
        return self._search.is_complete(plan, ledger) and not any(
            self.affords(plan, ledger, [make_visit(plan, arm, "confirm", "", 1, missing)])
            for arm in self._due(plan, ledger)
            if (missing := self._missing(plan, ledger, arm))
        )

    def dropped(self, plan: Plan, ledger: LedgerView) -> dict[tuple[str, str], str]:
        return self._search.dropped(plan, ledger)

    def affords(self, plan: Plan, ledger: LedgerView, visits: Sequence[Visit]) -> bool:
        return self._search.affords(plan, ledger, visits)

    def max_arms(self, plan: Plan) -> int:
        return self._search.max_arms(plan)

    @property
    def may_stop_early(self) -> bool:
        return self._search.may_stop_early

    def _due(self, plan: Plan, ledger: LedgerView) -> list[Arm]:
        """The settings that would be recommended now; found again only once the ledger has grown."""
        if not self._latest or self._latest[0] is not ledger or self._latest[1] != ledger.num_records:
            settings = decide(self._config, plan, ledger.valid_blocks()).settings
            self._latest = (ledger, ledger.num_records, [setting.arm for setting in settings])
        return self._latest[2]

    def _visit(
        self, plan: Plan, ledger: LedgerView, started: Sequence[Visit], running: Collection[str], arm: Arm, node: str
    ) -> Visit | None:
        """The arm's confirmation on `node`, or first what the opening baseline lacks there for it."""
        same = [visit for visit in started if visit.arm.id == arm.id and visit.phase == "confirm"]
        max_attempts = self._config.search.max_attempts
        missing = self._missing(plan, ledger, arm, given_up_blocks(plan, ledger, started, node, max_attempts))
        if not missing or any(visit.id in running for visit in same):
            return None
        phase: Phase = "confirm"
        num_tried = len(same)
        without = [b for b in missing if not ledger.has(measurement_key(plan.baseline.id, b.id, "opening", node))]
        if without:
            arm, phase, missing = plan.baseline, "opening", without
            num_tried = num_tries(started, arm, phase, node, {block.id for block in without})
        visit = make_visit(plan, arm, phase, node, num_tried + 1, missing)
        return visit if num_tried < max_attempts and self.affords(plan, ledger, [visit]) else None

    def _missing(self, plan: Plan, ledger: LedgerView, arm: Arm, left_out: Collection[str] = ()) -> list[Block]:
        """Of the last blocks of every workload that the traffic mix has a share of: a search that ended early chose by
        other prompts. Those before stand in for the ones `left_out`."""
        missing: list[Block] = []
        for cell in mixed_workloads(plan, traffic_of(self._config.workload)):
            blocks = plan.blocks_of(cell.id)
            open_ones = [b for b in reversed(blocks) if not ledger.has(measurement_key(arm.id, b.id, "confirm", ""))]
            number = num_first(self._config.search, self._config.selection) - (len(blocks) - len(open_ones))
            missing += [block for block in open_ones if block.id not in left_out][: max(0, number)]
        return sorted(missing, key=lambda block: block.index)
