"""What an open loop offered, and whether the server kept up with it. Pure."""

from collections.abc import Sequence
from itertools import combinations
from statistics import median

from orchestrator.config import Strict

MAX_LATENCY_GROWTH = 0.1
"""Seconds by which requests take longer for every second that they arrive later; above it the queue grows. A server
that serves 1 / (1 + g) of the requests offered makes the one that arrives at t wait g x t longer."""
RAMP_UP = 1 / 3
"""Share of the requests that find a server which is still filling up."""
MIN_REQUESTS = 6
"""After the ramp-up; fewer tell nothing about growth."""
MOST_REQUESTS = 400
"""Evenly chosen where there are more: the slopes between any two of them are many."""
MAX_LATENESS = 0.02
"""Median lateness of sending, as a share of the mean gap between requests, above which the load is not what it says."""
LATENESS_FLOOR_S = 0.005
"""Lateness that any load may have: a busy machine wakes a process that late."""


class OpenLoop(Strict):
    """One block's arrivals."""

    offered_requests_per_s: float | None
    """By the times they were due; None for a single request, or for several at once."""
    median_lateness_s: float
    """Sent after due."""
    max_lateness_s: float
    latency_growth: float | None
    """Slope of time in the server over time of arrival after the ramp-up, s/s (Theil and Sen); None where too few
    requests tell."""
    is_saturated: bool | None
    """The queue grew: the server cannot keep up. None where it cannot be told."""


def open_loop_of(due_s: Sequence[float], sent_s: Sequence[float], end_s: Sequence[float]) -> OpenLoop:
    """From the times of at least one request, in the order they were due, in seconds from one start."""
    lateness = [sent - due for sent, due in zip(sent_s, due_s, strict=True)]
    span_s = due_s[-1] - due_s[0]
    latency_s = [end - due for end, due in zip(end_s, due_s, strict=True)]
    growth = _growth(due_s, latency_s)
    return OpenLoop(
        offered_requests_per_s=(len(due_s) - 1) / span_s if span_s > 0 else None,
        median_lateness_s=median(lateness),
        max_lateness_s=max(lateness),
        latency_growth=growth,
        is_saturated=_is_saturated(growth, (1 - RAMP_UP) * span_s, median(latency_s)),
    )


def late_client(facts: OpenLoop) -> str | None:
    """Why the load was not the one that was asked for."""
    rate = facts.offered_requests_per_s
    allowed_s = max(LATENESS_FLOOR_S, MAX_LATENESS / rate) if rate else LATENESS_FLOOR_S
    if facts.median_lateness_s <= allowed_s:
        return None
    return (
        f"requests were sent {1000 * facts.median_lateness_s:.3g} ms after they were due (median; at most "
        f"{1000 * allowed_s:.3g} ms are allowed): the node has no CPU left for the load generator"
    )


def _is_saturated(growth: float | None, settled_span_s: float, latency_s: float) -> bool | None:
    """A burst that has arrived before its first requests end shows no growth however much it is: all end together."""
    if growth is None or growth > MAX_LATENCY_GROWTH:
        return None if growth is None else True
    return False if settled_span_s > latency_s else None


def _growth(due_s: Sequence[float], latency_s: Sequence[float]) -> float | None:
    settled = list(zip(due_s, latency_s, strict=True))[int(RAMP_UP * len(due_s)) :]
    settled = settled[:: -(-len(settled) // MOST_REQUESTS) or 1]
    slopes = [(b - a) / (t - s) for (s, a), (t, b) in combinations(settled, 2) if t > s]
    return median(slopes) if len(settled) >= MIN_REQUESTS and slopes else None
