"""Whether a sweep may start under `cluster.budget_usd`. Pure."""

from collections.abc import Sequence

from orchestrator.config import Cluster
from orchestrator.errors import ConfigError
from orchestrator.forecast import Forecast
from orchestrator.token_time import total

TO_LOWER = (
    "measure less (fewer values in speculation.num_speculative_tokens, workload.max_concurrency or datasets, lower "
    "workload.num_blocks, or search.max_usd), or raise cluster.budget_usd"
)


def over_budget(cluster: Cluster, parts: Sequence[tuple[Forecast, int]]) -> str | None:
    """A warning where the sweep may cost more than the budget; None where it cannot, or there is none.

    Args:
        parts: what is expected on each hardware profile, and its number of nodes.

    Raises:
        ConfigError: it costs more than the budget even if all goes fast.
    """
    budget = cluster.budget_usd
    usual, most = [each.typical(nodes) for each, nodes in parts], [each.at_most(nodes) for each, nodes in parts]
    costs, limits = [each.usd for each in usual if each.usd], [each.usd for each in most if each.usd]
    if budget is None or len(costs) < len(parts):  # the configuration gives no budget without a price
        return None
    cost, limit, hours = total(costs), total(limits), total(each.machine_h for each in usual)
    num_nodes = sum(nodes for _, nodes in parts)
    figures = (
        f"cluster.budget_usd={budget:g}: the sweep is expected to cost ${cost.low:,.2f} to ${cost.high:,.2f}, and at "
        f"most ${limit.high:,.2f}, on {num_nodes} node{'s' if num_nodes > 1 else ''}"
    )
    if cost.low > budget:
        raise ConfigError(f"{figures} ({hours.low:,.1f} machine-hours or more); {TO_LOWER}")
    return f"{figures}; {_end(cluster)}" if limit.high > budget else None


def _end(cluster: Cluster) -> str:
    if cluster.aws is not None:
        return "the fleet ends it at the budget, with what is measured kept"
    return "nothing ends it at the budget but search.max_usd"
