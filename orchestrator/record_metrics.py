"""The figures that MLflow gets of a sweep: a pure function of its folder, without MLflow.

MLflow keeps every value it was ever given, so a figure at a step that means a block or a position is sent once it
can no longer change (`settled_at`). Figures of a whole cell are sent as they tighten: their step is the number of
measurements they rest on, and one more for the final figure out of selection.json. Time stamps come from the ledger,
which makes sending a figure again harmless: MLflow drops a point that it has already.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from statistics import fmean, geometric_mean
from typing import NamedTuple

import numpy as np

from orchestrator.config import SweepConfig
from orchestrator.display import VERDICT_TEXT, arm_name
from orchestrator.measured import has_token_times
from orchestrator.metrics import (
    acceptance_length,
    acceptance_rate,
    add_counters,
    survival,
    usd_per_million_output_tokens,
)
from orchestrator.nodes import set_aside
from orchestrator.plan import Plan
from orchestrator.records import Arm, BlockRecord, LedgerRecord, SpecCounters, VisitRecord, WorkloadCell
from orchestrator.selection import ArmResult, Interval, Selection

PERCENTILES = (50, 95, 99)
CLOCK_TOLERANCE_MS = 60_000
"""Blocks carry the node's clock, a selection the driver's."""


class Figure(NamedTuple):
    """One point of one metric."""

    key: str
    value: float
    timestamp_ms: int
    step: int
    settled_at: int | None
    """Ledger line (from 0) that made the value final; None: only the end of the sweep does."""


class Measured(NamedTuple):
    """A valid block and its line in the ledger."""

    line: int
    block: BlockRecord

    @property
    def end_ms(self) -> int:
        return utc_ms(self.block.started_utc) + round(self.block.wall_s * 1000)


@dataclass(frozen=True)
class Evidence:
    """A sweep's folder as read at one moment; a record's position in `records` is its line in the ledger."""

    plan: Plan
    config: SweepConfig
    sweep_id: str
    records: Sequence[LedgerRecord]
    selection: Selection | None
    """The current one: while there is one, the sweep counts as finished."""

    @property
    def visits(self) -> list[VisitRecord]:
        return [record for record in self.records if isinstance(record, VisitRecord)]


@dataclass(frozen=True)
class Cell:
    """One arm on one workload, with all that its run in MLflow is made of."""

    arm: Arm
    workload: WorkloadCell
    num_planned_blocks: int
    measured: tuple[Measured, ...]
    baseline: tuple[Measured, ...]
    """The baseline's measurements of the same workload; empty for the baseline itself."""
    num_void_blocks: int
    visits: tuple[VisitRecord, ...]
    last_line: int
    """The newest ledger line that says something about this cell; -1 for none."""
    usd_per_hour: float | None
    result: ArmResult | None
    finished_ms: int | None
    """When the sweep was decided; None while it runs."""

    @property
    def id(self) -> str:
        return f"{self.arm.id}-{self.workload.id}"

    @property
    def name(self) -> str:
        """`code@c1 dflash-k7`, `code@c1 baseline`"""
        return f"{self.workload.name} {arm_name(self.arm)}"

    @property
    def has_begun(self) -> bool:
        """Measured, or tried in vain: an arm whose server never came up is shown as failed, not left out."""
        return bool(self.measured or self.num_void_blocks or any(visit.error for visit in self.visits))


def utc_ms(text: str) -> int:
    """Milliseconds since 1970 of an ISO time; without an offset it counts as UTC."""
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def is_current(selection: Selection, records: Iterable[LedgerRecord]) -> bool:
    """Whether nothing was measured after `selection`: it is from an earlier session where the sweep was continued."""
    limit_ms = utc_ms(selection.created_utc) + CLOCK_TOLERANCE_MS
    return all(utc_ms(record.started_utc) <= limit_ms for record in records if isinstance(record, BlockRecord))


def cells_of(evidence: Evidence) -> Iterator[Cell]:
    """Every arm x workload of the plan, measured or not."""
    plan, by, results = evidence.plan, _group(evidence), _results(evidence.selection)
    num_planned = Counter(block.workload_id for block in plan.blocks)
    for arm in plan.arms:
        for workload in plan.workloads:
            key, base = (arm.id, workload.id), (plan.baseline.id, workload.id)
            yield Cell(
                arm=arm,
                workload=workload,
                num_planned_blocks=num_planned[workload.id],
                measured=tuple(by.measured[key]),
                baseline=() if arm.is_baseline else tuple(by.measured[base]),
                num_void_blocks=by.num_void[key],
                visits=tuple(by.visits[arm.id]),
                last_line=max(by.last_line[key], by.last_line[base], by.last_line[(arm.id, "")]),
                usd_per_hour=evidence.config.hardware.usd_per_server_hour,
                result=results.get((workload.point_name, workload.output_len, arm.name)),
                finished_ms=utc_ms(evidence.selection.created_utc) if evidence.selection else None,
            )


def sweep_figures(evidence: Evidence) -> Iterator[Figure]:
    """How many workloads got which verdict, so that sweeps compare in MLflow's table; nothing before that."""
    selection = evidence.selection
    if selection is None:
        return
    at_ms, verdicts = utc_ms(selection.created_utc), Counter(result.verdict for result in selection.workloads)
    for verdict in VERDICT_TEXT:
        yield Figure(f"workloads_{verdict}", verdicts[verdict], at_ms, len(evidence.records), None)


def new_figures(cell: Cell, since_line: int, with_final: bool) -> list[Figure]:
    """Figures that became final at ledger line `since_line` or later; `with_final` adds those of a finished sweep.

    Missing, infinite and not-a-number are left out: MLflow would store them as 0 or 1.8e308.
    """
    figures = (*_block_figures(cell), *_survival_figures(cell), *_cell_figures(cell))
    return [
        figure
        for figure in figures
        if math.isfinite(figure.value)
        and (with_final if figure.settled_at is None else figure.settled_at >= since_line)
    ]


def _counts(block: BlockRecord) -> bool:
    return block.void_reason is None and block.output_tokens > 0 and block.wall_s > 0


@dataclass(frozen=True)
class _Grouped:
    """The ledger by (arm id, workload id); visits by arm id, their last line under (arm id, "")."""

    measured: defaultdict[tuple[str, str], list[Measured]]
    num_void: Counter[tuple[str, str]]
    visits: defaultdict[str, list[VisitRecord]]
    last_line: defaultdict[tuple[str, str], int]


def _group(evidence: Evidence) -> _Grouped:
    by = _Grouped(defaultdict(list), Counter(), defaultdict(list), defaultdict(lambda: -1))
    aside = _nodes_set_aside(evidence)
    for line, record in enumerate(evidence.records):
        if isinstance(record, VisitRecord):
            by.visits[record.arm_id].append(record)
            by.last_line[(record.arm_id, "")] = line
        elif isinstance(record, BlockRecord) and record.phase != "confirm":
            key = (record.arm_id, record.workload_id)
            by.last_line[key] = line
            if record.node in aside:
                continue
            if _counts(record):
                by.measured[key].append(Measured(line, record))
            else:
                by.num_void[key] += 1
    return by


def _nodes_set_aside(evidence: Evidence) -> Collection[str]:
    blocks = [record for record in evidence.records if isinstance(record, BlockRecord)]
    visits = [record for record in evidence.records if isinstance(record, VisitRecord)]
    return set_aside(evidence.plan, evidence.config.hardware, blocks, visits)


def _results(selection: Selection | None) -> dict[tuple[object, ...], ArmResult]:
    return {
        (of.point_name, of.output_len, arm.arm): arm
        for of in (selection.workloads if selection else ())
        for arm in of.arms
    }


def _block_figures(cell: Cell) -> Iterator[Figure]:
    """Step = block index. The baseline's mean waits for the end: every node's closing visit still changes it.

    Means are geometric, as in the selection, so that the curves of two runs divide to their speedup.
    """
    for index, group in _by_block(cell.measured):
        line, end_ms = max(m.line for m in group), max(m.end_ms for m in group)
        rate = _mean_rate(group)
        yield Figure("block/output_tokens_per_s", rate, end_ms, index, None if cell.arm.is_baseline else line)
    for measured, partners in _pairs(cell):
        both = [measured, *partners]
        is_closed = any(partner.block.phase == "closing" for partner in partners)
        settled_at = max(m.line for m in both) if is_closed else None
        end_ms = max(m.end_ms for m in both)
        yield Figure("block/speedup", _speedup(measured, partners), end_ms, measured.block.block_index, settled_at)


def _survival_figures(cell: Cell) -> Iterator[Figure]:
    """Step = position in the draft, from 0; over all blocks, so it waits for the last one."""
    counters = _counters(cell)
    if counters is None:
        return
    is_complete = len(list(_by_block(cell.measured))) == cell.num_planned_blocks
    settled_at = max(m.line for m in cell.measured) if is_complete else None
    end_ms = max(m.end_ms for m in cell.measured)
    for position, share in enumerate(survival(counters) or ()):
        yield Figure("survival", share, end_ms, position, settled_at)


def _cell_figures(cell: Cell) -> Iterator[Figure]:
    """Step = number of measurements, the baseline's included, that the figure rests on."""
    rests_on = [*cell.measured, *(partner for _, partners in _pairs(cell) for partner in partners)]
    if not cell.measured:
        return
    values = _own_figures(cell)
    if cell.finished_ms is not None:
        # selection.json has the last word: its figures are the ones that were decided on.
        values |= _decided_figures(cell.result) if cell.result else {}
    end_ms = max(m.end_ms for m in rests_on)
    for key, value in values.items():
        if value is None:
            continue
        if cell.finished_ms is None:
            yield Figure(key, value, end_ms, len(rests_on), max(m.line for m in rests_on))
        else:
            yield Figure(key, value, max(end_ms, cell.finished_ms), len(rests_on) + 1, None)


def _own_figures(cell: Cell) -> dict[str, float | None]:
    blocks = [measured.block for measured in cell.measured]
    rate = geometric_mean(_mean_rate(group) for _, group in _by_block(cell.measured))
    speedups = [_speedup(measured, partners) for measured, partners in _pairs(cell)]
    counters = _counters(cell)
    return {
        "num_blocks": len({block.block_id for block in blocks}),
        "num_requests": sum(block.num_requests for block in blocks),
        "num_void_blocks": cell.num_void_blocks,
        "output_tokens_per_s": rate,
        "speedup": geometric_mean(speedups) if speedups else None,
        "acceptance_rate": acceptance_rate(counters) if counters else None,
        "acceptance_length": acceptance_length(counters) if counters else None,
        "usd_per_million_output_tokens": (
            usd_per_million_output_tokens(cell.usd_per_hour, rate) if cell.usd_per_hour else None
        ),
        "client_cpu_cores": fmean(block.client_cpu_cores for block in blocks),
        **_percentiles("e2e_s", (value for block in blocks for value in block.e2e_s)),
        **(_token_times(blocks) if has_token_times(blocks) else {}),
    }


def _token_times(blocks: Sequence[BlockRecord]) -> dict[str, float | None]:
    return {
        **_percentiles("ttft_s", (value for block in blocks for value in block.ttft_s)),
        **_percentiles("tpot_s", (value for block in blocks for value in block.tpot_s if value is not None)),
        **_mean_itl(blocks),
    }


def _decided_figures(result: ArmResult) -> dict[str, float | None]:
    """What selection.json says; figures that it does not have are left as they are."""
    figures: dict[str, float | None] = {
        "num_blocks": result.num_blocks,
        "num_requests": result.num_requests,
        **_interval("output_tokens_per_s", result.output_tokens_per_s),
        **_interval("speedup", result.speedup),
        "acceptance_length": result.acceptance_length,
        "acceptance_rate": result.acceptance_rate,
        "prefix_cache_hit_rate": result.prefix_cache_hit_rate,
        "step_s": result.step_s,
        "break_even_acceptance_length": result.break_even_acceptance_length,
        "predicted_speedup": result.predicted_speedup,
        "usd_per_million_output_tokens": result.usd_per_million_output_tokens,
        "outputs_match_baseline": result.outputs_match_baseline,
    }
    for name, quantiles in (("ttft_s", result.ttft_s), ("tpot_s", result.tpot_s)):
        if quantiles is not None:
            figures |= {f"{name}_p50": quantiles.p50, f"{name}_p95": quantiles.p95}
    return {key: value for key, value in figures.items() if value is not None}


def _by_block(measured: Iterable[Measured]) -> Iterator[tuple[int, list[Measured]]]:
    ordered = sorted(measured, key=lambda m: m.block.block_index)
    return ((index, list(group)) for index, group in groupby(ordered, key=lambda m: m.block.block_index))


def _pairs(cell: Cell) -> list[tuple[Measured, list[Measured]]]:
    """Each measured block with the baseline's measurements of the same block on the same node, if there are any."""
    partners: dict[tuple[str, str], list[Measured]] = {}
    for base in cell.baseline:
        partners.setdefault((base.block.block_id, base.block.node), []).append(base)
    found = ((m, partners.get((m.block.block_id, m.block.node))) for m in cell.measured)
    return [(measured, others) for measured, others in found if others]


def _speedup(measured: Measured, partners: Sequence[Measured]) -> float:
    return measured.block.output_tokens_per_s / _mean_rate(partners)


def _mean_rate(measured: Iterable[Measured]) -> float:
    return geometric_mean(m.block.output_tokens_per_s for m in measured)


def _counters(cell: Cell) -> SpecCounters | None:
    return add_counters(m.block.counters for m in cell.measured if m.block.counters is not None)


def _percentiles(name: str, values: Iterable[float]) -> dict[str, float | None]:
    pooled = list(values)
    if not pooled:
        return {}
    return {f"{name}_p{p}": float(np.percentile(pooled, p)) for p in PERCENTILES}


def _mean_itl(blocks: Sequence[BlockRecord]) -> dict[str, float | None]:
    """Mean over blocks of each block's percentile: the gaps themselves are not in the ledger."""
    names = [f"p{p}" for p in PERCENTILES]
    found = {name: [block.itl_s[name] for block in blocks if name in block.itl_s] for name in names}
    return {f"itl_s_{name}": fmean(values) for name, values in found.items() if values}


def _interval(name: str, interval: Interval | None) -> dict[str, float | None]:
    if interval is None:
        return {}
    return {name: interval.mean, f"{name}_ci_low": interval.ci_low, f"{name}_ci_high": interval.ci_high}
