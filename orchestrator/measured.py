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

from orchestrator.config import SelectionRules, Slo
from orchestrator.estimate import Score
from orchestrator.metrics import came_at_once, num_good_requests
from orchestrator.records import BlockRecord, SpecCounters

Outputs = Mapping[tuple[str, str], "array[int]"]
"""(block id, node) -> a hash of every prompt's output."""


MAX_AT_ONCE_SHARE = 0.05
"""Of requests whose tokens came all at once; with more of them a 95th percentile rests on what was not measured."""


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
    """These two without the requests whose tokens came all at once."""
    e2e_s: "array[float]" = field(default_factory=lambda: array("d"))
    outputs: dict[tuple[str, str], "array[int]"] = field(default_factory=dict)
    """Of the opening visit where the baseline has two."""
    _needs_token_times: bool = False
    _slo_needs_token_times: bool = False
    _num_of_several: int = 0
    _num_at_once: int = 0
    _num_judged: int = 0
    _num_saturated: int = 0
    _counted: list[int] = field(default_factory=lambda: [0, 0, 0])
    _accepted_per_pos: list[int] = field(default_factory=list)
    _has_counters: bool = False
    _num_looked_for: int = 0
    _num_found: int = 0

    @property
    def num_decoded(self) -> int:
        """Output tokens but the first of each request, which prefill gives."""
        return self.output_tokens - self.num_requests

    @property
    def scores(self) -> list[Score]:
        """By the objective, as `objective_value` says; none where the rules ask for times that were not measured."""
        if self.lacks_asked_times:
            return []
        return self.throughputs if self._others is None else self._others

    @property
    def at_once_share(self) -> float | None:
        """Of requests of several tokens: those whose tokens came all at once. None where there was no such request."""
        return self._num_at_once / self._num_of_several if self._num_of_several else None

    @property
    def has_token_times(self) -> bool:
        """Whether times to the first token and per token are a measurement."""
        return (self.at_once_share or 0.0) <= MAX_AT_ONCE_SHARE

    @property
    def lacks_asked_times(self) -> bool:
        """Whether the objective or a constraint asks for times that are no measurement here."""
        return self._needs_token_times and not self.has_token_times

    @property
    def has_goodput(self) -> bool:
        """Whether it can be told which requests were good."""
        return self.has_token_times or not self._slo_needs_token_times

    @property
    def saturated_share(self) -> float | None:
        """Of the blocks of an open loop that tell; None where none does."""
        return self._num_saturated / self._num_judged if self._num_judged else None

    @property
    def prefix_cache_hit_rate(self) -> float | None:
        """Share of the prompts' tokens that the prefix cache had; None without one."""
        return self._num_found / self._num_looked_for if self._num_looked_for else None

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
        self._needs_token_times = needs_token_times(rules)
        self._slo_needs_token_times = _on_token_times(rules.slo)
        self._add_times(block)
        if block.open_loop and block.open_loop.is_saturated is not None:
            self._num_judged += 1
            self._num_saturated += block.open_loop.is_saturated
        if block.prefix_cache:
            self._num_looked_for += block.prefix_cache.queries
            self._num_found += block.prefix_cache.hits
        if block.counters:
            self._count(block.counters)
        key = throughput.block_id, throughput.node
        if block.phase != "closing" or key not in self.outputs:
            self.outputs[key] = array("q", map(hash, block.output_sha256))

    def _add_times(self, block: BlockRecord) -> None:
        self.e2e_s.extend(block.e2e_s)
        for ttft, tpot, e2e in zip(block.ttft_s, block.tpot_s, block.e2e_s, strict=True):
            self._num_of_several += tpot is not None
            if came_at_once(ttft, tpot, e2e):
                self._num_at_once += 1
                continue
            self.ttft_s.append(ttft)
            if tpot is not None:
                self.tpot_s.append(tpot)

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


def needs_token_times(rules: SelectionRules) -> bool:
    """Whether deciding by `rules` takes times to the first token or per token."""
    limits = rules.constraints
    by_goodput = rules.objective == "goodput" and _on_token_times(rules.slo)
    return rules.objective == "tpot" or by_goodput or bool(limits.ttft_p95_s or limits.tpot_p95_s)


def _on_token_times(slo: Slo | None) -> bool:
    return slo is not None and bool(slo.ttft_s or slo.tpot_s)


def objective_value(block: BlockRecord, rules: SelectionRules) -> float | None:
    """ln of what `selection.objective` asks for; more is better.

    None for a block without a TPOT: no request had two tokens, or all of them came in one chunk; and for one that tells
    too little of the times that are asked for. Half a request is added to the good ones, so that a block without any
    has a logarithm too.
    """
    if needs_token_times(rules) and not has_token_times([block]):
        return None
    if rules.objective == "tpot":
        times = [value for value in block.tpot_s if value is not None]
        return -math.log(mean) if times and (mean := fmean(times)) > 0 else None
    if rules.objective == "e2e":
        return -math.log(fmean(block.e2e_s))
    if rules.objective == "goodput" and rules.slo:
        return math.log((num_good_requests(block, rules.slo) + 0.5) / block.wall_s)
    return math.log(block.output_tokens_per_s)


def has_token_times(blocks: Iterable[BlockRecord]) -> bool:
    """As `Cell.has_token_times`, of these blocks."""
    at_once = [
        came_at_once(ttft, tpot, e2e)
        for block in blocks
        for ttft, tpot, e2e in zip(block.ttft_s, block.tpot_s, block.e2e_s, strict=True)
        if tpot is not None
    ]
    return sum(at_once) <= MAX_AT_ONCE_SHARE * len(at_once)
