"""What is said of a baseline that changed between its two visits: it shakes every figure that is compared with it."""

from collections.abc import Sequence

from orchestrator.selection import Drift, WorkloadResult

MAX_NAMED = 4
"""Of drifts in one warning; the report's table has them all."""
ADVICE = "confirm on a quiet machine"


def with_drifts(workload: WorkloadResult, drifts: Sequence[Drift]) -> WorkloadResult:
    """With its drift in the reason of its verdict."""
    drifted = [f"{drift.closing_over_opening.mean:.2f}x on {drift.node}" for drift in drifted_on(workload, drifts)]
    if not drifted:
        return workload
    said = f"between its two visits the baseline drifted beyond noise, to {', '.join(drifted)}: {ADVICE}"
    return workload.model_copy(update={"reason": f"{workload.reason}; {said}"})


def drifted_on(workload: WorkloadResult, drifts: Sequence[Drift]) -> list[Drift]:
    """The nodes on which its baseline changed by more than noise explains."""
    return [drift for drift in drifts if drift.is_beyond_noise and drift.point_name == workload.point_name]


def drift_warning(drifts: Sequence[Drift]) -> str | None:
    """None where the baseline stayed what it was on every node."""
    beyond = [drift for drift in drifts if drift.is_beyond_noise]
    if not beyond:
        return None
    named = [f"{each.point_name} on {each.node} ({each.closing_over_opening.mean:.2f}x)" for each in beyond]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return f"The baseline drifted beyond noise between its two visits: {', '.join(named[:MAX_NAMED])}{more}; {ADVICE}."
