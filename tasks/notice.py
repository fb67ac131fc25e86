"""The announced end of this node, in a file that `tasks.interruption` writes and every visit on the node reads.

Beside it lies a lock that visits share while they run. A process that dies lets go of it.
"""

import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from orchestrator.config import Strict
from orchestrator.errors import NodeUnavailable

FILE_VARIABLE = "SPECSWEEP_INTERRUPTION_FILE"
DEFAULT_FILE = "/run/specsweep/interruption.json"
NO_TIME_S = 75.0
"""With less than this left a block is cut off: 60 s before the end Ray is stopped, and the engine takes 10 s to end."""
LOOK_EVERY_S = 1.0


class Notice(Strict):
    """What the cloud says it will do with this node, and when."""

    action: str
    """`terminate`, `stop` or `hibernate`."""
    time: datetime

    @property
    def left_s(self) -> float:
        """Seconds until then; negative afterwards."""
        return (self.time - datetime.now(UTC)).total_seconds()

    def __str__(self) -> str:
        return f"the cloud announced to {self.action} this node at {self.time.isoformat(timespec='seconds')}"


def notice_file() -> Path:
    return Path(os.environ.get(FILE_VARIABLE) or DEFAULT_FILE)


def lock_file() -> Path:
    return notice_file().with_suffix(".lock")


def announced() -> Notice | None:
    """The notice for this node; None while there is none, and where nothing watches for one.

    Raises:
        NodeUnavailable: the file is not readable, or is something else.
    """
    try:
        return Notice.model_validate_json(notice_file().read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise NodeUnavailable(
            f"{notice_file()}: not a readable notice of tasks.interruption; remove it, or name another file in "
            f"{FILE_VARIABLE}: {error}"
        ) from error


@contextmanager
def under_way() -> Iterator[None]:
    """Tells the watcher of this node, where there is one, that a visit runs."""
    try:
        lock = os.open(lock_file(), os.O_RDONLY)  # no more is needed, and the folder may be root's
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)


def any_under_way() -> bool:
    """Whether some visit on this node runs; asked by the watcher."""
    with lock_file().open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def ended_in_time(pid: int | None) -> Iterator[None]:
    """Sends the engine `pid` SIGTERM once an announced interruption leaves no time for what it is at; None: it is not
    ours to end."""
    if pid is None:
        yield
        return
    left = threading.Event()

    def look() -> None:
        while not left.wait(LOOK_EVERY_S):
            notice = announced()
            if notice and notice.left_s < NO_TIME_S:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                return

    watching = threading.Thread(target=look, name="interruption", daemon=True)
    watching.start()
    try:
        yield
    finally:
        left.set()
        watching.join()
