"""Whether an arm keeps `selection.constraints` on a workload. Pure."""

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
    """Every constraint that can be judged: one without a request that it speaks of says nothing."""
    asked = (
        ("ttft_p95_s", constraints.ttft_p95_s, cell.ttft_s),
        ("tpot_p95_s", constraints.tpot_p95_s, cell.tpot_s),
        ("e2e_p95_s", constraints.e2e_p95_s, cell.e2e_s),
    )
    return [Limit(name, limit, float(np.quantile(times, 0.95))) for name, limit, times in asked if limit and times]


def broken(cell: Cell, constraints: Constraints) -> str:
    """`ttft_p95_s=0.5 with 0.71`; empty where all are kept."""
    return ", ".join(
        f"{each.name}={each.limit_s:g} with {each.measured_s:.3g}"
        for each in limits_on(cell, constraints)
        if each.measured_s > each.limit_s
    )
