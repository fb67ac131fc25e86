"""How a command ends before it is done: in order at a first Ctrl-C or SIGTERM, at once at a second."""

import os
import signal
import sys
from typing import NoReturn

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes, as shells have them."""


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
            os.write(sys.stderr.fileno(), b"\nstopping in order; Ctrl-C again stops at once\n")
        raise KeyboardInterrupt

    @property
    def exit_code(self) -> int:
        return TERMINATED if self.received == signal.SIGTERM else INTERRUPTED


def leave_ray_behind(exit_code: int) -> NoReturn:
    """An orderly end would say good-bye to a cluster that is gone, and wait for it a minute."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
