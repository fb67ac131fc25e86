"""The append-only record of a sweep, one JSON line a record. Everything after measuring reads only plan and ledger."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import LedgerError
from orchestrator.records import BlockRecord, LedgerRecord, SessionRecord, VisitRecord

_ADAPTER: TypeAdapter[LedgerRecord] = TypeAdapter(LedgerRecord)
Record = TypeVar("Record")

MeasurementKey = tuple[str, str, str, str]


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
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: list[LedgerRecord] = []
        self._valid: set[MeasurementKey] = set()
        self._torn_at: int | None = None
        for record in self._read():
            self._remember(record)

    def append(self, record: LedgerRecord) -> bool:
        """Keep `record`; False where that measurement is there already (a late answer of an earlier attempt)."""
        if isinstance(record, BlockRecord) and key_of(record) in self._valid:
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
        return key in self._valid

    @property
    def num_records(self) -> int:
        return len(self._records)

    def blocks(self) -> list[BlockRecord]:
        """All of them in the order they came, void ones included."""
        return self._of(BlockRecord)

    def valid_blocks(self) -> list[BlockRecord]:
        return [block for block in self.blocks() if block.void_reason is None]

    def visits(self) -> list[VisitRecord]:
        return self._of(VisitRecord)

    def sessions(self) -> list[SessionRecord]:
        return self._of(SessionRecord)

    def _of(self, kind: type[Record]) -> list[Record]:
        return [record for record in self._records if isinstance(record, kind)]

    def _remember(self, record: LedgerRecord) -> None:
        self._records.append(record)
        if isinstance(record, BlockRecord) and record.void_reason is None:
            self._valid.add(key_of(record))

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
