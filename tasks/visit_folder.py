"""A visit's folder for temporary files on its node, and what killed visits left there."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import NodeUnavailable

PREFIX = "specsweep-visit-"
MIN_FREE_MB = 64
"""For a server's log and what the engine compiles."""
MAX_SOCKETS_DIR_BYTES = 107 - len("/") - 36
"""Of a folder for vLLM's sockets, which it names by UUIDs: Linux takes 107 bytes for the whole path (unix(7))."""
SHORT_TMP = Path("/tmp")


@contextmanager
def visit_folder() -> Iterator[Path]:
    """A new folder below TMPDIR, removed at the end. Those of visits whose process was killed are removed at the start.

    Raises:
        NodeUnavailable: it cannot be made.
    """
    with _own_folder(Path(tempfile.gettempdir())) as folder:
        yield folder


@contextmanager
def sockets_folder(folder: Path) -> Iterator[Path]:
    """Where the engine's unix sockets may lie: the visit's `folder`, or where its path is too long for them one below
    /tmp, which is removed as that is.

    Raises:
        NodeUnavailable: it cannot be made.
    """
    if len(os.fsencode(folder)) <= MAX_SOCKETS_DIR_BYTES:
        yield folder
        return
    with _own_folder(SHORT_TMP) as short:
        yield short


@contextmanager
def _own_folder(parent: Path) -> Iterator[Path]:
    for left in parent.glob(f"{PREFIX}*"):
        _remove_if_free(left)
    try:
        folder, lock = _make_locked(parent)
    except OSError as error:
        raise NodeUnavailable(f"no folder for temporary files can be made: {error}; see TMPDIR there") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def require_room(folder: Path) -> None:
    """Raise NodeUnavailable where the disk is full: the engine would fail in ways that say something else."""
    free_mb = shutil.disk_usage(folder).free / 1e6
    if free_mb < MIN_FREE_MB:
        raise NodeUnavailable(
            f"only {free_mb:.0f} MB are free in {folder.parent}, a visit needs {MIN_FREE_MB}; make room, or give Ray's "
            "workers there another TMPDIR"
        )


def _make_locked(parent: Path) -> tuple[Path, int]:
    """The folder, and a lock on it that ends with this process, however that ends; no child inherits it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = _lock(folder)
        if lock is not None and folder.exists():
            return folder, lock
        if lock is not None:
            os.close(lock)  # another visit took it for a left one before it was locked


def _lock(folder: Path) -> int | None:
    """None where another process holds it, or it is gone."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _remove_if_free(folder: Path) -> None:
    lock = _lock(folder)
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
