"""What else the node did while a block ran: read before and after the load, nothing while it runs."""

import contextlib
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Self

import psutil

from orchestrator.config import Hardware
from orchestrator.records import HostUse
from tasks.cpu_binding import online_cpus
from tasks.host import clock_mhz

RESOLUTION_S = 0.1
"""CPU seconds that never speak against a block: the kernel counts in ticks of 10 ms, for each CPU and process."""


@dataclass(frozen=True)
class HostReading:
    """CPU seconds since some moment in the past, and the clock."""

    at_s: float
    busy_s: float
    """Of the CPUs looked at: all but idle, waiting for a disk, and steal."""
    steal_s: float | None
    own_s: float
    """Of this process, and of the engine's with all its descendants."""
    num_cpus: int
    clock_mhz: float | None

    @classmethod
    def take(cls, engine_pid: int | None, cpus: Collection[int] | None = None) -> Self:
        """Now.

        Args:
            engine_pid: the engine's first process; None where it is not on this node, or not ours to know.
            cpus: those that engine and load run on, where other servers have the rest; None: all.
        """
        times = [psutil.cpu_times()] if cpus is None else _times_of(cpus)
        # Guests are in user and nice.
        busy_s = sum(sum((each.user, each.nice, each.system, each.irq, each.softirq)) for each in times)
        steal: list[float | None] = [getattr(each, "steal", None) for each in times]
        return cls(
            at_s=time.monotonic(),
            busy_s=busy_s,
            steal_s=None if None in steal else sum(each or 0 for each in steal),
            own_s=_own_cpu_s(engine_pid),
            num_cpus=(psutil.cpu_count() or 1) if cpus is None else len(times),
            clock_mhz=clock_mhz(),
        )


def host_use(before: HostReading, after: HostReading) -> HostUse:
    """What happened between two readings."""
    wall_s = after.at_s - before.at_s
    other_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    stolen = before.steal_s is not None and after.steal_s is not None
    return HostUse(
        num_cpus=after.num_cpus,
        other_cpu_cores=max(0.0, other_s / wall_s),  # ticks may make it a little less than nothing
        steal_share=((after.steal_s or 0) - (before.steal_s or 0)) / (wall_s * after.num_cpus) if stolen else None,
        clock_mhz=after.clock_mhz,
    )


def crowded(hardware: Hardware, use: HostUse, wall_s: float) -> str | None:
    """Why a block of `wall_s` does not count because of other processes; None where it does."""
    if hardware.max_other_cpu_share is None:
        return None
    too_many = use.other_cpu_cores - hardware.max_other_cpu_share * use.num_cpus
    if too_many * wall_s <= RESOLUTION_S:
        return None
    return (
        f"other processes used {use.other_cpu_cores:.2g} of {use.num_cpus} CPUs; end them, or allow it with "
        f"hardware.max_other_cpu_share (now {hardware.max_other_cpu_share:g})"
    )


def _times_of(cpus: Collection[int]) -> list[Any]:
    """Of each of `cpus` that is online."""
    every = psutil.cpu_times(percpu=True)
    return [times for cpu, times in zip(online_cpus(len(every)), every, strict=True) if cpu in cpus]


def _own_cpu_s(engine_pid: int | None) -> float:
    own = [psutil.Process()]
    if engine_pid is None:
        return _cpu_s(own[0])
    with contextlib.suppress(psutil.NoSuchProcess):  # an engine that died is the load's to report
        engine = psutil.Process(engine_pid)
        own += [engine, *engine.children(recursive=True)]
    return sum(_cpu_s(process) for process in own)


def _cpu_s(process: psutil.Process) -> float:
    """With that of children which have ended, so that none is lost between two readings."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return sum(process.cpu_times()[:4])
    return 0.0
