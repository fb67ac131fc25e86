"""The report's part on why: what a step costs, what it must yield, and how near the baseline is to the roofline."""

from collections.abc import Sequence

from orchestrator.display import arm_name, interval, is_best, milliseconds, number, percent, workload_name
from orchestrator.report_tables import TableView, title_of
from orchestrator.roofline import Achieved
from orchestrator.selection import WorkloadResult


def step_table(workload: WorkloadResult) -> TableView | None:
    """None where no arm's step time is known."""
    arms = [arm for arm in workload.arms if arm.step_s is not None]
    if len(arms) < 2:
        return None
    rows = [
        (
            arm_name(arm),
            milliseconds(arm.step_s),
            milliseconds(arm.drafting_s),
            number(arm.break_even_acceptance_length),
            number(arm.acceptance_length),
            number(arm.predicted_speedup),
            interval(arm.speedup),
        )
        for arm in arms
    ]
    headers = (
        *("Arm", "Step (ms)", "of it drafting (ms)", "Breaks even at (tokens/step)", "Yields (tokens/step)"),
        *("Speedup predicted (x)", "Speedup measured (x) [interval]"),
    )
    marked = frozenset(index for index, arm in enumerate(arms) if is_best(arm, workload))
    return TableView(f"Why: time and yield of a step, {title_of(workload)}", headers, rows, marked)


def roofline_table(found: Sequence[Achieved]) -> TableView:
    rows = [
        (
            workload_name(each.workload),
            number(each.read_gb),
            milliseconds(each.roofline_step_s),
            milliseconds(each.step_s),
            number(each.achieved_gb_per_s),
            percent(each.share),
        )
        for each in found
    ]
    headers = (
        *("Workload", "Weights read in a step (GB)", "Roofline: step (ms)", "Measured: step (ms)"),
        *("Achieved (GB/s)", "Achieved / roofline (%)"),
    )
    return TableView(
        f"Baseline against the roofline, memory copies {number(found[0].copies_gb_per_s)} GB/s", headers, rows
    )
