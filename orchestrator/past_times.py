"""What earlier sweeps of the same model and hardware took: better than any roofline. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from orchestrator.plan import Plan
from orchestrator.records import Arm, BlockRecord, VisitRecord, WorkloadCell
from orchestrator.token_time import Range

QUANTILES = (0.1, 0.9)
LEAST_MARGIN = 0.1
"""A sweep on another day is not nearer to an earlier one than this, whatever its blocks agree on."""

Key = tuple[str, int, str, str]
"""Method, num_speculative_tokens, dataset, level of load."""


@dataclass(frozen=True)
class PastTimes:
    """Times of all the sweeps together."""

    token_s: Mapping[Key, Range] = field(default_factory=dict)
    """Wall seconds of a block per output token, prompt processing included."""
    overhead_s: Range | None = None
    """Of a visit besides its blocks: start, warm-up, stop."""
    sweeps: tuple[str, ...] = ()
    """Their ids."""

    def of(self, arm: Arm, cell: WorkloadCell) -> Range | None:
        """A token's time; where this dataset was not measured, what the others at that k and load span."""
        same = self.token_s.get((arm.method, arm.num_speculative_tokens, cell.dataset, cell.level_label))
        return same or _span(
            times
            for (method, k, _, level), times in self.token_s.items()
            if (method, k, level) == (arm.method, arm.num_speculative_tokens, cell.level_label)
        )


def past_times(sweeps: Iterable[tuple[str, Plan, Iterable[BlockRecord], Iterable[VisitRecord]]]) -> PastTimes:
    """The times of `sweeps`: id, plan, blocks that count, visits."""
    tokens: defaultdict[Key, list[float]] = defaultdict(list)
    overheads, ids = [], []
    for sweep_id, plan, blocks, visits in sweeps:
        arms = {arm.id: arm for arm in plan.arms}
        cells = {cell.id: cell for cell in plan.workloads}
        ids.append(sweep_id)
        for block in blocks:
            arm, cell = arms.get(block.arm_id), cells.get(block.workload_id)
            if arm and cell and block.output_tokens:
                key = (arm.method, arm.num_speculative_tokens, cell.dataset, cell.level_label)
                tokens[key].append(block.wall_s / block.output_tokens)
        overheads += [visit.wall_s - visit.blocks_s for visit in visits if visit.error is None and visit.num_blocks]
    return PastTimes(
        token_s={key: _range(values) for key, values in tokens.items()},
        overhead_s=_range(overheads) if overheads else None,
        sweeps=tuple(ids),
    )


def _range(values: list[float]) -> Range:
    low, middle, high = np.quantile(values, [QUANTILES[0], 0.5, QUANTILES[1]])
    return Range(float(min(low, middle / (1 + LEAST_MARGIN))), float(max(high, middle * (1 + LEAST_MARGIN))))


def _span(ranges: Iterable[Range]) -> Range | None:
    found = list(ranges)
    return Range(min(r.low for r in found), max(r.high for r in found)) if found else None
