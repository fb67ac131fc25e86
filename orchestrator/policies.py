"""From a configuration to the policy that searches: the only place that knows them all."""

from orchestrator.adaptive import Adaptive
from orchestrator.budget import Budget
from orchestrator.config import SweepConfig
from orchestrator.confirming import Confirming
from orchestrator.policy import Grid, Policy


def policy_for(config: SweepConfig) -> Policy:
    """The policy that `config.search` asks for."""
    search = _search(config)
    return Confirming(search, config) if config.search.confirm else search


def _search(config: SweepConfig) -> Policy:
    if config.search.strategy == "adaptive":
        return Adaptive(search=config.search, rules=config.selection, budget=Budget.of(config))
    if config.search.strategy == "optuna":
        from orchestrator.optuna_search import OptunaSearch  # Optuna is only imported where it is asked for

        return OptunaSearch(
            seed=config.seed,
            max_attempts=config.search.max_attempts,
            num_proposals=config.search.num_proposals,
            budget=Budget.of(config),
            rules=config.selection,
        )
    return Grid(seed=config.seed, max_attempts=config.search.max_attempts)
