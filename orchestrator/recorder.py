"""Records a sweep in MLflow while it runs."""

import logging
import threading
from pathlib import Path

from orchestrator.config import Tracking
from orchestrator.errors import OrchestratorError
from orchestrator.record import Mirror

_log = logging.getLogger(__name__)


class Recorder:
    """Mirrors in a thread of its own, so that MLflow can neither stop nor slow a sweep.

    Kick once before the first visit: the first mirror imports mlflow, seconds of CPU that no measurement should pay.
    """

    def __init__(self, sweep_dir: Path, tracking: Tracking) -> None:
        self._sweep_dir = sweep_dir
        self._mirror = Mirror(sweep_dir, tracking) if tracking.uri else None
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._problem: str | None = "it stopped on an unexpected error"  # until a mirror succeeded
        self._has_warned = False
        self._thread = threading.Thread(target=self._work, name="mlflow-recorder", daemon=True)
        if self._mirror is not None:
            self._thread.start()

    def kick(self) -> None:
        """Ask for a mirror of the figures now; returns at once and never raises. Artifacts wait for `close`."""
        self._wanted.set()

    def close(self, deadline_s: float) -> str | None:
        """Mirror all, artifacts included, for at most `deadline_s`; None when everything is recorded.

        Otherwise one sentence that says why not and how to catch up.
        """
        if self._mirror is None:
            return None
        self._closing.set()
        self._wanted.set()
        self._thread.join(deadline_s)
        problem = f"it was still busy after {deadline_s:g} s" if self._thread.is_alive() else self._problem
        if problem is None:
            return None
        return f"MLflow lacks part of this sweep ({problem}); to catch up: orchestrator record {self._sweep_dir}"

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._wanted.wait()
            self._wanted.clear()
            is_last = self._closing.is_set()
            if not self._attempt(is_last) and is_last:
                self._attempt(is_last)

    def _attempt(self, is_last: bool) -> bool:
        assert self._mirror is not None
        self._problem = "it stopped on an unexpected error"
        try:
            self._mirror.run(with_artifacts=is_last)
            self._problem = None
        except OrchestratorError as error:
            self._problem = str(error)
            if not self._has_warned:
                _log.warning("MLflow is not recording for now, the sweep goes on: %s", error)
            self._has_warned = True
        return self._problem is None
