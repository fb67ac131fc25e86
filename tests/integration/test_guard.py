"""The guard with real processes: whatever happens to the owner, nothing of the command stays."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tasks.guard import GuardedProcess

ROOT = Path(__file__).parents[2]
GRACE_S = 0.5
GONE_WITHIN_S = 10.0

# Four processes, two of them in a session of their own whose parent has ended; all ignore SIGTERM.
STUBBORN_TREE = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
os.fork()
time.sleep(600)
"""
SIZE_OF_TREE = 4

OWNER = """
import os, sys, time
from pathlib import Path
from tasks.guard import GuardedProcess
log, *argv = sys.argv[1:]
process = GuardedProcess(argv, env=os.environ, log_path=Path(log), grace_s=0.5)
time.sleep(600)
"""


def _with_token(token: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if token in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def _wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + GONE_WITHIN_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture
def token() -> Iterator[str]:
    """An argument that marks the processes of one test; what a failed test leaves is killed."""
    token = uuid.uuid4().hex
    yield token
    for process in _with_token(token):
        process.kill()


@pytest.fixture
def start(tmp_path: Path, token: str) -> Iterator[Callable[..., GuardedProcess]]:
    started = []

    def start(code: str, **env: str) -> GuardedProcess:
        argv = [sys.executable, "-c", code, token]
        started.append(
            GuardedProcess(argv, env={**os.environ, **env}, log_path=tmp_path / "log" / "command.log", grace_s=GRACE_S)
        )
        return started[-1]

    yield start
    for process in started:
        process.stop()


def _guard_of(process: GuardedProcess) -> psutil.Process:
    guard = psutil.Process(process.pid).parent()
    assert guard is not None
    return guard


def test_output_goes_to_the_log_and_the_exit_code_is_reported(
    start: Callable[..., GuardedProcess], tmp_path: Path
) -> None:
    process = start("import sys; print('out'); sys.exit('err')")
    assert _wait_for(lambda: process.poll() is not None)
    assert process.poll() == 1
    assert sorted((tmp_path / "log" / "command.log").read_text().split()) == ["err", "out"]


def test_a_command_that_heeds_sigterm_is_not_killed(start: Callable[..., GuardedProcess], token: str) -> None:
    process = start("import time; time.sleep(600)")
    assert process.poll() is None
    process.stop()
    assert process.poll() == -signal.SIGTERM
    assert _with_token(token) == []


def test_stop_kills_a_tree_that_ignores_sigterm_and_its_orphans(
    start: Callable[..., GuardedProcess], token: str
) -> None:
    process = start(STUBBORN_TREE)
    assert _wait_for(lambda: len(_with_token(token)) == SIZE_OF_TREE + 1)  # and the guard
    assert GRACE_S <= process.stop() < GRACE_S + GONE_WITHIN_S
    assert process.poll() == -signal.SIGKILL
    assert _with_token(token) == []


def test_second_stop_does_nothing_and_returns_the_same_time(start: Callable[..., GuardedProcess]) -> None:
    process = start("import time; time.sleep(600)")
    assert process.stop() == process.stop()


def test_what_a_command_leaves_behind_when_it_ends_is_ended_too(
    start: Callable[..., GuardedProcess], token: str
) -> None:
    process = start("import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nsys.exit(3)")
    assert _wait_for(lambda: process.poll() == 3)
    assert _wait_for(lambda: _with_token(token) == [])


@pytest.mark.parametrize("whole_group", [False, True], ids=["owner", "process-group-of-owner"])
def test_nothing_survives_when_the_owner_is_killed_with_sigkill(tmp_path: Path, token: str, whole_group: bool) -> None:
    argv = [sys.executable, "-c", OWNER, str(tmp_path / "command.log"), sys.executable, "-c", STUBBORN_TREE, token]
    owner = subprocess.Popen(argv, cwd=ROOT, start_new_session=True)
    assert _wait_for(lambda: len(_with_token(token)) == SIZE_OF_TREE + 2)  # and the guard and the owner
    if whole_group:
        os.killpg(owner.pid, signal.SIGKILL)
    else:
        owner.kill()
    owner.wait()
    assert _wait_for(lambda: _with_token(token) == [])


def test_the_command_is_ended_when_the_guard_itself_is_killed(start: Callable[..., GuardedProcess], token: str) -> None:
    process = start("import time; time.sleep(600)")
    _guard_of(process).kill()
    assert _wait_for(lambda: _with_token(token) == [])
    with pytest.raises(ChildProcessError, match="guards the command"):
        process.poll()


def test_a_sigterm_to_the_guard_ends_the_command(start: Callable[..., GuardedProcess], token: str) -> None:
    process = start("import time; time.sleep(600)")
    _guard_of(process).terminate()
    assert _wait_for(lambda: process.poll() == -signal.SIGTERM)
    assert _wait_for(lambda: _with_token(token) == [])


def test_environment_reaches_the_command_and_stays_out_of_every_argv(
    start: Callable[..., GuardedProcess], token: str, tmp_path: Path
) -> None:
    process = start("import os, time; print(os.environ['SECRET'], flush=True); time.sleep(600)", SECRET="swordfish")
    assert _wait_for(lambda: "swordfish" in (tmp_path / "log" / "command.log").read_text())
    commands = [" ".join(found.cmdline()) for found in (_guard_of(process), psutil.Process(process.pid))]
    assert all(token in command for command in commands)
    assert not any("swordfish" in command for command in commands)
    process.stop()


def test_modules_in_the_working_folder_do_not_shadow_the_guards_own(
    start: Callable[..., GuardedProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "psutil.py").write_text("raise SystemExit('wrong module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = start("raise SystemExit(0)")
    assert _wait_for(lambda: process.poll() == 0)


def test_a_missing_executable_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="/nowhere/vllm"):
        GuardedProcess(["/nowhere/vllm"], env=os.environ, log_path=tmp_path / "log", grace_s=GRACE_S)
