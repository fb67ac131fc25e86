"""Valid blocks folded per arm and workload: all that selecting needs, in a fraction of their memory. Pure."""

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean
from sys import intern
from typing import NamedTuple

from orchestrator.config import SelectionRules
from orchestrator.estimate import Score
from orchestrator.metrics import num_good_requests
from orchestrator.records import BlockRecord, SpecCounters

Outputs = Mapping[tuple[str, str], "array[int]"]
"""(block id, node) -> a hash of every prompt's output."""


@dataclass
class Cell:
    """One arm on one workload."""

    throughputs: list[Score] = field(default_factory=list)
    """By ln(output tokens/s)."""
    _others: list[Score] | None = None
    """By another objective; None where throughput is the objective."""
    num_requests: int = 0
    output_tokens: int = 0
    wall_s: float = 0.0
    num_good: int = 0
    """Requests that meet every limit of `selection.slo`; 0 without one."""
    ttft_s: "array[float]" = field(default_factory=lambda: array("d"))
    tpot_s: "array[float]" = field(default_factory=lambda: array("d"))
    e2e_s: "array[float]" = field(default_factory=lambda: array("d"))
    outputs: dict[tuple[str, str], "array[int]"] = field(default_factory=dict)
    """Of the opening visit where the baseline has two."""
    _num_judged: int = 0
    _num_saturated: int = 0
    _counted: list[int] = field(default_factory=lambda: [0, 0, 0])
    _accepted_per_pos: list[int] = field(default_factory=list)
    _has_counters: bool = False

    @property
    def num_decoded(self) -> int:
        """Output tokens but the first of each request, which prefill gives."""
        return self.output_tokens - self.num_requests

    @property
    def scores(self) -> list[Score]:
        """By the objective, as `objective_value` says."""
        return self.throughputs if self._others is None else self._others

    @property
    def saturated_share(self) -> float | None:
        """Of the blocks of an open loop that tell; None where none does."""
        return self._num_saturated / self._num_judged if self._num_judged else None

    @property
    def counters(self) -> SpecCounters | None:
        """Summed over blocks; None where none had any."""
        if not self._has_counters:
            return None
        drafts, drafted, accepted = self._counted
        return SpecCounters(
            num_drafts=drafts,
            num_draft_tokens=drafted,
            num_accepted_tokens=accepted,
            num_accepted_tokens_per_pos=tuple(self._accepted_per_pos),
        )

    def add(self, block: BlockRecord, rules: SelectionRules) -> None:
        throughput = Score(
            block_id=intern(block.block_id),
            node=intern(block.node),
            visit_id=intern(block.visit_id),
            phase=block.phase,
            started_s=datetime.fromisoformat(block.started_utc).timestamp(),
            value=math.log(block.output_tokens_per_s),
        )
        self.throughputs.append(throughput)
        if rules.objective in ("tpot", "e2e", "goodput"):
            value = objective_value(block, rules)
            self._others = self._others or []
            if value is not None:
                self._others.append(throughput._replace(value=value))
        self.num_requests += block.num_requests
        self.output_tokens += block.output_tokens
        self.wall_s += block.wall_s
        self.num_good += num_good_requests(block, rules.slo) if rules.slo else 0
        self.ttft_s.extend(block.ttft_s)
        self.tpot_s.extend(value for value in block.tpot_s if value is not None)
        self.e2e_s.extend(block.e2e_s)
        if block.open_loop and block.open_loop.is_saturated is not None:
            self._num_judged += 1
            self._num_saturated += block.open_loop.is_saturated
        if block.counters:
            self._count(block.counters)
        key = throughput.block_id, throughput.node
        if block.phase != "closing" or key not in self.outputs:
            self.outputs[key] = array("q", map(hash, block.output_sha256))

    def _count(self, counters: SpecCounters) -> None:
        self._has_counters = True
        self._counted[0] += counters.num_drafts
        self._counted[1] += counters.num_draft_tokens
        self._counted[2] += counters.num_accepted_tokens
        per_pos = counters.num_accepted_tokens_per_pos
        self._accepted_per_pos += [0] * (len(per_pos) - len(self._accepted_per_pos))
        for position, accepted in enumerate(per_pos):
            self._accepted_per_pos[position] += accepted


class Folded(NamedTuple):
    """(arm id, workload id) -> what was measured."""

    cells: Mapping[tuple[str, str], Cell]
    """By the search, the baseline's visits included."""
    confirmed: Mapping[tuple[str, str], Cell]
    """By confirmation visits."""


def fold(blocks: Iterable[BlockRecord], rules: SelectionRules) -> Folded:
    """Reads one block at a time, which keeps a ledger of a million lines small; void ones are left out."""
    folded = Folded(defaultdict(Cell), defaultdict(Cell))
    for block in blocks:
        if block.void_reason is None:
            part = folded.confirmed if block.phase == "confirm" else folded.cells
            part[block.arm_id, block.workload_id].add(block, rules)
    return folded


def objective_value(block: BlockRecord, rules: SelectionRules) -> float | None:
    """ln of what `selection.objective` asks for; more is better.

    None for a block without a TPOT: no request had two tokens, or all of them came in one chunk. Half a request is
    added to the good ones, so that a block without any has a logarithm too.
    """
    if rules.objective == "tpot":
        times = [value for value in block.tpot_s if value is not None]
        return -math.log(mean) if times and (mean := fmean(times)) > 0 else None
    if rules.objective == "e2e":
        return -math.log(fmean(block.e2e_s))
    if rules.objective == "goodput" and rules.slo:
        return math.log((num_good_requests(block, rules.slo) + 0.5) / block.wall_s)
    return math.log(block.output_tokens_per_s)
