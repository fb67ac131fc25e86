"""From verdicts to settings: one static choice for all workloads, and a schedule over batch sizes. Pure."""

import math
from collections.abc import Sequence
from statistics import fmean

from orchestrator.config import SelectionRules
from orchestrator.plan import Plan
from orchestrator.records import Arm
from orchestrator.selection import Interval, Schedule, WorkloadResult


def best_static_arm(plan: Plan, workloads: Sequence[WorkloadResult], rules: SelectionRules) -> Arm | None:
    """The one arm for a server that takes all measured workloads, each weighing the same.

    The highest geometric mean of speedups, ties to the smaller k; the baseline where that mean is not above 1 by its
    interval (the workloads' half-widths, as logs, added in quadrature). None while the baseline, or every arm on some
    workload, lacks a figure.
    """
    if any(workload.arms[0].output_tokens_per_s is None for workload in workloads):
        return None
    means, half_widths = {}, {}
    for position in range(1, len(plan.arms)):
        speedups = [found for workload in workloads if (found := workload.arms[position].speedup)]
        if len(speedups) == len(workloads):
            means[position] = fmean(math.log(speedup.mean) for speedup in speedups)
            half_widths[position] = math.hypot(*map(_log_half_width, speedups)) / len(speedups)
    if not means:
        return plan.baseline if len(plan.arms) == 1 else None
    top = max(means.values())
    best = min(position for position, mean in means.items() if mean >= top + math.log(1 - rules.tie_tolerance))
    is_gain = means[best] > max(half_widths[best], math.log(1 + rules.tie_tolerance))
    return plan.arms[best] if is_gain else plan.baseline


def _log_half_width(speedup: Interval) -> float:
    return math.log(speedup.ci_high / speedup.ci_low) / 2


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
