"""`vllm`, with the interpreters of its processes started side by side instead of one after the other.

A CPU server is three processes: API server, engine core, worker. Each starts the next by multiprocessing's `spawn`, in
a new interpreter that first imports torch and vLLM for 6 to 8 s. This script runs in place of the `vllm` command, with
the same arguments. Every process that it starts starts its own child's interpreter at once, which imports too and then
waits, without CPU, for the moment when multiprocessing would have started it.

Nothing may differ by that in what is measured. So the early interpreter is a new one, with the environment that the
child of the last server was given, taken from a small file in the user's cache folder; forking would be quicker, but an
OpenMP runtime that torch has initialised binds its threads differently after a fork. The interpreter is used only if
environment, allowed CPUs and working folder are, when the child is due, exactly what it was started with. If they are
not, a new one is started then, and the next server starts with what was learnt.

Started with `python -P`, so that vLLM's imports do not look in this folder first. Standard library only; Linux only.
"""

import contextlib
import gc
import importlib
import json
import multiprocessing.util
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_CHILD = "--child"
_NUM_LOW_FDS = 256
"""File descriptors that a child may be given under their parent's numbers; it keeps them free until then."""
_IMPORTED_FIRST = (
    ("vllm.entrypoints.cli.main", "vllm.entrypoints.cli.serve"),
    ("vllm.v1.engine.core",),
    ("vllm.v1.executor.multiproc_executor", "vllm.v1.worker.cpu_worker"),
)
"""By generation: the API server, its engine core, its workers."""


class _Inherited(NamedTuple):
    """What an interpreter takes over from the process that starts it."""

    environment: Mapping[str, str]
    cpus: frozenset[int]
    folder: Path

    @classmethod
    def now(cls) -> "_Inherited":
        return cls(dict(os.environ), frozenset(os.sched_getaffinity(0)), Path.cwd())


class _Interpreter:
    """A child of this process that waits to be told what it is."""

    def __init__(self, inherited: _Inherited, generation: int) -> None:
        self.inherited = inherited
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            theirs.set_inheritable(True)
            arguments = [sys.executable, "-P", __file__, _CHILD, str(theirs.fileno()), str(generation)]
            self.pid = os.posix_spawn(sys.executable, arguments, inherited.environment)

    def become(self, code: str, fds: Sequence[int]) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)  # which vLLM raises
        request = {"code": code, "fds": fds, "open_files": limits}
        with self._asking:
            socket.send_fds(self._asking, [json.dumps(request).encode()], fds)

    def dismiss(self) -> None:
        """End it; its own early children end when they find it gone."""
        self._asking.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class _Children:
    """Stands in for multiprocessing.util.spawnv_passfds in a process whose children are of one generation."""

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._first_environment = dict(os.environ)
        self._changes: list[dict[str, str | None]] = []
        self._spawn: Any = multiprocessing.util.spawnv_passfds
        self._waiting = [self._ahead(changes) for changes in _read_changes(generation)]

    def start(self, path: bytes, arguments: Sequence[str], fds: Sequence[int]) -> int:
        """The child's process id; what is no child of multiprocessing, or runs under a wrapper, starts as ever."""
        is_wrapped = os.fsdecode(path) != sys.executable
        if is_wrapped or "--multiprocessing-fork" not in arguments or max(fds) >= _NUM_LOW_FDS:
            return int(self._spawn(path, arguments, fds))
        inherited = _Inherited.now()
        child = next((one for one in self._waiting if one.inherited == inherited), None)
        if child:
            self._waiting.remove(child)
        else:
            while self._waiting:
                self._waiting.pop().dismiss()
            child = _Interpreter(inherited, self._generation)
        code = arguments[-2]  # PYTHON [FLAGS] -c CODE --multiprocessing-fork
        try:
            child.become(code, fds)
        except OSError:  # it died while it waited
            child.dismiss()
            child = _Interpreter(inherited, self._generation)
            child.become(code, fds)
        self._changes.append(_changes(self._first_environment, inherited.environment))
        _write_changes(self._generation, self._changes)
        return child.pid

    def _ahead(self, changes: Mapping[str, str | None]) -> _Interpreter:
        changed = {**self._first_environment, **changes}
        environment = {name: value for name, value in changed.items() if value is not None}
        return _Interpreter(_Inherited.now()._replace(environment=environment), self._generation)


def main() -> None:
    """Be `vllm`, or, as a child, wait for what multiprocessing wants run and run it."""
    is_child = sys.argv[1:2] == [_CHILD]
    generation = int(sys.argv[3]) if is_child else 0
    held = _hold_low_fds(int(sys.argv[2])) if is_child else []
    multiprocessing.util.spawnv_passfds = _Children(generation + 1).start  # type: ignore[assignment]
    with _without_collecting_garbage():
        for module in _IMPORTED_FIRST[min(generation, len(_IMPORTED_FIRST) - 1)]:
            with contextlib.suppress(ImportError):  # another version's layout: vLLM imports what it needs later
                importlib.import_module(module)
    if is_child:
        code = _wait_to_be_told(int(sys.argv[2]), held)
        sys.argv = ["-c", "--multiprocessing-fork"]
        exec(code, {"__name__": "__main__"})  # as `python -c` would
    else:
        sys.argv[0] = "vllm"
        importlib.import_module("vllm.entrypoints.cli.main").main()


@contextlib.contextmanager
def _without_collecting_garbage() -> Iterator[None]:
    """Importing creates objects that stay: looking for garbage among them is a fifth of its time.

    They end in the oldest generation, where a start without this has them too.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.unfreeze()
    gc.enable()


def _hold_low_fds(asked: int) -> list[int]:
    """Occupy them, so that what is opened from now on, by imports too, gets higher numbers."""
    os.set_inheritable(asked, False)
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] < _NUM_LOW_FDS:
        held.append(os.open(os.devnull, os.O_RDONLY))
    return held


def _wait_to_be_told(fd: int, held: Sequence[int]) -> str:
    """The code to run, once its file descriptors have the numbers by which it knows them."""
    with socket.socket(fileno=fd) as asked:
        data, received, _, _ = socket.recv_fds(asked, 65536, _NUM_LOW_FDS)
    if not data:
        os._exit(0)  # not wanted, or the process that would have asked has ended
    request = json.loads(data)
    for low in held:
        os.close(low)
    for high, number in zip(received, request["fds"], strict=True):
        os.dup2(high, number, inheritable=False)
        os.close(high)
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["open_files"]))
    return str(request["code"])


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """What turns one environment into the other; None removes. Unchanged secrets are not in it."""
    return {
        name: after.get(name) for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)
    }


def _changes_path(generation: int) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "specsweep" / f"engine_children_{generation}.json"


def _read_changes(generation: int) -> list[dict[str, str | None]]:
    try:
        changes: list[dict[str, str | None]] = json.loads(_changes_path(generation).read_text())
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a user without a home
        return []
    return changes


def _write_changes(generation: int, changes: Sequence[Mapping[str, str | None]]) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # no home, or a read-only one, costs the head start, nothing else
        path = _changes_path(generation)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(changes))
        unfinished.replace(path)


if __name__ == "__main__":
    main()
