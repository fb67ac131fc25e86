"""Mirrors a sweep's folder into MLflow. The folder is the truth; catching up after an outage is mirroring again.

Only this module imports mlflow, and not before it is used: the import alone takes seconds of CPU.
"""

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from orchestrator.config import Tracking
from orchestrator.errors import TrackingFailed
from orchestrator.record_folder import CellState, State, SweepFolder, parse_state, redact, sqlite_path
from orchestrator.record_metrics import Cell, Evidence, Figure, cells_of, new_figures, sweep_figures, utc_ms
from orchestrator.record_notes import NOTE_TAG, Place, cell_note, sweep_note
from orchestrator.record_tags import cell_params, cell_tags, dataset_input, sweep_params, sweep_tags

CLIENT_ENV = {
    # With its own defaults MLflow's client blocks 247 s on a server that is down, and takes settings by environment
    # only. No retry inside the client: a retried "create run" whose answer was lost would make a second run.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    # Telemetry would use CPU and network beside the measurement.
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Set before mlflow is imported, where the user has not set them."""

SWEEP_TAG = "specsweep.sweep_id"
CELL_TAG = "specsweep.cell_id"
KIND_TAG, KIND = "mlflow.experimentKind", "custom_model_development"
"""By it the list of experiments opens ours with the menu for runs, not with that for traces and judges."""
FIGURES_PER_CALL, TEXTS_PER_CALL = 800, 90
"""MLflow takes 1,000 entities a call, at most 100 of them parameters and 100 tags."""

_ONE_AT_A_TIME = threading.Lock()
"""Sweeps that run together record into one MLflow: each would make the tables and the experiment it does not find."""


@dataclass(frozen=True)
class MirrorResult:
    """What one call added. `parent_run_id` is None where nothing is tracked."""

    parent_run_id: str | None = None
    num_runs_created: int = 0
    num_figures_sent: int = 0
    num_artifacts_sent: int = 0


def mirror(sweep_dir: Path, tracking: Tracking) -> MirrorResult:
    """Bring MLflow in line with the folder; a second call adds nothing.

    Raises:
        ConfigError: `sweep_dir` is not a sweep's folder.
        LedgerError: its ledger is damaged.
        TrackingFailed: MLflow is down, refuses, or another process is recording this sweep.
    """
    return Mirror(sweep_dir, tracking).run() if tracking.uri else MirrorResult()


@dataclass
class _Sent:
    """What a run has."""

    params: dict[str, str]
    tags: dict[str, str]
    has_inputs: bool = False


class Mirror:
    """One sweep's mirror; keeps the connection and what it has read between runs. Raises as `mirror` does."""

    def __init__(self, sweep_dir: Path, tracking: Tracking) -> None:
        self._folder = SweepFolder(sweep_dir)
        self._database = sqlite_path(tracking.uri or "")
        self._uri = f"sqlite:///{self._database}" if self._database else tracking.uri
        self._experiment = tracking.experiment
        self._client: Any = None
        self._state = State()
        self._sent: dict[str, _Sent] = {}
        self._saved: str | None = None  # the state as this object wrote it; None: look everything up again

    def run(self, with_artifacts: bool = True) -> MirrorResult:
        with _ONE_AT_A_TIME, _named_errors():
            evidence = self._folder.read()
            self._connect()
            # Two processes that mirror one sweep would each make the runs that the other has not yet.
            with FileLock(self._folder.path / ".mlflow.lock", timeout=5):
                return self._run_locked(evidence, with_artifacts)

    def _run_locked(self, evidence: Evidence, with_artifacts: bool) -> MirrorResult:
        text = self._folder.read_state_text()
        is_known = text is not None and text == self._saved
        if not is_known:
            self._state, self._sent = parse_state(text), {}
        self._saved = None  # a call that fails without an answer may have made a run all the same
        try:
            result = self._send(evidence, is_known, with_artifacts)
        finally:
            saved = self._folder.write_state(self._state)
        self._saved = saved
        return result

    def _connect(self) -> None:
        from mlflow import MlflowClient

        if self._client is None:
            # Its INFO lines about creating tables would run through the sweep's progress.
            for name in ("alembic", "mlflow.store.db"):
                logging.getLogger(name).setLevel(logging.WARNING)
            self._client = MlflowClient(self._uri)

    def _send(self, evidence: Evidence, is_known: bool, with_artifacts: bool) -> MirrorResult:
        experiment_id = self._experiment_id()
        parent = self._find_parent(experiment_id, evidence)
        is_new = parent is None
        parent = parent or self._create_parent(experiment_id, evidence)
        parent_id = parent.info.run_id
        if parent_id != self._state.parent_run_id:
            self._state, is_known = State(parent_run_id=parent_id), False
        if not is_known:
            self._find_children(experiment_id, parent_id)
        num_runs = len(self._state.cells)
        dirty = [cell for cell in cells_of(evidence) if self._is_dirty(cell, evidence)]
        place = Place(experiment_id, parent_id)
        num_figures = sum(self._send_cell(place, evidence, cell) for cell in dirty)
        num_artifacts = self._send_artifacts(parent_id) if with_artifacts else 0
        self._send_parent(parent, evidence, place)
        # FINISHED promises that all is there, so it comes last and with the artifacts.
        if evidence.selection is None and parent.info.status != "RUNNING":
            self._client.update_run(parent_id, status="RUNNING")
        elif evidence.selection is not None and with_artifacts and parent.info.status != "FINISHED":
            self._client.set_terminated(parent_id, "FINISHED", utc_ms(evidence.selection.created_utc))
        return MirrorResult(parent_id, len(self._state.cells) - num_runs + is_new, num_figures, num_artifacts)

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is not None:
            if KIND_TAG not in found.tags:
                self._client.set_experiment_tag(found.experiment_id, KIND_TAG, KIND)
            return str(found.experiment_id)
        # Left to MLflow, artifacts would go to a folder under whatever directory the process happens to be in.
        location = (self._database.parent / "mlartifacts").as_uri() if self._database else None
        tags = {KIND_TAG: KIND}
        return str(self._client.create_experiment(self._experiment, artifact_location=location, tags=tags))

    def _find_parent(self, experiment_id: str, evidence: Evidence) -> Any:
        return next(self._search(experiment_id, SWEEP_TAG, evidence.sweep_id), None)

    def _create_parent(self, experiment_id: str, evidence: Evidence) -> Any:
        starts = [utc_ms(record.started_utc) for record in evidence.records]
        return self._client.create_run(
            experiment_id,
            start_time=min(starts, default=None),
            tags={SWEEP_TAG: evidence.sweep_id},
            run_name=evidence.sweep_id.replace("/", " "),
        )

    def _send_parent(self, parent: Any, evidence: Evidence, place: Place) -> None:
        tags, selection = sweep_tags(evidence), evidence.selection
        if selection is not None:
            tags |= {NOTE_TAG: sweep_note(evidence, selection, place)}
        known = parent.data.metrics
        figures = [figure for figure in sweep_figures(evidence) if known.get(figure.key) != figure.value]
        self._log(parent.info.run_id, _sent(parent), sweep_params(evidence), tags, figures)

    def _search(self, experiment_id: str, tag: str, value: str) -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs(
                [experiment_id], f"tags.`{tag}` = '{value}'", order_by=["attributes.start_time ASC"], page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def _find_children(self, experiment_id: str, parent_id: str) -> None:
        """Runs that MLflow has, whatever the state file says: it may be lost, or older than a run made just then."""
        old, self._state.cells = self._state.cells, {}
        for run in self._search(experiment_id, "mlflow.parentRunId", parent_id):
            cell_id = run.data.tags.get(CELL_TAG)
            if cell_id is None or cell_id in self._state.cells:
                continue
            known = old.get(cell_id)
            is_same = known is not None and known.run_id == run.info.run_id
            self._state.cells[cell_id] = known if known and is_same else CellState(run_id=run.info.run_id)
            self._sent[cell_id] = _sent(run)

    def _is_dirty(self, cell: Cell, evidence: Evidence) -> bool:
        state = self._state.cells.get(cell.id)
        if state is None:
            return cell.has_begun
        return cell.last_line >= state.num_lines or state.selection_utc != _decided_utc(evidence)

    def _send_cell(self, place: Place, evidence: Evidence, cell: Cell) -> int:
        state = self._state.cells.get(cell.id) or self._create_child(place.experiment_id, cell)
        self._state.cells[cell.id] = state
        decided_utc = _decided_utc(evidence)
        is_news = decided_utc != state.selection_utc
        figures = new_figures(cell, state.num_lines, with_final=is_news and decided_utc is not None)
        sent = self._sent.setdefault(cell.id, _Sent({}, {}))
        tags = cell_tags(evidence, cell) | {NOTE_TAG: cell_note(evidence, cell, place)}
        self._log(state.run_id, sent, cell_params(evidence, cell), tags, figures)
        self._log_inputs(state.run_id, sent, dataset_input(evidence, cell))
        if is_news and decided_utc is not None:
            end_ms = max((measured.end_ms for measured in cell.measured), default=cell.finished_ms)
            self._client.set_terminated(state.run_id, "FINISHED" if cell.measured else "FAILED", end_ms)
        elif is_news:
            self._client.update_run(state.run_id, status="RUNNING")
        state.num_lines, state.selection_utc = len(evidence.records), decided_utc
        return len(figures)

    def _create_child(self, experiment_id: str, cell: Cell) -> CellState:
        starts = [utc_ms(measured.block.started_utc) for measured in cell.measured]
        starts = starts or [utc_ms(visit.started_utc) for visit in cell.visits]
        run = self._client.create_run(
            experiment_id,
            start_time=min(starts, default=None),
            tags={"mlflow.parentRunId": self._state.parent_run_id, CELL_TAG: cell.id},
            run_name=cell.name,
        )
        return CellState(run_id=run.info.run_id)

    def _log(
        self, run_id: str, sent: _Sent, params: dict[str, str], tags: dict[str, str], figures: Sequence[Figure]
    ) -> None:
        """Send what the run does not have. A parameter it has stays: MLflow refuses to change one."""
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(figure.key, figure.value, figure.timestamp_ms, figure.step) for figure in figures]
        new_params = [Param(key, value) for key, value in params.items() if key not in sent.params]
        new_tags = [RunTag(key, value) for key, value in tags.items() if sent.tags.get(key) != value]
        while metrics or new_params or new_tags:
            self._client.log_batch(
                run_id, metrics[:FIGURES_PER_CALL], new_params[:TEXTS_PER_CALL], new_tags[:TEXTS_PER_CALL]
            )
            del metrics[:FIGURES_PER_CALL], new_params[:TEXTS_PER_CALL], new_tags[:TEXTS_PER_CALL]
        if "error" in sent.tags and "error" not in tags:
            self._client.delete_tag(run_id, "error")
            del sent.tags["error"]
        sent.params |= params
        sent.tags |= tags

    def _log_inputs(self, run_id: str, sent: _Sent, dataset: dict[str, str]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        if not sent.has_inputs:
            context = InputTag("mlflow.data.context", "prompts")
            self._client.log_inputs(run_id, [DatasetInput(Dataset(**dataset), [context])])
            sent.has_inputs = True

    def _send_artifacts(self, parent_id: str) -> int:
        num_sent = 0
        for path, fingerprint in self._folder.artifacts():
            if self._state.artifacts.get(path.as_posix()) == fingerprint:
                continue
            if path.name == "config.yaml":  # holds the tracking URI, which may hold a password
                self._client.log_text(parent_id, redact((self._folder.path / path).read_text()), path.as_posix())
            else:
                folder = path.parent.as_posix()
                self._client.log_artifact(parent_id, str(self._folder.path / path), None if folder == "." else folder)
            self._state.artifacts[path.as_posix()] = fingerprint
            num_sent += 1
        return num_sent


def _sent(run: Any) -> _Sent:
    return _Sent(dict(run.data.params), dict(run.data.tags), bool(run.inputs and run.inputs.dataset_inputs))


def _decided_utc(evidence: Evidence) -> str | None:
    return evidence.selection.created_utc if evidence.selection else None


@contextmanager
def _named_errors() -> Iterator[None]:
    """Turns what MLflow and its stores raise into this project's errors, without credentials."""
    for name, value in CLIENT_ENV.items():
        os.environ.setdefault(name, value)
    try:
        from alembic.util import CommandError
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError as error:
        raise TrackingFailed(f"MLflow cannot be imported: {error}") from error
    try:
        yield
    except (MlflowException, SQLAlchemyError, CommandError, ImportError, OSError) as error:
        reason = redact(str(error) or type(error).__name__).splitlines()[0][:300]
        raise TrackingFailed(reason) from error
