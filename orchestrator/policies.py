"""From a configuration to the policy that searches: the only place that knows them all."""

from collections.abc import Collection, Sequence
from typing import Protocol

from orchestrator.adaptive import Adaptive
from orchestrator.config import SweepConfig
from orchestrator.ledger import LedgerView
from orchestrator.plan import Plan
from orchestrator.policy import Grid
from orchestrator.records import Visit


class Policy(Protocol):
    """Decides from plan and ledger alone, so that a sweep can go on from them at any time."""

    def next_visit(
        self, plan: Plan, ledger: LedgerView, started: Sequence[Visit], running: Collection[str], node: str
    ) -> Visit | None:
        """The next visit for the idle `node`; see `policy.Grid.next_visit`."""
        ...

    def is_complete(self, plan: Plan, ledger: LedgerView) -> bool:
        """Whether nothing is left to measure."""
        ...

    def dropped(self, plan: Plan, ledger: LedgerView) -> dict[tuple[str, str], str]:
        """(arm id, workload id) -> why the arm is not measured (further) there, where that was decided."""
        ...


def policy_for(config: SweepConfig) -> Policy:
    """The policy that `config.search` asks for."""
    if config.search.strategy == "adaptive":
        return Adaptive(search=config.search, rules=config.selection)
    return Grid(seed=config.seed, max_attempts=config.search.max_attempts)
