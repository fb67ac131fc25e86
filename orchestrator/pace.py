"""Seconds that blocks and server starts take in a running sweep: as foreseen, and ever more as measured. Pure."""

import math
from collections.abc import Iterable
from typing import Protocol

from orchestrator.budget import SERVER_START_S
from orchestrator.plan import Plan
from orchestrator.records import Arm, Block, BlockRecord, VisitRecord, WorkloadCell
from orchestrator.token_time import Range

PRIOR_WEIGHT = 1
"""What the forecast's level of blocks weighs, as a number of arms on workloads that agree with it."""
PRIOR_STARTS = 0.25
"""What its server starts weigh, as a number of visits: it knows least of them, and one tells of all the others."""


class Foreseen(Protocol):
    """As `forecast.Times`."""

    def load_s(self, arm: Arm, cell: WorkloadCell, num_requests: int) -> Range: ...

    def overhead_s(self, arm: Arm) -> Range: ...


class Pace:
    """Learns from every block and visit that it is told of.

    An arm takes on a workload what it took there; where it was not measured, what was foreseen, times what the measured
    ones took beyond theirs. Without a forecast blocks compare by their tokens, once the first is measured.
    """

    def __init__(self, plan: Plan, foreseen: Foreseen | None) -> None:
        self._arms = {arm.id: arm for arm in plan.arms}
        self._cells = {cell.id: cell for cell in plan.workloads}
        self._foreseen = foreseen
        self._load_s: dict[tuple[str, str], float] = {}
        self._measured: dict[tuple[str, str], tuple[float, float]] = {}
        """(arm id, workload id) -> seconds that its blocks took, and that were foreseen."""
        self._log_ratio = 0.0
        """Sum over `_measured` of ln(took / foreseen)."""
        self._overheads: tuple[float, float] = (0.0, 0.0)
        """The same two of the visits' time besides their blocks."""

    def note_block(self, block: BlockRecord) -> None:
        """A void one, too: it took its time."""
        arm, key = self._arms.get(block.arm_id), (block.arm_id, block.workload_id)
        if arm is None or block.workload_id not in self._cells or block.wall_s <= 0:
            return
        took, foreseen = self._measured.get(key, (0.0, 0.0))
        before = math.log(took / foreseen) if took else 0.0
        took, foreseen = took + block.wall_s, foreseen + self._foreseen_s(arm, block.workload_id, block.num_requests)
        self._measured[key] = took, foreseen
        self._log_ratio += math.log(took / foreseen) - before

    def note_visit(self, visit: VisitRecord) -> None:
        """One that ended early says nothing of what a whole one takes."""
        arm = self._arms.get(visit.arm_id)
        if arm and visit.error is None and visit.num_blocks:
            took, foreseen = self._overheads
            self._overheads = took + visit.wall_s - visit.blocks_s, foreseen + self._foreseen_overhead_s(arm)

    def block_s(self, arm: Arm, block: Block) -> float | None:
        """None as long as nothing is known."""
        arm = self._planned(arm)
        took, foreseen = self._measured.get((arm.id, block.workload_id), (0.0, 0.0))
        if not took and not self._measured and self._foreseen is None:
            return None
        level = took / foreseen if took else self._level
        return level * self._foreseen_s(arm, block.workload_id, len(block.requests))

    def overhead_s(self, arm: Arm) -> float:
        """Of a visit besides its blocks: start, warm-up, stop."""
        took, foreseen = self._overheads
        here = self._foreseen_overhead_s(self._planned(arm))
        return here * (took + PRIOR_STARTS * here) / (foreseen + PRIOR_STARTS * here)

    def visit_s(self, arm: Arm, blocks: Iterable[Block]) -> float | None:
        """None as long as nothing is known."""
        seconds = [self.block_s(arm, block) for block in blocks]
        known = [each for each in seconds if each is not None]
        return self.overhead_s(arm) + sum(known) if len(known) == len(seconds) else None

    @property
    def _level(self) -> float:
        weight = PRIOR_WEIGHT if self._foreseen else 0
        return math.exp(self._log_ratio / max(1, len(self._measured) + weight))

    def _foreseen_s(self, arm: Arm, workload_id: str, num_requests: int) -> float:
        cell, key = self._cells[workload_id], (arm.id, workload_id)
        if key not in self._load_s:
            one = self._foreseen.load_s(arm, cell, 1).middle if self._foreseen else cell.output_len
            self._load_s[key] = one
        return self._load_s[key] * num_requests

    def _foreseen_overhead_s(self, arm: Arm) -> float:
        return self._foreseen.overhead_s(arm).middle if self._foreseen else SERVER_START_S

    def _planned(self, arm: Arm) -> Arm:
        """Of a setting that is only confirmed, a schedule, the planned arm that is most like it."""
        if arm.id in self._arms:
            return arm
        same = [other for other in self._arms.values() if other.method == arm.method] or list(self._arms.values())
        return min(same, key=lambda other: abs(other.num_speculative_tokens - arm.num_speculative_tokens))
