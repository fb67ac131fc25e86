"""Two sweeps against each other: engine versions, instance types, drafters. Pure.

Where both measured the same prompts the comparison is made block by block, else between independent means. Neither
shares a node's baseline with the other, so both sweeps' noise between server starts counts in full.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from orchestrator.compare import compare_cells
from orchestrator.config import SelectionRules, Strict, SweepConfig
from orchestrator.estimate import Estimate, VisitNoise, alone, combine, difference, estimate_all, simultaneous
from orchestrator.measured import Cell, fold
from orchestrator.plan import Plan
from orchestrator.records import BlockRecord, WorkloadCell
from orchestrator.selection import Interval

Change = Literal["faster", "slower", "same", "open"]
"""`same`: the whole interval lies within the tolerance; `open`: it allows more than one of the others."""


@dataclass(frozen=True)
class Measured:
    """One sweep, as far as comparing goes."""

    plan: Plan
    cells: Mapping[tuple[str, str], Cell]
    noise: VisitNoise

    @classmethod
    def of(cls, plan: Plan, blocks: Iterable[BlockRecord], rules: SelectionRules) -> "Measured":
        """From valid `blocks`, by the objective of `rules`."""
        cells = fold(blocks, rules).cells
        return cls(plan, cells, compare_cells(plan, cells, rules).noise)


class Row(Strict):
    """One arm on one workload in both sweeps; B over A."""

    workload: str
    arm: str
    num_blocks: int
    """Blocks in common; the smaller of both numbers where there are none."""
    is_paired: bool
    tokens_per_s_a: float
    tokens_per_s_b: float
    ratio: Interval
    """B / A in the objective; more is better."""
    change: Change
    """Claimed with the sweep's confidence for all arms of the workload together."""
    speedup_a: float | None = None
    speedup_b: float | None = None


class SweepComparison(Strict):
    objective: str
    """As the second sweep is judged, which both are compared in."""
    rows: tuple[Row, ...]
    only_in_a: tuple[str, ...]
    """`arm on workload` that only one of them has figures of."""
    only_in_b: tuple[str, ...]
    differences: dict[str, tuple[str, str]]
    """Key of the configuration, or `engine` -> its value in A and in B."""


class _Pair(NamedTuple):
    workload: str
    arm: str
    a: Cell
    b: Cell


def compare_sweeps(
    a: Measured, b: Measured, rules: SelectionRules, differences: Mapping[str, tuple[str, str]]
) -> SweepComparison:
    """Every arm that both measured, by name, on every workload of the same dataset and load; in the order of `b`."""
    pairs = list(_pairs(a, b))
    noise = max(a.noise, b.noise, key=lambda noise: noise.variance)
    rows = [row for _, group in groupby(pairs, lambda pair: pair.workload) for row in _rows(list(group), noise, rules)]
    speedups_a, speedups_b = _speedups(a, rules), _speedups(b, rules)
    rows = [
        row.model_copy(
            update={
                "speedup_a": speedups_a.get((row.workload, row.arm)),
                "speedup_b": speedups_b.get((row.workload, row.arm)),
            }
        )
        for row in rows
    ]
    compared = {(pair.workload, pair.arm) for pair in pairs}
    return SweepComparison(
        objective=rules.objective,
        rows=tuple(rows),
        only_in_a=tuple(f"{arm} on {workload}" for workload, arm in _by_name(a) if (workload, arm) not in compared),
        only_in_b=tuple(f"{arm} on {workload}" for workload, arm in _by_name(b) if (workload, arm) not in compared),
        differences=dict(differences),
    )


def config_differences(a: SweepConfig, b: SweepConfig) -> dict[str, tuple[str, str]]:
    """Dotted key -> both values, where they differ; names and folders aside."""
    left, right = (dict(_flat(config.model_dump(mode="json"))) for config in (a, b))
    keys = [*left, *(key for key in right if key not in left)]
    ignored = ("name", "results_dir", "tracking.", "cluster.")
    return {
        key: (str(left.get(key)), str(right.get(key)))
        for key in keys
        if left.get(key) != right.get(key) and not key.startswith(ignored)
    }


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _by_name(measured: Measured) -> dict[tuple[str, str], Cell]:
    """(workload name, arm name) -> its cell."""
    return {
        (workload.name, arm.name): cell
        for workload in measured.plan.workloads
        for arm in measured.plan.arms
        if (cell := measured.cells.get((arm.id, workload.id))) and cell.throughputs
    }


def _pairs(a: Measured, b: Measured) -> Iterable[_Pair]:
    found = _by_name(a)
    loads = {workload.name: _load(workload) for workload in a.plan.workloads}
    same = {workload.name for workload in b.plan.workloads if loads.get(workload.name) == _load(workload)}
    for (workload, arm), cell in _by_name(b).items():
        if workload in same and (workload, arm) in found:
            yield _Pair(workload, arm, found[workload, arm], cell)


def _load(workload: WorkloadCell) -> object:
    """What must agree for throughputs to compare: all but the seed, the identity and what goes with the model."""
    return workload.model_dump(
        exclude={"id", "seed", "warmup_prompt_indices", "chat_template_kwargs", "request_timeout_s"}
    )


def _rows(pairs: Sequence[_Pair], noise: VisitNoise, rules: SelectionRules) -> list[Row]:
    """The arms of one workload, whose scatter moderates each other's; what is called a change holds for all of them."""
    common = {pair.arm: difference(alone(pair.b.scores), alone(pair.a.scores)) for pair in pairs}
    paired = estimate_all(common)
    apart = [estimate_all({pair.arm: alone(side(pair).scores) for pair in pairs}) for side in (_side_a, _side_b)]
    claimed = simultaneous(rules.confidence, len(pairs))
    rows = []
    for pair in pairs:
        change = paired.get(pair.arm) or _independent(apart[0].get(pair.arm), apart[1].get(pair.arm))
        if change:
            sizes = [len(alone(cell.scores)) for cell in (pair.a, pair.b)]
            rows.append(
                Row(
                    workload=pair.workload,
                    arm=pair.arm,
                    num_blocks=len(common[pair.arm]) if pair.arm in paired else min(sizes),
                    is_paired=pair.arm in paired,
                    tokens_per_s_a=_rate(pair.a),
                    tokens_per_s_b=_rate(pair.b),
                    ratio=change.interval(noise, rules.confidence),
                    change=_change(change.interval(noise, claimed), rules.tie_tolerance),
                )
            )
    return rows


def _side_a(pair: _Pair) -> Cell:
    return pair.a


def _side_b(pair: _Pair) -> Cell:
    return pair.b


def _independent(a: Estimate | None, b: Estimate | None) -> Estimate | None:
    return combine([(1, b), (-1, a)]) if a and b else None


def _change(interval: Interval, tolerance: float) -> Change:
    if interval.ci_low >= 1 - tolerance and interval.ci_high <= 1 + tolerance:
        return "same"
    return "slower" if interval.ci_high < 1 else "faster" if interval.ci_low > 1 else "open"


def _rate(cell: Cell) -> float:
    values = [paired.log_ratio for paired in alone(cell.throughputs).values()]
    return math.exp(math.fsum(values) / len(values))


def _speedups(measured: Measured, rules: SelectionRules) -> dict[tuple[str, str], float]:
    """Against each sweep's own baseline, in the objective."""
    found = compare_cells(measured.plan, measured.cells, rules)
    return {
        (workload.name, arm.name): math.exp(estimate.mean)
        for workload in measured.plan.workloads
        for arm in measured.plan.arms
        if (estimate := found.estimates.get((arm.id, workload.id)))
    }
