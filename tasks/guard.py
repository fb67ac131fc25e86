"""Runs a command so that nothing of it outlives its owner, however the owner ends.

Two halves. `GuardedProcess` is the owner's side. The other half is this file run as a script: a process of its own
session, no child of the owner, whose stdin is a pipe that only the owner holds open. When that pipe closes (the owner
stopped, died, or was killed with -9 together with its process group) or when the command ends, the guard ends every
descendant: SIGTERM, a grace, SIGKILL. As a child subreaper it inherits orphaned grandchildren, so it finds them too.

The script is started with `python -I` and imports the standard library and psutil only, so that neither the owner's
working folder nor PYTHONPATH decides what runs here. Its stderr is the command's log; secrets travel in the
environment, never in argv. Linux only (prctl).
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

START_TIMEOUT_S = 30.0
"""For the guard to report that it runs the command: a Python start, slow on a loaded machine."""
KILL_WAIT_S = 10.0
"""After SIGKILL; longer means a process that hangs in the kernel."""
AFTERWARDS_S = 30.0
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class GuardedProcess:
    """A command that runs under a guard; closing (`stop`, or this process ending in any way) ends all of it.

    Args:
        argv: the command; its first part is an executable's path or is found on PATH of `env`.
        env: the command's whole environment.
        log_path: its stdout and stderr are appended here.
        grace_s: seconds between SIGTERM and SIGKILL.
        afterwards: a command that the guard runs once nothing of the other is left, for what is no process of this
            node's: removing a container. Its output goes to the log, its exit code nowhere.

    Raises:
        OSError: the command cannot be executed, or the guard itself did not start.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log_path: Path,
        grace_s: float,
        afterwards: Sequence[str] = (),
    ) -> None:
        self.grace_s = grace_s
        self._has_afterwards = bool(afterwards)
        self.exit_code: int | None = None
        self._stop_s: float | None = None
        self._unread = b""
        self._pid: int | None = None
        self._ended = False
        self._survivors: list[int] = []
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", __file__, str(grace_s), json.dumps(list(afterwards)), *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(env),
            )
        try:
            self._await_start(argv[0])
        except BaseException:
            self._close_pipes()
            raise

    @property
    def pid(self) -> int:
        """The command's process id (the guard has another)."""
        if self._pid is None:
            raise ChildProcessError("the command has not started")
        return self._pid

    def poll(self) -> int | None:
        """The command's exit code (negative: the signal that killed it); None while it runs.

        Raises:
            ChildProcessError: the guard itself died; the command was sent SIGTERM by the kernel.
        """
        if self._stop_s is None:
            self._read_status(timeout_s=0)
        if self.exit_code is None and self._ended:
            raise ChildProcessError("the process that guards the command was killed")
        return self.exit_code

    def stop(self) -> float:
        """End the command and all its descendants; a second call does nothing more.

        Returns:
            Seconds it took, the first call's.

        Raises:
            TimeoutError: something survives SIGKILL.
        """
        if self._stop_s is None:
            begin = time.monotonic()
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            deadline = begin + self.grace_s + 2 * KILL_WAIT_S + (AFTERWARDS_S if self._has_afterwards else 0)
            while not self._ended:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"process {self._pid} and its children did not end within {deadline - begin} s")
                self._read_status(timeout_s=1)
            self._close_pipes()
            if self._survivors:
                raise TimeoutError(f"processes {self._survivors} survive SIGKILL")
            self._stop_s = time.monotonic() - begin
        return self._stop_s

    def _await_start(self, executable: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._pid is None and not self._ended and time.monotonic() < deadline:
            self._read_status(timeout_s=1)
        if self._pid is None:
            raise ChildProcessError(f"no guard for {executable!r} within {START_TIMEOUT_S:.0f} s")
        self._guard.wait()  # the process that was forked from: it ended before the guard reported anything

    def _read_status(self, timeout_s: float) -> None:
        """Take in what the guard has reported, waiting for more at most `timeout_s`; end of file means it is gone."""
        assert self._guard.stdout is not None
        while not self._ended and select.select([self._guard.stdout], [], [], timeout_s)[0]:
            data = os.read(self._guard.stdout.fileno(), 65536)
            self._ended = not data
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            timeout_s = 0

    def _take(self, status: dict[str, Any]) -> None:
        if "errno" in status:
            raise OSError(status["errno"], status["error"], status["filename"])
        self._pid = status.get("pid", self._pid)
        self.exit_code = status.get("exit_code", self.exit_code)
        self._survivors = status.get("survivors", self._survivors)

    def _close_pipes(self) -> None:
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                pipe.close()


def guard(command: Sequence[str], grace_s: float, afterwards: Sequence[str]) -> None:
    """The guard's own process: run `command` until it ends or stdin closes, then end every descendant."""
    _detach()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signals = _signals_as_bytes()
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr, preexec_fn=_end_with_guard
        )
    except OSError as error:
        _report(errno=error.errno, error=error.strerror, filename=error.filename)
        return
    _report(pid=child.pid)
    running = True
    while running:
        ready = select.select([0, signals], [], [])[0]
        asked = 0 in ready and not os.read(0, 4096)
        told = signals in ready and signal.SIGTERM in os.read(signals, 4096)
        running = not _reap(child.pid) and not asked and not told
    survivors = _end_descendants(child.pid, grace_s)
    if afterwards:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # as far as it goes: nobody is left to tell
            subprocess.run(afterwards, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=AFTERWARDS_S, check=False)
    _report(survivors=survivors)


def _detach() -> None:
    """Leave the owner's session and process group, and be nobody's child (Ray kills workers with their children)."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def _end_with_guard() -> None:
    """The last line of defence: the kernel ends the command when the guard itself is killed."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _signals_as_bytes() -> int:
    """A file descriptor that yields one byte per SIGCHLD or SIGTERM: no polling while a measurement runs."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return reader


def _reap(child_pid: int) -> bool:
    """Collect ended processes, adopted ones too; True when the command is among them (its exit code is reported)."""
    child_ended = False
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return child_ended
        if pid == 0:
            return child_ended
        if pid == child_pid:
            _report(exit_code=os.waitstatus_to_exitcode(status))
            child_ended = True


def _end_descendants(child_pid: int, grace_s: float) -> list[int]:
    """SIGTERM to the command, which knows how to end its children, and to what it leaves behind; then SIGKILL.

    Returns the process ids that survive even that."""
    told: set[psutil.Process] = set()
    deadline = time.monotonic() + grace_s
    while (alive := _descendants(child_pid)) and time.monotonic() < deadline:
        command = [process for process in alive if process.pid == child_pid]
        for process in set(command or alive) - told:
            _send(process, signal.SIGTERM)
            told.add(process)
        time.sleep(_POLL_S)
    deadline = time.monotonic() + KILL_WAIT_S
    while (alive := _descendants(child_pid)) and time.monotonic() < deadline:
        for process in alive:
            _send(process, signal.SIGKILL)
        time.sleep(_POLL_S)
    return [process.pid for process in alive]


def _descendants(child_pid: int) -> list[psutil.Process]:
    _reap(child_pid)
    return psutil.Process().children(recursive=True)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it may end between the listing and now
        process.send_signal(number)


def _report(**status: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # the owner may be gone: that is what the guard is for
        os.write(1, json.dumps(status).encode() + b"\n")


if __name__ == "__main__":
    guard(sys.argv[3:], float(sys.argv[1]), json.loads(sys.argv[2]))
