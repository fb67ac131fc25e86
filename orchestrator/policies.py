"""From a configuration to the policy that searches: the only place that knows them all."""

import math

from orchestrator.adaptive import Adaptive
from orchestrator.config import Search, SweepConfig
from orchestrator.confirming import Confirming
from orchestrator.policy import Grid, Policy


def policy_for(config: SweepConfig) -> Policy:
    """The policy that `config.search` asks for."""
    search = _search(config)
    return Confirming(search, config) if config.search.confirm else search


def _search(config: SweepConfig) -> Policy:
    if config.search.strategy == "adaptive":
        return Adaptive(search=_in_hours(config), rules=config.selection)
    return Grid(seed=config.seed, max_attempts=config.search.max_attempts)


def _in_hours(config: SweepConfig) -> Search:
    """`config.search` with a budget in dollars as one in hours."""
    search, price = config.search, config.hardware.usd_per_hour
    if search.max_usd is None or price is None:
        return search
    hours = min(search.max_usd / price, search.max_node_hours or math.inf)
    return search.model_copy(update={"max_node_hours": hours})
