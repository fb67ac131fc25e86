"""A process learns that its head is out of reach, and not from one lost packet."""

import socket
import subprocess
import sys
import threading
import time

import pytest

from tasks import lifeline
from tasks.lifeline import CUT_OFF_EXIT_CODE, Lifeline, answers


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "PERIOD_S", 0.05)


def test_address_that_listens_answers_and_one_that_does_not_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert answers(address)
    assert not answers(address)


def test_lifeline_is_cut_once_when_nothing_holds_it_for_so_long() -> None:
    cut: list[float] = []
    begun = time.monotonic()
    Lifeline(lambda: False, lambda: cut.append(time.monotonic() - begun), cut_after_s=0.3)
    time.sleep(1)
    assert len(cut) == 1
    assert cut[0] >= 0.3


def test_one_look_that_holds_starts_the_count_anew() -> None:
    looks = iter([False, False, True] * 20)
    cut = threading.Event()
    line = Lifeline(lambda: next(looks), cut.set, cut_after_s=0.14)
    assert not cut.wait(1)
    line.release()


def test_released_lifeline_is_never_cut() -> None:
    cut = threading.Event()
    Lifeline(lambda: False, cut.set, cut_after_s=0.2).release()
    assert not cut.wait(0.5)


def test_process_that_was_stopped_for_long_looks_twice_before_it_gives_up() -> None:
    looks = iter([False, True, True, True, True, True, True, True, True, True, True, True, True])
    cut = threading.Event()
    line = Lifeline(lambda: next(looks), cut.set, cut_after_s=0)
    assert not cut.wait(0.4)
    line.release()


def test_process_ends_itself_when_its_head_is_gone() -> None:
    code = (
        "import sys, time, tasks.lifeline as lifeline\n"
        "lifeline.PERIOD_S, lifeline.CUT_OFF_AFTER_S = 0.05, 0.2\n"
        "lifeline.Lifeline.__init__.__kwdefaults__['cut_after_s'] = 0.2\n"
        "line = lifeline.end_with(sys.argv[1])\n"
        "time.sleep(20)"
    )
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        assert subprocess.run([sys.executable, "-c", code, address], check=False).returncode == CUT_OFF_EXIT_CODE
