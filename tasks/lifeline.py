"""Notices that the cluster's head cannot be reached any more: a thread that looks every few seconds.

Ray leaves a worker on a node that was cut off running for as long as the cut lasts, and a driver whose head is gone
blocked for a minute and then ends it with nothing kept in order. A TCP connection to the head tells earlier, for a
fraction of a millisecond of CPU time a look.
"""

import os
import socket
import threading
import time
from collections.abc import Callable

PERIOD_S = 3.0
CONNECT_TIMEOUT_S = 3.0
CUT_OFF_AFTER_S = 15.0
"""Without one answer. A lost packet is sent again within 3 s; a head that swaps answers within seconds."""
CUT_OFF_EXIT_CODE = 75


def answers(address: str) -> bool:
    """Whether HOST:PORT takes a connection."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


class Lifeline:
    """Calls `cut` once, from its own thread, when `holds` was never true for `cut_after_s`.

    The last of these looks is at its end: a process that was stopped for an hour is not cut off for that alone.
    """

    def __init__(
        self, holds: Callable[[], bool], cut: Callable[[], None], *, cut_after_s: float = CUT_OFF_AFTER_S
    ) -> None:
        self._holds, self._cut, self._cut_after_s = holds, cut, cut_after_s
        self._released = threading.Event()
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def release(self) -> None:
        """Watch no longer."""
        self._released.set()

    def _watch(self) -> None:
        held, failures = time.monotonic(), 0
        while not self._released.wait(PERIOD_S):
            if self._holds():
                held, failures = time.monotonic(), 0
                continue
            failures += 1
            if failures > 1 and time.monotonic() - held >= self._cut_after_s and not self._released.is_set():
                self._cut()
                return


def end_with(head: str) -> Lifeline:
    """End this process when the head at HOST:PORT is out of reach, or the raylet that started it has died (which Ray
    does not see where nobody reaps it, as in some containers). Its servers end with it (see `tasks.guard`).

    At once and without any cleaning up: nothing that this process still has to say reaches anybody.
    """
    raylet = os.getppid()
    return Lifeline(lambda: os.getppid() == raylet and answers(head), lambda: os._exit(CUT_OFF_EXIT_CODE))
