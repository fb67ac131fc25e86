"""The load generator comes before the engine where it may, and nothing else does."""

import os
import subprocess
import sys

import pytest

from tasks.real_time import in_real_time, may_be_in_real_time, waited_s

SHOW = "import os; print(os.sched_getscheduler(0))"


@pytest.mark.skipif(
    not may_be_in_real_time(), reason="this user may not schedule in real time: neither root nor a limit on rtprio"
)
def test_thread_is_in_real_time_meanwhile_and_what_it_starts_is_not() -> None:
    with in_real_time():
        assert os.sched_getscheduler(0) == os.SCHED_RR | os.SCHED_RESET_ON_FORK
        child = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert int(child.stdout) == os.SCHED_OTHER


def test_user_who_may_not_measures_as_any_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with in_real_time():
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert not may_be_in_real_time()


def test_waiting_only_grows() -> None:
    before, after = waited_s(), waited_s()

    assert before is None or (after is not None and after >= before)
