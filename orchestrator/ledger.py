"""The append-only record of a sweep, one JSON line a record. Everything after measuring reads only plan and ledger.

`Ledger` measures: it appends, and keeps all it has read. `LedgerFile` decides and reports: it reads the blocks anew at
every pass and keeps none, so that a million of them take no more memory than one. Both can be asked the same.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import LedgerError
from orchestrator.records import BlockRecord, LedgerRecord, SessionRecord, VisitRecord

_ADAPTER: TypeAdapter[LedgerRecord] = TypeAdapter(LedgerRecord)

MeasurementKey = tuple[str, str, str, str]
Judge = Callable[[Sequence[BlockRecord], Sequence[VisitRecord]], Mapping[str, str]]
"""Opening blocks and all visits -> node whose blocks do not count, and why (see `nodes.set_aside`)."""


def measurement_key(arm_id: str, block_id: str, phase: str, node: str) -> MeasurementKey:
    """What must not be measured twice. The baseline is measured on every node, any other arm on any one node."""
    return (arm_id, block_id, phase, node if phase in ("opening", "closing") else "")


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

    def valid_blocks(self) -> Collection[BlockRecord]:
        """Those that count: not void, of no node set aside, each measurement once."""
        ...

    def void_blocks(self) -> list[BlockRecord]: ...

    def visits(self) -> list[VisitRecord]: ...

    def sessions(self) -> list[SessionRecord]: ...

    @property
    def num_records(self) -> int:
        """Of every kind; grows with every append."""
        ...

    @property
    def set_aside(self) -> Mapping[str, str]:
        """Node -> why nothing that it measured counts: its arms are to be measured elsewhere."""
        ...


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

    Args:
        judge: sets nodes aside, again whenever there is new evidence; None: every node counts.

    Raises:
        LedgerError: as `read_records`.
    """

    def __init__(self, path: Path, judge: Judge | None = None) -> None:
        self.path = path
        self._blocks: list[BlockRecord] = []
        self._visits: list[VisitRecord] = []
        self._sessions: list[SessionRecord] = []
        self._judge = judge
        self._set_aside: Mapping[str, str] = {}
        self._is_judged = True
        self._valid: dict[MeasurementKey, BlockRecord] = {}
        self._may_be_torn = True
        for record in read_records(path):
            self._remember(record)

    def append(self, record: LedgerRecord) -> bool:
        """Keep `record`; False where that measurement is there already (a late answer of an earlier attempt)."""
        if isinstance(record, BlockRecord) and self.has(key_of(record)):
            return False
        if self._may_be_torn:
            _cut_torn_line(self.path)
        self._may_be_torn = True  # until it is written whole: the disk may be full
        with self.path.open("ab") as file:
            file.write(record.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._may_be_torn = False
        self._remember(record)
        return True

    def has(self, key: MeasurementKey) -> bool:
        return key in self._judged()

    def blocks(self) -> list[BlockRecord]:
        return list(self._blocks)

    def valid_blocks(self) -> list[BlockRecord]:
        return list(self._judged().values())

    def void_blocks(self) -> list[BlockRecord]:
        return [block for block in self._blocks if block.void_reason is not None]

    def visits(self) -> list[VisitRecord]:
        return list(self._visits)

    def sessions(self) -> list[SessionRecord]:
        return list(self._sessions)

    @property
    def num_records(self) -> int:
        return len(self._blocks) + len(self._visits) + len(self._sessions)

    @property
    def set_aside(self) -> Mapping[str, str]:
        self._judged()
        return self._set_aside

    def _remember(self, record: LedgerRecord) -> None:
        if isinstance(record, SessionRecord):
            self._sessions.append(record)
            return
        if isinstance(record, VisitRecord):
            self._visits.append(record)
        else:
            self._blocks.append(record)
            self._count(record)
        if isinstance(record, VisitRecord) or record.phase == "opening":
            self._is_judged = self._judge is None

    def _count(self, block: BlockRecord) -> None:
        if block.void_reason is None and block.node not in self._set_aside:
            self._valid.setdefault(key_of(block), block)

    def _judged(self) -> dict[MeasurementKey, BlockRecord]:
        """What counts, once the nodes are judged by all that is known."""
        if self._judge is not None and not self._is_judged:
            openings = [block for block in self._blocks if block.phase == "opening"]
            before, self._set_aside = self._set_aside, self._judge(openings, self._visits)
            self._is_judged = True
            if before.keys() != self._set_aside.keys():
                self._valid = {}
                for block in self._blocks:
                    self._count(block)
        return self._valid


def _cut_torn_line(path: Path) -> None:
    if path.exists():
        os.truncate(path, sum(len(line) for line in _whole_lines(path)))


class LedgerFile:
    """A ledger that is only read, as it was when this object was made: a sweep that still runs may append meanwhile.

    Args:
        judge: as for `Ledger`.

    Raises:
        LedgerError: as `read_records`.
    """

    def __init__(self, path: Path, judge: Judge | None = None) -> None:
        self.path = path
        self._end = path.stat().st_size if path.exists() else 0
        self._num_blocks = 0
        self._void: list[BlockRecord] = []
        self._visits: list[VisitRecord] = []
        self._sessions: list[SessionRecord] = []
        openings = []
        for record in read_records(path, self._end):
            if isinstance(record, VisitRecord):
                self._visits.append(record)
            elif isinstance(record, SessionRecord):
                self._sessions.append(record)
            else:
                self._num_blocks += 1
                if record.void_reason is not None:
                    self._void.append(record)
                if record.phase == "opening":
                    openings.append(record)
        self._set_aside = judge(openings, self._visits) if judge else {}

    def has(self, key: MeasurementKey) -> bool:
        return key in self._valid

    def blocks(self) -> Collection[BlockRecord]:
        return _BlocksOnDisk(self.path, self._end)

    def valid_blocks(self) -> Collection[BlockRecord]:
        return _ValidBlocksOnDisk(self.path, self._end, frozenset(self._set_aside))

    def void_blocks(self) -> list[BlockRecord]:
        return list(self._void)

    def visits(self) -> list[VisitRecord]:
        return list(self._visits)

    def sessions(self) -> list[SessionRecord]:
        return list(self._sessions)

    @property
    def num_records(self) -> int:
        return self._num_blocks + len(self._visits) + len(self._sessions)

    @property
    def set_aside(self) -> Mapping[str, str]:
        return self._set_aside

    @cached_property
    def _valid(self) -> set[MeasurementKey]:
        return {key_of(block) for block in self.valid_blocks()}


@dataclass(frozen=True)
class _BlocksOnDisk(Collection[BlockRecord]):
    """Every pass reads the file and holds one record at a time."""

    path: Path
    end: int

    def __iter__(self) -> Iterator[BlockRecord]:
        for record in read_records(self.path, self.end):
            if isinstance(record, BlockRecord):
                yield record

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, block: object) -> bool:
        return any(block == other for other in self)


@dataclass(frozen=True)
class _ValidBlocksOnDisk(_BlocksOnDisk):
    set_aside: frozenset[str]

    def __iter__(self) -> Iterator[BlockRecord]:
        seen: set[int] = set()  # hashes, a tenth of the memory of the keys
        for block in super().__iter__():
            key = hash(key_of(block))
            if block.void_reason is None and block.node not in self.set_aside and key not in seen:
                seen.add(key)
                yield block
