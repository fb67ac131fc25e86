"""A workload's reason as people read it: every arm spoken of once, and what shakes the figures said with it."""

import re
from collections.abc import Sequence

from orchestrator.selection import Drift, WorkloadResult

MAX_NAMED = 4
"""Of drifts in one warning; the report's table has them all."""
ADVICE = "confirm on a quiet machine"
_DROPPED = re.compile(r"dropped, (?P<why>[^:]+): (?P<names>[^:]+)")


def reason_of(workload: WorkloadResult, drifts: Sequence[Drift] = ()) -> str:
    """`workload.reason`, where arms that were not measured are told from those that were, and with its drift."""
    parts = [said for part in workload.reason.split("; ") if (said := _said_once(part, workload))]
    if workload.verdict == "baseline" and any(arm.num_requests == 0 for arm in workload.arms):
        parts[0] = re.sub(r"^no arm gains\b", "no arm that was measured here gains", parts[0])
    drifted = [f"{drift.closing_over_opening.mean:.2f}x on {drift.node}" for drift in drifted_on(workload, drifts)]
    if drifted:
        parts.append(f"between its two visits the baseline drifted beyond noise, to {', '.join(drifted)}: {ADVICE}")
    return "; ".join(parts)


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


def _said_once(part: str, workload: WorkloadResult) -> str:
    """What the search dropped, in terms of what was measured; empty where another part speaks of those arms already."""
    found = _DROPPED.fullmatch(part)
    if found is None:
        return part
    listed, _, more = found["names"].partition(" and ")
    said = {choice.arm for choice in workload.contenders} if workload.verdict == "speculate" else set()
    names = [name for name in listed.split(", ") if name not in said]
    if not names:
        return ""
    unmeasured = {arm.arm for arm in workload.arms if arm.num_requests == 0}
    what = "not measured here" if unmeasured.issuperset(names) else "measured no further"
    return f"{what}, {found['why']}: {', '.join(names)}{f' and {more}' if more else ''}"
