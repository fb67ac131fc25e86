"""The append-only record of a sweep, one JSON line a record. Everything after measuring reads only plan and ledger."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import LedgerError
from orchestrator.records import BlockRecord, LedgerRecord, SessionRecord, VisitRecord

_ADAPTER: TypeAdapter[LedgerRecord] = TypeAdapter(LedgerRecord)
Record = TypeVar("Record")

MeasurementKey = tuple[str, str, str, str]
Judge = Callable[[Sequence[BlockRecord], Sequence[VisitRecord]], Mapping[str, str]]
"""All blocks and visits -> node whose blocks do not count, and why (see `nodes.set_aside`)."""


def measurement_key(arm_id: str, block_id: str, phase: str, node: str) -> MeasurementKey:
    """What must not be measured twice. The baseline is measured on every node, any other arm on any one node."""
    return (arm_id, block_id, phase, node if phase in ("opening", "closing") else "")


def key_of(block: BlockRecord) -> MeasurementKey:
    return measurement_key(block.arm_id, block.block_id, block.phase, block.node)


class Ledger:
    """Reads what is there, appends what is new.

    `append` returns only after the line is on disk. A last line without an end, torn off by a crash or just being
    written by a running sweep, is not read, and cut off by the first `append`; a damaged line anywhere else raises
    LedgerError, because somebody edited the file.

    Args:
        judge: sets nodes aside, again whenever there is new evidence; None: every node counts.
    """

    def __init__(self, path: Path, judge: Judge | None = None) -> None:
        self.path = path
        self._records: list[LedgerRecord] = []
        self._judge = judge
        self._set_aside: Mapping[str, str] = {}
        self._is_judged = True
        self._valid: dict[MeasurementKey, BlockRecord] = {}
        self._torn_at: int | None = None
        for record in self._read():
            self._remember(record)

    def append(self, record: LedgerRecord) -> bool:
        """Keep `record`; False where that measurement is there already (a late answer of an earlier attempt)."""
        if isinstance(record, BlockRecord) and self.has(key_of(record)):
            return False
        if self._torn_at is not None:
            os.truncate(self.path, self._torn_at)
            self._torn_at = None
        with self.path.open("ab") as file:
            file.write(record.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._remember(record)
        return True

    def has(self, key: MeasurementKey) -> bool:
        """Whether a valid block with this key was measured."""
        return key in self._judged()

    @property
    def num_records(self) -> int:
        return len(self._records)

    def blocks(self) -> list[BlockRecord]:
        """All of them in the order they came, void ones included."""
        return self._of(BlockRecord)

    def valid_blocks(self) -> list[BlockRecord]:
        """Those that count, in the order they came: not void, of no node set aside, each measurement once."""
        return list(self._judged().values())

    @property
    def set_aside(self) -> Mapping[str, str]:
        """Node -> why nothing that it measured counts: its arms are to be measured elsewhere."""
        self._judged()
        return self._set_aside

    def visits(self) -> list[VisitRecord]:
        return self._of(VisitRecord)

    def sessions(self) -> list[SessionRecord]:
        return self._of(SessionRecord)

    def _of(self, kind: type[Record]) -> list[Record]:
        return [record for record in self._records if isinstance(record, kind)]

    def _remember(self, record: LedgerRecord) -> None:
        self._records.append(record)
        if isinstance(record, VisitRecord) or (isinstance(record, BlockRecord) and record.phase == "opening"):
            self._is_judged = self._judge is None
        self._count(record)

    def _count(self, record: LedgerRecord) -> None:
        if isinstance(record, BlockRecord) and record.void_reason is None and record.node not in self._set_aside:
            self._valid.setdefault(key_of(record), record)

    def _judged(self) -> dict[MeasurementKey, BlockRecord]:
        """What counts, once the nodes are judged by all that is known."""
        if self._judge is not None and not self._is_judged:
            before, self._set_aside = self._set_aside, self._judge(self.blocks(), self.visits())
            self._is_judged = True
            if before.keys() != self._set_aside.keys():
                self._valid = {}
                for record in self._records:
                    self._count(record)
        return self._valid

    def _read(self) -> Iterator[LedgerRecord]:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self._torn_at = len(whole)
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                yield _ADAPTER.validate_json(line)
            except ValidationError as error:
                raise LedgerError(
                    f"{self.path}:{number}: not a record of this version ({error.errors()[0]['msg']}); "
                    "restore the line, or move the sweep's folder away to begin anew"
                ) from error
