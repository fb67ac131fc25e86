"""What a Ctrl-C says at once, on a real terminal."""

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
import sys, time
from rich.console import Console
from rich.live import Live
from orchestrator.ending import EndInOrder, said_at_interrupt
EndInOrder()
screen = Live("a\\nlive\\nview", console=Console(), refresh_per_second=20, transient=True)
try:
    with screen, said_at_interrupt("stopping: ending the servers", screen.stop):
        time.sleep(0.3)
        print("READY", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    time.sleep(float(sys.argv[1]))
    print("THE END", flush=True)
"""
STOPPING = "stopping: ending the servers (a second Ctrl-C kills)"


class Terminal:
    def __init__(self, stops_for_s: float) -> None:
        self.fd, other = pty.openpty()
        command = [sys.executable, "-c", SCRIPT, str(stops_for_s)]
        self.process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other)
        os.close(other)
        self.shown = ""

    def until(self, text: str, timeout_s: float = 30) -> str:
        """What came after what was asked for last."""
        deadline, begun = time.monotonic() + timeout_s, len(self.shown)
        while text not in self.shown[begun:]:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.fd], [], [], 0.1)[0]:
                self.shown += os.read(self.fd, 4096).decode()
        return self.shown[begun:]


@pytest.mark.timeout(90)
def test_ctrl_c_clears_the_live_view_and_says_what_it_ends_where_nothing_draws_over_it() -> None:
    terminal = Terminal(stops_for_s=0.3)
    terminal.until("READY")
    terminal.process.send_signal(signal.SIGINT)
    before = terminal.until(STOPPING)
    assert "\x1b[2K" in before, "the view is gone"
    assert "\x1b" not in before.partition(STOPPING)[2] + terminal.until("THE END").replace("\x1b[?25h", "")
    assert terminal.process.wait() == 0


@pytest.mark.timeout(90)
def test_a_second_ctrl_c_kills_at_once() -> None:
    terminal = Terminal(stops_for_s=60)
    terminal.until("READY")
    terminal.process.send_signal(signal.SIGINT)
    terminal.until(STOPPING)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(20) == -signal.SIGINT
