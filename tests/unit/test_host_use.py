"""What other processes did to a block, from two readings."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from orchestrator.config import Hardware
from orchestrator.records import HostUse
from tasks.host_use import HostReading, crowded, host_use

BEFORE = HostReading(at_s=100, busy_s=1000, steal_s=10, own_s=500, num_cpus=4, clock_mhz=2000)
LOCAL = Hardware(name="local")


def after(**changes: float | None) -> HostReading:
    """Ten seconds later, in which engine and client took 30 CPU seconds and nobody else any."""
    fields = {"at_s": 110, "busy_s": 1030, "steal_s": 10, "own_s": 530, "num_cpus": 4, "clock_mhz": 2400}
    return HostReading(**(fields | changes))  # type: ignore[arg-type]


def use(other_cpu_cores: float) -> HostUse:
    return HostUse(num_cpus=4, other_cpu_cores=other_cpu_cores)


def test_nobody_else_ran() -> None:
    assert host_use(BEFORE, after()) == HostUse(num_cpus=4, other_cpu_cores=0, steal_share=0, clock_mhz=2400)


def test_what_neither_engine_nor_client_took_is_others() -> None:
    assert host_use(BEFORE, after(busy_s=1040)).other_cpu_cores == pytest.approx(1.0)


def test_rounding_of_ticks_never_makes_it_negative() -> None:
    assert host_use(BEFORE, after(busy_s=1029.9)).other_cpu_cores == 0


def test_steal_is_a_share_of_all_cpu_time() -> None:
    assert host_use(BEFORE, after(steal_s=14)).steal_share == pytest.approx(0.1)
    assert host_use(BEFORE, after(steal_s=None)).steal_share is None


@pytest.mark.parametrize(("other_cpu_cores", "is_crowded"), [(0.0, False), (0.39, False), (0.45, True), (4.0, True)])
def test_more_than_the_share_of_the_cpus_makes_a_block_void(other_cpu_cores: float, is_crowded: bool) -> None:
    assert (crowded(LOCAL, use(other_cpu_cores), wall_s=10) is not None) == is_crowded


def test_reason_says_how_much_and_what_to_do() -> None:
    assert crowded(LOCAL, use(0.84), wall_s=10) == (
        "other processes used 0.84 of 4 CPUs; end them, or allow it with hardware.max_other_cpu_share (now 0.1)"
    )


def test_a_few_ticks_in_a_short_block_say_nothing() -> None:
    assert crowded(LOCAL, use(0.84), wall_s=0.1) is None


def test_no_limit_allows_everything() -> None:
    assert crowded(Hardware(name="local", max_other_cpu_share=None), use(4), wall_s=10) is None


def test_engine_and_its_children_are_not_others() -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    engine = subprocess.Popen([sys.executable, "-c", child])
    try:
        while not (descendants := psutil.Process(engine.pid).children(recursive=True)):
            time.sleep(0.01)
        before = HostReading.take(engine.pid)
        while sum(descendants[0].cpu_times()[:2]) < 0.3:
            time.sleep(0.01)
        own_s = HostReading.take(engine.pid).own_s - before.own_s
    finally:
        for process in (*psutil.Process(engine.pid).children(recursive=True), psutil.Process(engine.pid)):
            process.kill()
        engine.wait()

    assert own_s > 0.1


def test_reading_of_one_cpu_counts_what_runs_on_it_alone() -> None:
    cpu = max(os.sched_getaffinity(0))
    loop = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", loop])
    try:
        before = HostReading.take(None, [cpu])
        while sum(psutil.Process(busy.pid).cpu_times()[:2]) < 0.3:
            time.sleep(0.01)
        found = host_use(before, HostReading.take(None, [cpu]))
    finally:
        busy.kill()
        busy.wait()

    assert found.num_cpus == 1
    assert 0 < found.other_cpu_cores <= 1.1


def test_readings_of_all_cpus_add_up_to_the_whole_machine() -> None:
    each = HostReading.take(os.getpid(), range(os.cpu_count() or 1))
    whole = HostReading.take(os.getpid())

    assert each.num_cpus == whole.num_cpus
    assert each.busy_s == pytest.approx(whole.busy_s, rel=0.01, abs=1)


def test_engine_that_is_gone_is_no_error() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()

    assert HostReading.take(ended.pid).busy_s > 0
