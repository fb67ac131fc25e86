"""Whether an arm keeps `selection.constraints` on a workload, and up with an open loop. Pure."""

from typing import NamedTuple

import numpy as np

from orchestrator.config import Constraints
from orchestrator.measured import Cell


class Limit(NamedTuple):
    name: str
    limit_s: float
    measured_s: float
    """95th percentile over the requests of all blocks."""


def limits_on(cell: Cell, constraints: Constraints) -> list[Limit]:
    """Every constraint that can be judged: one without a request that it speaks of says nothing, nor does one on times
    between tokens that came all at once."""
    told = cell.has_token_times
    asked = (
        ("ttft_p95_s", constraints.ttft_p95_s, cell.ttft_s if told else ()),
        ("tpot_p95_s", constraints.tpot_p95_s, cell.tpot_s if told else ()),
        ("e2e_p95_s", constraints.e2e_p95_s, cell.e2e_s),
    )
    return [Limit(name, limit, float(np.quantile(times, 0.95))) for name, limit, times in asked if limit and times]


def broken(cell: Cell, constraints: Constraints) -> str:
    """`ttft_p95_s=0.5 with 0.71`; empty where all are kept.

    A server that cannot keep up has a latency that depends on how long it is measured, so it is no choice.
    """
    limits = [
        f"{each.name}={each.limit_s:g} with {each.measured_s:.3g}"
        for each in limits_on(cell, constraints)
        if each.measured_s > each.limit_s
    ]
    share = cell.saturated_share
    queue = [f"under the load: its queue grew in {100 * share:.0f} % of the blocks"] if share and share > 0.5 else []
    return ", ".join(limits + queue)


def meets(cell: Cell, constraints: Constraints) -> bool | None:
    """None where nothing is asked, or something that is asked was not measured and nothing else is broken."""
    if broken(cell, constraints):
        return False
    if cell.lacks_asked_times or (not limits_on(cell, constraints) and cell.saturated_share is None):
        return None
    return True
