"""The folder a sweep leaves behind: results/<name>/<UTC time>/, and the link results/latest."""

import contextlib
import errno
import gzip
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from filelock import BaseFileLock, FileLock, Timeout
from pydantic import ValidationError

from orchestrator.compose import load_yaml, to_yaml
from orchestrator.config import Strict, SweepConfig
from orchestrator.errors import ConfigError, LedgerError, SweepLocked
from orchestrator.hardware_comparison import HardwareComparison
from orchestrator.ledger import Ledger, LedgerFile, key_of
from orchestrator.live import Live
from orchestrator.nodes import judge
from orchestrator.one_engine import Sameness, difference, measured_with
from orchestrator.plan import Plan
from orchestrator.policies import policy_for
from orchestrator.records import MeasuredWith, RawRequest, RequestRecord
from orchestrator.safe_names import file_name
from orchestrator.selection import Selection
from tasks.model_files import references

log = logging.getLogger(__name__)

Kept = TypeVar("Kept", bound=Strict)
NOT_KNOWN = MeasuredWith()
NAME_FORMAT = "%Y-%m-%dT%H-%M-%S.%fZ"
"""Of a sweep's folder: UTC."""


class SweepDir:
    """Paths and files of one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def sweep_id(self) -> str:
        """`<name>/<UTC time>`, unique among the sweeps of one results folder."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def ledger_path(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def selection_path(self) -> Path:
        return self.path / "selection.json"

    def config(self) -> SweepConfig:
        return load_yaml(self.path / "config.yaml")

    def plan(self) -> Plan:
        return _read(Plan, self.path / "plan.json")

    def ledger(self) -> LedgerFile:
        """What was measured, with slow nodes set aside as the sweep's own configuration says."""
        return LedgerFile(self.ledger_path, judge(self.plan(), self.config().hardware))

    def open_ledger(self) -> Ledger:
        """The same, to measure into."""
        return Ledger(self.ledger_path, judge(self.plan(), self.config().hardware))

    def selection(self) -> Selection | None:
        if not self.selection_path.exists():
            return None
        return _read(Selection, self.selection_path, "`orchestrator select` makes it again from the ledger")

    def command(self) -> str | None:
        """What was typed last to measure here; None where it was not kept."""
        return self._command_path.read_text(encoding="utf-8").strip() if self._command_path.exists() else None

    def write_command(self, command: str) -> None:
        _replace(self._command_path, command + "\n")

    @property
    def _command_path(self) -> Path:
        return self.path / "command.txt"

    def write_selection(self, selection: Selection) -> None:
        _replace(self.selection_path, selection.model_dump_json(indent=2))

    def write_live(self, live: Live) -> None:
        _replace(self._live_path, live.model_dump_json())

    def live(self) -> Live | None:
        """What it is doing; None where no process measures it."""
        if not self.is_running:
            return None
        try:
            return Live.model_validate_json(self._live_path.read_bytes())
        except (FileNotFoundError, ValidationError):  # not begun yet, or another version's
            return None

    @property
    def is_running(self) -> bool:
        """Whether a process that sees this folder measures a sweep of this name, and it is the newest one."""
        lock = FileLock(self.path.parent / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            newest = newest_sweep(self.path.parents[1], self.path.parent.name)
            return newest is not None and newest.path.resolve() == self.path.resolve()
        lock.release()
        return False

    @property
    def _live_path(self) -> Path:
        return self.path / "live.json"

    def write_raw(self, visit_id: str, block_id: str, requests: Sequence[RequestRecord]) -> None:
        """Every request of a block, one JSON line each, as a gzip member of its own: a crash tears off one at most."""
        folder = self.path / "raw"
        folder.mkdir(exist_ok=True)
        prefix = f'{{"block_id":"{file_name(block_id)}",'
        with gzip.open(folder / f"{file_name(visit_id)}.jsonl.gz", "at", encoding="utf-8") as file:
            file.writelines(prefix + request.model_dump_json()[1:] + "\n" for request in requests)

    def read_raw(self, visit_id: str) -> Iterator[RawRequest]:
        """A visit's requests, one at a time; none without its file: that of a block taken over from an earlier sweep
        stayed there. What a crash tore off is not read.

        Raises:
            LedgerError: a line is damaged.
            UnsafeName: the ledger names a visit that this tool would not.
        """
        path = self.path / "raw" / f"{file_name(visit_id)}.jsonl.gz"
        if not path.exists():
            return
        with gzip.open(path, "rb") as file:
            try:
                for number, line in enumerate(file, start=1):
                    yield _raw_request(line, f"{path}:{number}")
            except (EOFError, gzip.BadGzipFile):
                return

    def write_server_log(self, name: str, text: str) -> None:
        folder = self.path / "logs"
        folder.mkdir(exist_ok=True)
        (folder / file_name(name)).write_text(text, encoding="utf-8")


def write_comparison(results_dir: Path, name: str, comparison: HardwareComparison) -> Path:
    """`<name>/comparison.json`, beside whatever sweeps have that name."""
    path = results_dir / name / "comparison.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, comparison.model_dump_json(indent=2))
    return path


@contextmanager
def open_sweep(config: SweepConfig, plan: Plan, here: MeasuredWith = NOT_KNOWN) -> Iterator[tuple[SweepDir, bool]]:
    """The folder to measure into, locked for this process, and whether it continues an earlier run.

    The newest sweep of that name and plan continues where blocks are missing. Otherwise a new folder begins; if the
    newest sweep has another plan, its valid blocks whose arm and prompts are unchanged are taken over.

    Args:
        here: what this machine would measure with; empty where other nodes measure.

    Raises:
        SweepLocked: another process measures under that name.
        ConfigError: the unfinished sweep was measured with another engine or other files of a local model, or the
            folder cannot be written.
    """
    root = Path(config.results_dir) / config.name
    with writing(f"results_dir={config.results_dir}"):
        root.mkdir(parents=True, exist_ok=True)
        lock = _locked(root, config.name)
    try:
        earlier = _unfinished(root, config, plan)
        if earlier:
            _refuse_another_engine(earlier, here)
            _replace(earlier.path / "config.yaml", to_yaml(config))  # price, rules, tracking may have changed
        yield _linked(earlier or _begin(root, config, plan, here), config), earlier is not None
    finally:
        lock.release()


def _locked(root: Path, name: str) -> BaseFileLock:
    lock = FileLock(root / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SweepLocked(
            f"another process is running the sweep {name!r} ({root / '.lock'} is held); "
            "wait for it, or give this one a name of its own: name=..."
        ) from None
    return lock


def newest_sweep(results_dir: Path, name: str) -> SweepDir | None:
    """The newest sweep of that name that has a plan."""
    sweeps = _sweeps(results_dir / name)
    return sweeps[-1] if sweeps else None


def find_sweep(results_dir: Path, where: str | None) -> SweepDir:
    """A sweep by its folder, by its name or the folder of all of that name (the newest), or None, the latest.

    Raises:
        ConfigError: there is none, or its folder is not whole.
    """
    found = _latest(results_dir) if where is None else _named(results_dir, where)
    if found is None:
        wanted = "no sweep yet" if where is None else f"no sweep {where!r}"
        raise ConfigError(f"{wanted} in {results_dir.absolute()}; run `orchestrator sweep` first, or name its folder")
    if not (found.path / "config.yaml").exists():
        raise ConfigError(f"{found.path} has no config.yaml, which tells how it was measured; restore it from a copy")
    return found


def find_measured(results_dir: Path, where: str | None) -> SweepDir:
    """As `find_sweep`, of one that has measured.

    Raises:
        ConfigError: as there, or it has no ledger.
    """
    found = find_sweep(results_dir, where)
    if not found.ledger_path.exists():
        raise ConfigError(
            f"{found.path} has no ledger.jsonl: nothing was measured there yet; run the same sweep again, or restore "
            "the file from a copy"
        )
    return found


def _latest(results_dir: Path) -> SweepDir | None:
    """By the link; without it, as in a copy that has none, the one that began last."""
    linked = results_dir / "latest"
    if (linked / "plan.json").exists():
        return SweepDir(linked.resolve())
    sweeps = sorted(results_dir.glob("*/*/plan.json"), key=lambda path: path.parent.name)
    return SweepDir(sweeps[-1].parent) if sweeps else None


def _named(results_dir: Path, where: str) -> SweepDir | None:
    folder = Path(where).resolve()
    if (folder / "plan.json").exists():
        return SweepDir(folder)
    if (results_dir / where / "plan.json").exists():
        return SweepDir(results_dir / where)
    return newest_sweep(results_dir, where) or newest_sweep(folder.parent, folder.name)


def _sweeps(root: Path) -> list[SweepDir]:
    """Oldest first; a folder without a plan is one that never began."""
    return [SweepDir(path.parent) for path in sorted(root.glob("*/plan.json"))]


def _unfinished(root: Path, config: SweepConfig, plan: Plan) -> SweepDir | None:
    same = next((sweep for sweep in reversed(_sweeps(root)) if sweep.plan().id == plan.id), None)
    if same is None:
        return None
    ledger = LedgerFile(same.ledger_path, judge(plan, config.hardware))
    return None if policy_for(config).is_complete(plan, ledger) else same


def _refuse_another_engine(earlier: SweepDir, here: MeasuredWith) -> None:
    differs = difference(here, measured_with(earlier.ledger().visits()))
    if differs:
        raise ConfigError(
            f"{earlier.path} is unfinished, and this machine has {differs}: figures of both do not compare. Begin anew "
            "under another name=..., or go back to what it was measured with"
        )


def _begin(root: Path, config: SweepConfig, plan: Plan, here: MeasuredWith) -> SweepDir:
    newest = newest_sweep(root.parent, root.name)
    folder = root / _next_name(newest)
    folder.mkdir()
    _replace(folder / "config.yaml", to_yaml(config))
    if newest and newest.plan().id != plan.id:
        _take_over(newest, SweepDir(folder), plan, here)
    _replace(folder / "plan.json", plan.model_dump_json(indent=1))
    return SweepDir(folder)


def _next_name(newest: SweepDir | None) -> str:
    """Now, or just after the newest sweep where the clock went back: the order of names is the order of sweeps."""
    now = datetime.now(UTC)
    if newest:
        with contextlib.suppress(ValueError):  # a folder that somebody named
            now = max(
                now, datetime.strptime(newest.path.name, NAME_FORMAT).replace(tzinfo=UTC) + timedelta(microseconds=1)
            )
    return now.strftime(NAME_FORMAT)


def _take_over(newest: SweepDir, begun: SweepDir, plan: Plan, here: MeasuredWith) -> None:
    """Copy what still belongs to the plan and was measured with the same engine and models; closing baselines and
    confirmations end a sweep and are measured anew."""
    models = {arm.id: references(arm.server) for arm in plan.arms}
    blocks = {block.id for block in plan.blocks}
    earlier, ledger = newest.ledger(), Ledger(begun.ledger_path)
    before = measured_with(earlier.visits())
    wanted = MeasuredWith(
        engine_version=here.engine_version or before.engine_version,
        local_models=before.local_models | here.local_models,
    )
    sameness = Sameness(earlier.visits(), wanted)
    planned = [
        block
        for block in earlier.valid_blocks()
        if block.arm_id in models and block.block_id in blocks and block.phase in ("opening", "arm")
    ]
    kept = [block for block in planned if sameness.holds(block, models[block.arm_id])]
    if len(kept) < len(planned):
        log.warning(
            "%d blocks of %s are measured anew: they were measured with another engine, or other files of a model",
            len(planned) - len(kept),
            newest.path,
        )
    visits = {block.visit_id for block in kept}
    for visit in earlier.visits():
        if visit.visit_id in visits:
            ledger.append(visit)
    for block in sorted(kept, key=key_of):
        ledger.append(block)


def _linked(sweep: SweepDir, config: SweepConfig) -> SweepDir:
    """Point results/latest at the sweep, in one step."""
    results = Path(config.results_dir)
    temporary = results / f".latest-{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(sweep.path.relative_to(results))
    temporary.replace(results / "latest")
    return sweep


def _raw_request(line: bytes, where: str) -> RawRequest:
    try:
        return RawRequest.model_validate_json(line)
    except ValidationError as error:
        raise LedgerError(
            f"{where}: not a request of this version ({error.errors()[0]['msg']}); restore the file, or move it away "
            "to report without it"
        ) from error


def _read(kind: type[Kept], path: Path, advice: str = "move the sweep's folder away to begin anew") -> Kept:
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigError(
            f"{path}: not a {kind.__name__.lower()} of this version ({error.errors()[0]['msg']}); {advice}"
        ) from error


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Names `what` cannot be written where the system refuses it; a full disk is another matter.

    Raises:
        ConfigError: in one line.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        at = f" ({error.filename})" if error.filename else ""
        raise ConfigError(f"{what} cannot be written: {error.strerror}{at}; name another folder") from error


def _replace(path: Path, text: str) -> None:
    """Write whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # half of it, where the disk is full
