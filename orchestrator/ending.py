"""How a command ends before it is done: in order at a first Ctrl-C or SIGTERM, at once at a second."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes, as shells have them."""

_under_way: list[tuple[str, Callable[[], None]]] = []
"""What a Ctrl-C ends, and what clears the screen for the word on it; the last one counts."""


@contextmanager
def said_at_interrupt(what: str, clear: Callable[[], None] = lambda: None) -> Iterator[None]:
    """While the block runs a Ctrl-C says at once that it is `what`.

    Args:
        clear: takes a live view off the screen, which would draw over it.
    """
    _under_way.append((what, clear))
    try:
        yield
    finally:
        _under_way.pop()


class EndInOrder:
    """Ends the command with all left in order, at Ctrl-C or SIGTERM; the second time it ends at once (its servers have
    guards of their own). Of what a handler may raise, Ray changes all but this."""

    def __init__(self) -> None:
        self.received: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as for a shell's job in the background
                signal.signal(number, self)

    def __call__(self, number: int, frame: object) -> NoReturn:
        self.received = number
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        if number == signal.SIGINT:
            what, clear = _under_way[-1] if _under_way else ("stopping", lambda: None)
            clear()
            os.write(sys.stderr.fileno(), f"\n{what} (a second Ctrl-C kills)\n".encode())
        raise KeyboardInterrupt

    @property
    def exit_code(self) -> int:
        return TERMINATED if self.received == signal.SIGTERM else INTERRUPTED


def leave_ray_behind(exit_code: int) -> NoReturn:
    """An orderly end would say good-bye to a cluster that is gone, and wait for it a minute."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
