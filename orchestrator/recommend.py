"""From verdicts to settings: one static choice for all workloads, and a schedule over batch sizes. Pure."""

import math
from collections.abc import Sequence
from statistics import fmean

from orchestrator.config import SelectionRules
from orchestrator.plan import Plan
from orchestrator.records import Arm
from orchestrator.selection import Schedule, WorkloadResult


def best_static_arm(plan: Plan, workloads: Sequence[WorkloadResult], rules: SelectionRules) -> Arm | None:
    """The one arm for a server that takes all measured workloads in equal parts.

    The highest geometric mean of speedups, ties to the smaller k; the baseline where none is above it. None while the
    baseline, or every arm on some workload, lacks a figure.
    """
    if any(workload.arms[0].output_tokens_per_s is None for workload in workloads):
        return None
    means = {}
    for position in range(1, len(plan.arms)):
        speedups = [workload.arms[position].speedup for workload in workloads]
        known = [math.log(speedup.mean) for speedup in speedups if speedup]
        if len(known) == len(workloads):
            means[position] = fmean(known)
    if len(plan.arms) > 1 and not means:
        return None
    top = max(means.values(), default=0.0)
    tied = [p for p, mean in means.items() if mean >= top + math.log(1 - rules.tie_tolerance)]
    return plan.arms[min(tied)] if top > math.log(1 + rules.tie_tolerance) else plan.baseline


def batch_size_schedules(plan: Plan, workloads: Sequence[WorkloadResult]) -> tuple[Schedule, ...]:
    """vLLM's num_speculative_tokens_per_batch_size per dataset, from the verdicts at each concurrency.

    Between two measured levels the smaller of both k holds, above the last one none: nothing was measured there.
    An undecided level counts as 0. Datasets where no level speculates have no schedule.
    """
    datasets = dict.fromkeys(workload.dataset for workload in workloads)
    max_batch = plan.baseline.server.max_num_seqs
    found = []
    for dataset in datasets:
        levels = {
            workload.max_concurrency: workload.best.num_speculative_tokens if workload.best else 0
            for workload in workloads
            if workload.dataset == dataset
        }
        ranges = _ranges(levels, max_batch)
        if any(k for _, _, k in ranges):
            found.append(Schedule(dataset=dataset, num_speculative_tokens_per_batch_size=ranges))
    return tuple(found)


def _ranges(levels: dict[int, int], max_batch: int) -> tuple[tuple[int, int, int], ...]:
    measured = sorted(levels)
    per_batch = []
    for batch in range(1, max_batch + 1):
        below = [level for level in measured if level <= batch]
        above = [level for level in measured if level >= batch]
        neighbours = [levels[side[at]] for side, at in ((below, -1), (above, 0)) if side]
        per_batch.append(min(neighbours) if above else 0)
    ranges: list[tuple[int, int, int]] = []
    for batch, k in enumerate(per_batch, start=1):
        if ranges and ranges[-1][2] == k:
            ranges[-1] = (ranges[-1][0], batch, k)
        else:
            ranges.append((batch, batch, k))
    return tuple(ranges)
