"""Whether a sweep may start under `cluster.budget_usd`. Pure."""

from orchestrator.config import SweepConfig
from orchestrator.errors import ConfigError
from orchestrator.forecast import Forecast

TO_LOWER = (
    "measure less (fewer values in speculation.num_speculative_tokens, workload.max_concurrency or datasets, lower "
    "workload.num_blocks, or search.max_usd), or raise cluster.budget_usd"
)


def over_budget(config: SweepConfig, expected: Forecast, num_nodes: int) -> str | None:
    """A warning where the sweep may cost more than the budget; None where it cannot, or there is none.

    Raises:
        ConfigError: it costs more than the budget even if all goes fast.
    """
    budget = config.cluster.budget_usd
    least, most = expected.typical(num_nodes).usd, expected.at_most(num_nodes).usd
    if budget is None or least is None or most is None:  # the configuration gives no budget without a price
        return None
    hours = expected.typical(num_nodes).machine_h
    where = f"on {num_nodes} node{'s' if num_nodes > 1 else ''}"
    figures = f"${least.low:,.2f} to ${least.high:,.2f}, and at most ${most.high:,.2f}"
    if least.low > budget:
        raise ConfigError(
            f"cluster.budget_usd={budget:g}: the sweep is expected to cost {figures}, {where} "
            f"({hours.low:,.1f} machine-hours or more at ${config.hardware.usd_per_hour:g}); {TO_LOWER}"
        )
    if most.high > budget:
        return f"cluster.budget_usd={budget:g}: the sweep is expected to cost {figures}, {where}; {_end(config)}"
    return None


def _end(config: SweepConfig) -> str:
    if config.cluster.aws is not None:
        return "the fleet ends it at the budget, with what is measured kept"
    return "nothing ends it at the budget but search.max_usd"
