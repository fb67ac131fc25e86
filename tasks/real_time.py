"""The load generator's turn on a CPU: it comes before the engine's threads where the user may ask for that.

Beside an engine that has every core, the kernel lets the load generator wait until the engine is idle: tokens are read
late, the next request is sent late, and a baseline, which sends a chunk for every token, loses more than an arm. So
while load runs its thread is scheduled in real time (SCHED_RR, at the lowest priority). It takes no more CPU time than
before; `benchmarks/client_wait.py` shows the difference.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PRIORITY = 1
SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""https://docs.kernel.org/scheduler/sched-stats.html: ns on a CPU, ns waiting for one, number of time slices."""


@contextlib.contextmanager
def in_real_time() -> Iterator[None]:
    """This thread before all that are not; as before where the user may not (neither root, nor CAP_SYS_NICE, nor a
    limit on rtprio of at least 1)."""
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        # What it starts is scheduled as usual.
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
    except OSError:  # not permitted, or none left for this control group
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, parameters)


def may_be_in_real_time() -> bool:
    """Whether this user may."""
    before = os.sched_getscheduler(0)
    with in_real_time():
        return os.sched_getscheduler(0) != before


def waited_s() -> float | None:
    """Seconds since its start that this thread was ready to run and had no CPU; None where the kernel does not tell."""
    try:
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return None
