"""A sweep's folder as the MLflow mirror sees it: what is read from it, and the little state that is kept in it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from orchestrator.config import SweepConfig
from orchestrator.errors import ConfigError, LedgerError
from orchestrator.plan import Plan
from orchestrator.record_metrics import Evidence, is_current
from orchestrator.records import LedgerRecord
from orchestrator.selection import Selection

STATE_FILE = "mlflow.json"
ARTIFACTS = (
    *("config.yaml", "plan.json", "ledger.jsonl", "selection.json", "report*", "report*/*"),
    *("figures/*", "*.png", "*.svg", "raw/*", "logs/*"),
)

_RECORD: TypeAdapter[LedgerRecord] = TypeAdapter(LedgerRecord)


class CellState(BaseModel):
    run_id: str
    num_lines: int = 0
    """Ledger lines whose figures were sent."""
    selection_utc: str | None = None
    """Of the selection whose figures were sent; None while the run is RUNNING."""


class State(BaseModel):
    """What was sent, kept in the sweep's folder. Losing it costs time only: runs are found again by their tags."""

    schema_version: Literal[1] = 1
    parent_run_id: str | None = None
    cells: dict[str, CellState] = {}
    artifacts: dict[str, str] = {}
    """File -> size and modification time when it was sent."""


class SweepFolder:
    """Reads the folder; of the ledger only what was added since the last time."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()  # `results/latest` is a link
        self.state_file = self.path / STATE_FILE
        self._records: list[LedgerRecord] = []
        self._offset = 0

    def read(self) -> Evidence:
        """The folder as it is now.

        Raises:
            ConfigError: this is not a sweep's folder, or a file of it is damaged.
            LedgerError: the ledger is.
        """
        plan_file, config_file = self.path / "plan.json", self.path / "config.yaml"
        if not plan_file.exists() or not config_file.exists():
            raise ConfigError(f"{self.path}: not a sweep's folder, it has no plan.json or no config.yaml")
        try:
            return self._parse(plan_file, config_file)
        except (ValidationError, yaml.YAMLError) as error:
            raise ConfigError(f"{self.path}: a file there is damaged: {error}") from error

    def _parse(self, plan_file: Path, config_file: Path) -> Evidence:
        plan = Plan.model_validate_json(plan_file.read_bytes())
        records = self._read_ledger()
        return Evidence(
            plan=plan,
            config=SweepConfig.model_validate(yaml.safe_load(config_file.read_text())),
            sweep_id=f"{plan.name}/{self.path.name}",
            records=records,
            selection=self._read_selection(records),
        )

    def _read_selection(self, records: list[LedgerRecord]) -> Selection | None:
        path = self.path / "selection.json"
        selection = Selection.model_validate_json(path.read_bytes()) if path.exists() else None
        return selection if selection and is_current(selection, records) else None

    def _read_ledger(self) -> list[LedgerRecord]:
        """Whole lines after those already read. Not by `Ledger`: it cuts a torn line, which here may be under way."""
        path = self.path / "ledger.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            try:
                self._records += [_RECORD.validate_json(line) for line in whole.splitlines()]
            except ValidationError as error:
                raise LedgerError(
                    f"{path}: a line is not a record of this version ({error.errors()[0]['msg']})"
                ) from error
            self._offset += len(whole)
        return self._records

    def artifacts(self) -> Iterator[tuple[Path, str]]:
        """Every file that belongs into MLflow, with a fingerprint that changes when the file does."""
        for path in sorted({path for pattern in ARTIFACTS for path in self.path.glob(pattern) if path.is_file()}):
            stat = path.stat()
            yield path.relative_to(self.path), f"{stat.st_size} {stat.st_mtime_ns}"

    def read_state_text(self) -> str | None:
        return self.state_file.read_text() if self.state_file.exists() else None

    def write_state(self, state: State) -> str:
        """Replaces the state file in one step; returns its text."""
        text = state.model_dump_json(indent=1)
        new = self.state_file.with_suffix(".json.tmp")
        new.write_text(text)
        new.replace(self.state_file)
        return text


def parse_state(text: str | None) -> State:
    try:
        return State.model_validate_json(text or "{}")
    except ValidationError:
        return State()  # damaged, or of another version: as good as lost


def sqlite_path(uri: str) -> Path | None:
    """The database file; a relative one counts from the directory of now, whatever it is later."""
    path = uri.removeprefix("sqlite:///")
    return Path(path).resolve() if path and path != uri and ":memory:" not in path else None


def redact(text: str) -> str:
    """`text` without the user and password of any URL in it."""
    return re.sub(r"(?<=://)[^/\s'\"]+@", "***@", text)
