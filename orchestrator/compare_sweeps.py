"""Two sweeps against each other: engine versions, instance types, drafters. Pure.

Two questions. Whether an arm gains more or less on its own sweep's baseline, which was measured beside it on the same
node: what nodes differ by cancels. And whether it gives more tokens per second, which a faster node does too: that is
compared in pairs on the nodes that both have, else with what nodes differ by, and not at all where one node on either
side does not tell. Both sweeps' noise between server starts counts in full.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from orchestrator.compare import Comparisons, compare_cells
from orchestrator.config import SelectionRules, Strict, SweepConfig
from orchestrator.estimate import Estimate, Paired, Score, alone, combine, difference, estimate_all, simultaneous
from orchestrator.measured import Cell, fold
from orchestrator.node_spread import NodeSpread, between_nodes, node_shares, node_spread, same_node_pairs
from orchestrator.plan import Plan
from orchestrator.records import BlockRecord, VisitRecord, WorkloadCell
from orchestrator.selection import Interval

Change = Literal["faster", "slower", "same", "open", "other nodes"]
"""`same`: the whole interval lies within the tolerance; `open`: it allows more than one of the others; `other nodes`:
not comparable, since nobody knows what A's and B's nodes differ by."""
GainChange = Literal["more", "less", "same", "open"]


@dataclass(frozen=True)
class Measured:
    """One sweep, as far as comparing goes."""

    plan: Plan
    found: Comparisons

    @classmethod
    def of(
        cls,
        sweep_id: str,
        plan: Plan,
        blocks: Iterable[BlockRecord],
        rules: SelectionRules,
        visits: Sequence[VisitRecord] = (),
    ) -> "Measured":
        """From valid `blocks`, by the objective of `rules`.

        A visit's id follows from its plan, so that two sweeps of one plan share them all: here it is named by when it
        began too, which tells it from another start and is the same where blocks were taken over.
        """
        starts = {visit.visit_id: visit.started_utc for visit in visits}
        nodes = {visit.node: _node(visit) for visit in visits if visit.node_info}
        told_apart = (
            block.model_copy(
                update={
                    "visit_id": f"{block.visit_id} {starts.get(block.visit_id, sweep_id)}",
                    "node": nodes.get(block.node, block.node),
                }
            )
            for block in blocks
        )
        return cls(plan, compare_cells(plan, fold(told_apart, rules).cells, rules))

    @property
    def nodes(self) -> tuple[str, ...]:
        """That have figures."""
        return tuple(sorted({score.node for cell in self.found.cells.values() for score in cell.throughputs}))

    def by_name(self) -> dict[tuple[str, str], tuple[str, str]]:
        """(workload name, arm name) -> (workload id, arm id), of those that have figures."""
        return {
            (workload.name, arm.name): (workload.id, arm.id)
            for workload in self.plan.workloads
            for arm in self.plan.arms
            if (cell := self.found.cells.get((arm.id, workload.id))) and cell.throughputs
        }


def _node(visit: VisitRecord) -> str:
    """A node by its name and its CPU: where a name was given to another machine, that is another node."""
    info = visit.node_info
    return f"{visit.node} ({info.cpu_model}, {info.logical_cores} CPUs)" if info else visit.node


class Row(Strict):
    """One arm on one workload in both sweeps; B over A."""

    workload: str
    arm: str
    num_blocks: int
    """Blocks in common; the smaller of both numbers where there are none."""
    is_paired: bool
    on_same_nodes: bool
    """Every block that is compared, in the same share on both sides."""
    tokens_per_s_a: float
    tokens_per_s_b: float
    ratio: Interval | None
    """B / A in the objective, with what nodes differ by; more is better. None where that is not known."""
    change: Change
    """Claimed with the sweep's confidence for all arms and gains of the workload together."""
    speedup_a: float | None = None
    speedup_b: float | None = None
    """Against each sweep's own baseline, in the objective."""
    gain_ratio: Interval | None = None
    """speedup_b / speedup_a; None for the baseline, and where one of them has no figure."""
    gain_change: GainChange | None = None


class SweepComparison(Strict):
    objective: str
    """As the second sweep is judged, which both are compared in."""
    nodes_a: tuple[str, ...]
    nodes_b: tuple[str, ...]
    """By name and CPU."""
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
    gain_a: Mapping[str, Paired]
    gain_b: Mapping[str, Paired]
    """Block id -> the arm against its sweep's baseline; empty for the baseline."""


class _Change(NamedTuple):
    """B against A, in logs."""

    estimate: Estimate | None
    """None where what nodes differ by is not known."""
    num_blocks: int
    is_paired: bool
    on_same_nodes: bool


def compare_sweeps(
    a: Measured, b: Measured, rules: SelectionRules, differences: Mapping[str, tuple[str, str]]
) -> SweepComparison:
    """Every arm that both measured, by name, on every workload of the same dataset and load; in the order of `b`."""
    pairs = list(_pairs(a, b))
    rows = [row for _, group in groupby(pairs, lambda pair: pair.workload) for row in _rows(a, b, list(group), rules)]
    compared = {(pair.workload, pair.arm) for pair in pairs}
    return SweepComparison(
        objective=rules.objective,
        nodes_a=a.nodes,
        nodes_b=b.nodes,
        rows=tuple(rows),
        only_in_a=tuple(f"{arm} on {workload}" for workload, arm in a.by_name() if (workload, arm) not in compared),
        only_in_b=tuple(f"{arm} on {workload}" for workload, arm in b.by_name() if (workload, arm) not in compared),
        differences=dict(differences),
    )


def config_differences(
    a: SweepConfig, b: SweepConfig, written: Sequence[Mapping[str, object]] = ()
) -> dict[str, tuple[str, str]]:
    """Dotted key -> both values, where they differ; names and folders aside.

    Args:
        written: both as their files have them, where an older one lacks keys that came later.
    """
    left, right = (dict(_flat(config.model_dump(mode="json"))) for config in (a, b))
    lacking = [side.keys() - dict(_flat(file)).keys() for side, file in zip((left, right), written, strict=False)]
    lacking += [set[str]()] * (2 - len(lacking))
    keys = [*left, *(key for key in right if key not in left)]
    ignored = ("name", "results_dir", "tracking.", "cluster.")
    return {
        key: (_shown(key, left, lacking[0]), _shown(key, right, lacking[1]))
        for key in keys
        if left.get(key) != right.get(key) and not key.startswith(ignored)
    }


def _shown(key: str, values: Mapping[str, object], lacking: Collection[str]) -> str:
    if key not in values:
        return "not there"
    value = "null" if values[key] is None else str(values[key])
    return f"not recorded (by default {value})" if key in lacking else value


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _pairs(a: Measured, b: Measured) -> Iterable[_Pair]:
    left, right = a.by_name(), b.by_name()
    loads = {workload.name: _load(workload) for workload in a.plan.workloads}
    for workload in b.plan.workloads:
        if loads.get(workload.name) != _load(workload):
            continue
        gains_a: Mapping[str, Mapping[str, Paired]] | None = None
        gains_b = b.found.paired(workload.id)
        for arm in b.plan.arms:
            key = workload.name, arm.name
            if key in left and key in right:
                workload_a, arm_a = left[key]
                gains_a = gains_a or a.found.paired(workload_a)
                yield _Pair(
                    *key,
                    a.found.cells[arm_a, workload_a],
                    b.found.cells[arm.id, workload.id],
                    gains_a.get(arm_a, {}),
                    gains_b.get(arm.id, {}),
                )


def _load(workload: WorkloadCell) -> object:
    """What must agree for throughputs to compare: all but the seed, the identity and what goes with the model."""
    return workload.model_dump(
        exclude={"id", "seed", "warmup_prompt_indices", "chat_template_kwargs", "request_timeout_s"}
    )


def _rows(a: Measured, b: Measured, pairs: Sequence[_Pair], rules: SelectionRules) -> list[Row]:
    """The arms of one workload, whose scatter moderates each other's; what is called a change holds for all of them."""
    noise = max(a.found.noise, b.found.noise, key=lambda noise: noise.variance)
    changes, gains = _changes(pairs, node_spread(_baselines(a, b, pairs[0].workload))), _gain_changes(pairs)
    claimed = simultaneous(rules.confidence, len(changes) + len(gains))
    rows = []
    for pair in pairs:
        change, gain = changes.get(pair.arm), gains.get(pair.arm)
        if change is None:
            continue
        rows.append(
            Row(
                workload=pair.workload,
                arm=pair.arm,
                num_blocks=change.num_blocks,
                is_paired=change.is_paired,
                on_same_nodes=change.on_same_nodes,
                tokens_per_s_a=_mean(alone(pair.a.throughputs)),
                tokens_per_s_b=_mean(alone(pair.b.throughputs)),
                ratio=change.estimate.interval(noise, rules.confidence) if change.estimate else None,
                change=_named(change.estimate.interval(noise, claimed), rules.tie_tolerance)
                if change.estimate
                else "other nodes",
                speedup_a=_mean(pair.gain_a) if pair.gain_a else None,
                speedup_b=_mean(pair.gain_b) if pair.gain_b else None,
                gain_ratio=gain.interval(noise, rules.confidence) if gain else None,
                gain_change=_GAINS[_named(gain.interval(noise, claimed), rules.tie_tolerance)] if gain else None,
            )
        )
    return rows


def _changes(pairs: Sequence[_Pair], spread: NodeSpread | None) -> dict[str, _Change]:
    """Arm -> how it changed: in pairs on the same nodes where at least two blocks are such, else in pairs on others,
    else between independent means. Arms with fewer than two blocks on a side are left out."""
    beside = {pair.arm: same_node_pairs(pair.a.scores, pair.b.scores) for pair in pairs}
    anywhere = {pair.arm: difference(alone(pair.b.scores), alone(pair.a.scores)) for pair in pairs}
    common = {arm: found if len(found) > 1 else anywhere[arm] for arm, found in beside.items()}
    paired = estimate_all(common)
    apart = [estimate_all({pair.arm: alone(scores) for pair, scores in side}) for side in _sides(pairs)]
    changes = {}
    for pair in pairs:
        estimate = paired.get(pair.arm) or _independent(apart[0].get(pair.arm), apart[1].get(pair.arm))
        if estimate is None:
            continue
        blocks = common[pair.arm] if pair.arm in paired else None
        shares = {} if len(beside[pair.arm]) > 1 else node_shares(*(_of(blocks, scores) for scores in _scores(pair)))
        if shares:
            estimate = combine([(1, estimate), (1, between_nodes(shares, spread))]) if spread else None
        num_blocks = len(blocks) if blocks is not None else min(len(alone(scores)) for scores in _scores(pair))
        changes[pair.arm] = _Change(estimate, num_blocks, blocks is not None, not shares)
    return changes


def _gain_changes(pairs: Sequence[_Pair]) -> dict[str, Estimate]:
    """Arm -> its gain on its own baseline in B against that in A; without those that have none."""
    paired = estimate_all({pair.arm: difference(pair.gain_b, pair.gain_a) for pair in pairs})
    left, right = (estimate_all({pair.arm: gain for pair, gain in side}) for side in _gains(pairs))
    found = {pair.arm: paired.get(pair.arm) or _independent(left.get(pair.arm), right.get(pair.arm)) for pair in pairs}
    return {arm: estimate for arm, estimate in found.items() if estimate}


def _sides(pairs: Sequence[_Pair]) -> list[list[tuple[_Pair, Sequence[Score]]]]:
    return [[(pair, pair.a.scores) for pair in pairs], [(pair, pair.b.scores) for pair in pairs]]


def _gains(pairs: Sequence[_Pair]) -> list[list[tuple[_Pair, Mapping[str, Paired]]]]:
    return [[(pair, pair.gain_a) for pair in pairs], [(pair, pair.gain_b) for pair in pairs]]


def _scores(pair: _Pair) -> tuple[Sequence[Score], Sequence[Score]]:
    return pair.a.scores, pair.b.scores


def _of(blocks: Mapping[str, Paired] | None, scores: Sequence[Score]) -> list[Score]:
    """Those that are compared; None: all of them."""
    return [score for score in scores if blocks is None or score.block_id in blocks]


def _baselines(a: Measured, b: Measured, workload: str) -> list[Sequence[Score]]:
    """Of both sweeps on one workload."""
    keys = ((side, side.by_name().get((workload, side.plan.baseline.name))) for side in (a, b))
    return [side.found.cells[key[1], key[0]].scores for side, key in keys if key]


def _independent(a: Estimate | None, b: Estimate | None) -> Estimate | None:
    return combine([(1, b), (-1, a)]) if a and b else None


def _named(interval: Interval, tolerance: float) -> Change:
    if interval.ci_low >= 1 - tolerance and interval.ci_high <= 1 + tolerance:
        return "same"
    return "slower" if interval.ci_high < 1 else "faster" if interval.ci_low > 1 else "open"


_GAINS: Mapping[Change, GainChange] = {"slower": "less", "faster": "more", "same": "same", "open": "open"}


def _mean(found: Mapping[str, Paired]) -> float:
    """Geometric, over blocks."""
    return math.exp(math.fsum(paired.log_ratio for paired in found.values()) / len(found))
