"""How well step times from the other datasets and own acceptance predict each measured speedup of a sweep.

    python -m benchmarks.break_even results/NAME/TIME

A prediction uses nothing of the workload it is for but its baseline and the arm's acceptance there; see step_cost.py.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from rich.console import Console

from orchestrator.compare import compare_cells
from orchestrator.measured import fold
from orchestrator.metrics import acceptance_length
from orchestrator.selection import Interval
from orchestrator.step_cost import StepCosts
from orchestrator.sweep_dir import SweepDir

WITHIN = 0.05


@dataclass(frozen=True)
class Checked:
    """One arm on one workload."""

    name: str
    tokens_per_step: float
    break_even: float
    predicted: float
    measured: Interval

    @property
    def error(self) -> float:
        return self.predicted / self.measured.mean - 1

    @property
    def is_inside(self) -> bool:
        return self.measured.ci_low <= self.predicted <= self.measured.ci_high

    def __str__(self) -> str:
        measured = f"{self.measured.mean:.2f} [{self.measured.ci_low:.2f}, {self.measured.ci_high:.2f}]"
        return (
            f"| {self.name} | {self.tokens_per_step:.2f} | {self.break_even:.2f} | {measured} | {self.predicted:.2f} "
            f"| {100 * self.error:+.1f} % |"
        )


def check(sweep: SweepDir) -> Iterator[Checked]:
    plan, rules = sweep.plan(), sweep.config().selection
    cells = fold(sweep.ledger().valid_blocks(), rules).cells
    found = compare_cells(plan, cells, rules, by_throughput=True)
    costs = StepCosts(plan, cells)
    for workload in plan.workloads:
        for arm in plan.arms[1:]:
            key = arm.id, workload.id
            predicted, ratio = costs.predicted_from_others(arm, workload), costs.ratio(arm, workload)
            counters = cells[key].counters if key in cells else None
            length = acceptance_length(counters) if counters else None
            if predicted and ratio and length and key in found.estimates:
                measured = found.estimates[key].interval(found.noise, rules.confidence)
                yield Checked(f"{workload.name} | {arm.name}", length, ratio, predicted, measured)


def main() -> None:
    checked = list(check(SweepDir(Path(sys.argv[1]))))
    print_ = Console(soft_wrap=True, highlight=False).print
    print_("| workload | arm | tokens/step | breaks even at | measured | predicted | off |")
    print_("\n".join(["|---|---|---|---|---|---|---|", *map(str, checked)]), markup=False)
    sizes = [abs(each.error) for each in checked]
    print_(
        f"\n{len(checked)} figures: off by {100 * median(sizes):.1f} % in the median, "
        f"{100 * fmean(each.error for each in checked):+.1f} % on average; "
        f"{sum(size <= WITHIN for size in sizes)} within {100 * WITHIN:.0f} %, "
        f"{sum(each.is_inside for each in checked)} inside the measured interval"
    )


if __name__ == "__main__":
    main()
