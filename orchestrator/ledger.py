"""The append-only record of a sweep, one JSON line a record. Everything after measuring reads only plan and ledger.

`Ledger` measures: it appends, and keeps all it has read. `LedgerFile` decides and reports: it reads the blocks anew at
every pass and keeps none, so that a million of them take no more memory than one. Both can be asked the same.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import LedgerError
from orchestrator.records import BlockRecord, LedgerRecord, SessionRecord, VisitRecord

_ADAPTER: TypeAdapter[LedgerRecord] = TypeAdapter(LedgerRecord)

MeasurementKey = tuple[str, str, str, str]


def measurement_key(arm_id: str, block_id: str, phase: str, node: str) -> MeasurementKey:
    """What must not be measured twice. The baseline is measured on every node, any other arm on any one node."""
    return (arm_id, block_id, phase, node if phase != "arm" else "")


def key_of(block: BlockRecord) -> MeasurementKey:
    return measurement_key(block.arm_id, block.block_id, block.phase, block.node)


class LedgerView(Protocol):
    """What can be asked of a ledger. Records come in the order in which they were written."""

    def has(self, key: MeasurementKey) -> bool:
        """Whether a valid block with this key was measured."""
        ...

    def blocks(self) -> Collection[BlockRecord]:
        """All of them, void ones included."""
        ...

    def valid_blocks(self) -> Collection[BlockRecord]: ...

    def void_blocks(self) -> list[BlockRecord]: ...

    def visits(self) -> list[VisitRecord]: ...

    def sessions(self) -> list[SessionRecord]: ...


def read_records(path: Path, end: int | None = None) -> Iterator[LedgerRecord]:
    """The records of the whole lines, before byte `end` where it is given, one at a time; none without a file.

    A last line without an end, torn off by a crash or just being written by a running sweep, is not read.

    Raises:
        LedgerError: a line is damaged: somebody edited the file.
    """
    for number, line in enumerate(_whole_lines(path, end), start=1):
        try:
            record = _ADAPTER.validate_json(line)
        except ValidationError as error:
            raise LedgerError(
                f"{path}:{number}: not a record of this version ({error.errors()[0]['msg']}); "
                "restore the line, or move the sweep's folder away to begin anew"
            ) from error
        yield record


def _whole_lines(path: Path, end: int | None = None) -> Iterator[bytes]:
    if not path.exists():
        return
    with path.open("rb") as file:
        at = 0
        for line in file:
            at += len(line)
            if not line.endswith(b"\n") or (end is not None and at > end):
                return
            yield line


class Ledger:
    """Reads what is there, appends what is new.

    `append` returns only after the line is on disk. A torn last line is cut off by the first `append`.

    Raises:
        LedgerError: as `read_records`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._blocks: list[BlockRecord] = []
        self._visits: list[VisitRecord] = []
        self._sessions: list[SessionRecord] = []
        self._valid: set[MeasurementKey] = set()
        self._may_be_torn = True
        for record in read_records(path):
            self._remember(record)

    def append(self, record: LedgerRecord) -> bool:
        """Keep `record`; False where that measurement is there already (a late answer of an earlier attempt)."""
        if isinstance(record, BlockRecord) and key_of(record) in self._valid:
            return False
        if self._may_be_torn:
            _cut_torn_line(self.path)
            self._may_be_torn = False
        with self.path.open("ab") as file:
            file.write(record.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._remember(record)
        return True

    def has(self, key: MeasurementKey) -> bool:
        return key in self._valid

    def blocks(self) -> list[BlockRecord]:
        return list(self._blocks)

    def valid_blocks(self) -> list[BlockRecord]:
        return [block for block in self._blocks if block.void_reason is None]

    def void_blocks(self) -> list[BlockRecord]:
        return [block for block in self._blocks if block.void_reason is not None]

    def visits(self) -> list[VisitRecord]:
        return list(self._visits)

    def sessions(self) -> list[SessionRecord]:
        return list(self._sessions)

    def _remember(self, record: LedgerRecord) -> None:
        if isinstance(record, VisitRecord):
            self._visits.append(record)
        elif isinstance(record, SessionRecord):
            self._sessions.append(record)
        else:
            self._blocks.append(record)
            if record.void_reason is None:
                self._valid.add(key_of(record))


def _cut_torn_line(path: Path) -> None:
    if path.exists():
        os.truncate(path, sum(len(line) for line in _whole_lines(path)))


class LedgerFile:
    """A ledger that is only read, as it was when this object was made: a sweep that still runs may append meanwhile.

    Raises:
        LedgerError: as `read_records`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = path.stat().st_size if path.exists() else 0
        self._num_blocks = 0
        self._void: list[BlockRecord] = []
        self._visits: list[VisitRecord] = []
        self._sessions: list[SessionRecord] = []
        for record in read_records(path, self._end):
            if isinstance(record, VisitRecord):
                self._visits.append(record)
            elif isinstance(record, SessionRecord):
                self._sessions.append(record)
            else:
                self._num_blocks += 1
                if record.void_reason is not None:
                    self._void.append(record)

    def has(self, key: MeasurementKey) -> bool:
        return key in self._valid

    def blocks(self) -> Collection[BlockRecord]:
        return _BlocksOnDisk(self.path, self._end, self._num_blocks, with_void=True)

    def valid_blocks(self) -> Collection[BlockRecord]:
        return _BlocksOnDisk(self.path, self._end, self._num_blocks - len(self._void), with_void=False)

    def void_blocks(self) -> list[BlockRecord]:
        return list(self._void)

    def visits(self) -> list[VisitRecord]:
        return list(self._visits)

    def sessions(self) -> list[SessionRecord]:
        return list(self._sessions)

    @cached_property
    def _valid(self) -> set[MeasurementKey]:
        return {key_of(block) for block in self.valid_blocks()}


@dataclass(frozen=True)
class _BlocksOnDisk(Collection[BlockRecord]):
    """Every pass reads the file and holds one record at a time."""

    path: Path
    end: int
    length: int
    with_void: bool

    def __iter__(self) -> Iterator[BlockRecord]:
        for record in read_records(self.path, self.end):
            if isinstance(record, BlockRecord) and (self.with_void or record.void_reason is None):
                yield record

    def __len__(self) -> int:
        return self.length

    def __contains__(self, block: object) -> bool:
        return any(block == other for other in self)
