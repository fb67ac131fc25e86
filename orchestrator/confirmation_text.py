"""Settings that were measured again and are not what is recommended: their figures, and why they were not taken."""

from orchestrator.display import interval
from orchestrator.selection import Confirmation, Interval, Selection, UnusedConfirmation


def not_taken(selection: Selection) -> list[str]:
    """One sentence a setting; without what the recommendation's own reason tells."""
    told = selection.recommendation.reason if selection.recommendation else ""
    chosen = selection.recommendation.arm if selection.recommendation else None
    taken = next((found for found in selection.confirmations if found.arm == chosen and found.confirmed), None)
    current = [
        f"Measured again and not taken: {found.arm} ({found.setting}), {_why(found, taken)}."
        for found in selection.confirmations
        if found.confirmed and found is not taken and found.reason not in told
    ]
    earlier = [
        f"Measured again and not taken: an earlier {found.arm}, {_figure(found.confirmed)}; what was measured after it "
        f"made another choice{_logs(found)}."
        for found in selection.unused_confirmations
    ]
    return current + earlier


def _why(found: Confirmation, taken: Confirmation | None) -> str:
    figure = _figure(found.confirmed)
    if found.verdict == "withdrawn":
        return f"withdrawn: {found.reason}"
    if taken is None:
        return figure
    tie = " A tie goes to the static setting" if taken.setting == "static" else ""
    return f"{figure}, against {interval(taken.confirmed)}x of {taken.arm}.{tie}".rstrip(".")


def _figure(confirmed: Interval | None) -> str:
    return f"{interval(confirmed)}x at the mix" if confirmed else "measured on too little of the mix for a figure"


def _logs(found: UnusedConfirmation) -> str:
    return f" (the server's log: {', '.join(found.server_logs)})" if found.server_logs else ""
