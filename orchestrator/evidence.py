"""What a ledger says about every arm on every workload, and who still needs blocks there. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean

import numpy as np
from scipy import stats

from orchestrator.compare import Comparisons, compare_cells
from orchestrator.config import SelectionRules
from orchestrator.estimate import Estimate, VisitNoise, simultaneous
from orchestrator.measured import fold
from orchestrator.plan import Plan
from orchestrator.records import Arm, BlockRecord, SpecCounters, WorkloadCell

PRIOR_NOISE = 0.04
"""Standard deviation between blocks of the log ratio of two arms, before this sweep has shown its own."""
VERDICT = 0.01
"""What a verdict is worth where it is undecided, as a share of throughput."""
PRIOR_WEIGHT = 4
"""Degrees of freedom that PRIOR_NOISE counts for."""


@dataclass(frozen=True)
class ArmEvidence:
    """One arm on one workload."""

    arm: Arm
    log_speedups: Mapping[str, float]
    """Block id -> ln(arm / baseline on the same node), by the objective."""
    counters: SpecCounters | None
    estimate: Estimate | None
    """Of ln(speedup), as the selection sees it; None for a single block."""
    num_decoded: int = 0
    """Output tokens but the first of each request."""

    @property
    def mean(self) -> float:
        return fmean(self.log_speedups.values())

    @property
    def num_blocks(self) -> int:
        return len(self.log_speedups)


@dataclass(frozen=True)
class WorkloadEvidence:
    cell: WorkloadCell
    num_planned: int
    """Blocks planned per arm."""
    block_s: float | None
    """Mean time of a block of the baseline, seconds; None before it is measured."""
    arms: Mapping[str, ArmEvidence]
    """Arm id -> evidence, of the speculative arms measured here."""
    noise: VisitNoise

    @property
    def leader(self) -> ArmEvidence | None:
        """The arm with the highest mean speedup; None while that is the baseline."""
        best = max(self.arms.values(), key=lambda found: found.mean, default=None)
        return best if best and best.mean > 0 else None

    @property
    def best_mean(self) -> float:
        """ln(speedup) of the leader; 0 where the baseline leads."""
        return self.leader.mean if self.leader else 0.0


@dataclass(frozen=True)
class Noise:
    """How far the mean of paired log ratios of two arms may be off."""

    block_sd: float
    degrees_of_freedom: int
    visit_sd: float

    def variance(self, num_blocks: int) -> float:
        """Of a mean over `num_blocks` blocks that each arm measured in one visit."""
        return self.block_sd**2 / num_blocks + 2 * self.visit_sd**2

    def revealed_sd(self, num_blocks: int, num_planned: int) -> float:
        """How far the mean may move by a second visit that measures the blocks left."""
        shares = (num_blocks / num_planned, 1 - num_blocks / num_planned)
        then = self.block_sd**2 / num_planned + 2 * self.visit_sd**2 * sum(share**2 for share in shares)
        return sqrt(max(0.0, self.variance(num_blocks) - then))

    def margin(self, num_blocks: int, confidence: float) -> float:
        """One-sided."""
        quantile = float(stats.t.ppf(confidence, self.degrees_of_freedom))
        return quantile * sqrt(self.variance(num_blocks))


def gather(plan: Plan, blocks: Iterable[BlockRecord], rules: SelectionRules) -> tuple[WorkloadEvidence, ...]:
    """One per workload of the plan, from valid `blocks`."""
    found = compare_cells(plan, fold(blocks, rules).cells, rules)
    num_planned = Counter(block.workload_id for block in plan.blocks)
    return tuple(_gather(found, workload, num_planned[workload.id]) for workload in plan.workloads)


def _gather(found: Comparisons, workload: WorkloadCell, num_planned: int) -> WorkloadEvidence:
    baseline = found.cells.get((found.plan.baseline.id, workload.id))
    paired = found.paired(workload.id)
    arms = {
        arm.id: ArmEvidence(
            arm=arm,
            log_speedups={block_id: each.log_ratio for block_id, each in paired[arm.id].items()},
            counters=found.cells[arm.id, workload.id].counters,
            estimate=found.estimates.get((arm.id, workload.id)),
            num_decoded=found.cells[arm.id, workload.id].num_decoded,
        )
        for arm in found.plan.arms[1:]
        if paired.get(arm.id)
    }
    return WorkloadEvidence(
        cell=workload,
        num_planned=num_planned,
        block_s=baseline.wall_s / len(baseline.throughputs) if baseline else None,
        arms=arms,
        noise=found.noise,
    )


def pooled_noise(workloads: Sequence[WorkloadEvidence], visit_sd: float) -> Noise:
    """Noise between blocks over all arms and workloads together: one pair of arms alone has two or three values."""
    squares, freedom = PRIOR_WEIGHT * PRIOR_NOISE**2, PRIOR_WEIGHT
    for found in workloads:
        for arm in found.arms.values():
            gains = _gains_on_leader(arm, found)
            if arm is not found.leader and len(gains) > 1:
                squares += float(np.var(gains)) * len(gains)
                freedom += len(gains) - 1
    return Noise(block_sd=sqrt(squares / freedom), degrees_of_freedom=freedom, visit_sd=visit_sd)


def gains_of_more(found: WorkloadEvidence, rules: SelectionRules, noise: Noise) -> dict[str, float]:
    """Arm id -> expected gain in ln(throughput) from measuring all planned blocks here; arms where nothing is to gain
    are left out.

    An arm that clearly cannot beat the leader by more than the tie tolerance gains nothing, nor does a leader that is
    proven better than the baseline, once no rival is left. They go on together, since they compare on the same blocks.
    """
    leader = found.leader
    gains = {arm.arm.id: _gain_of_more(arm, found, rules, noise) for arm in found.arms.values() if arm is not leader}
    if leader:
        gains[leader.arm.id] = max(
            [*gains.values(), 0.0 if _is_proven(leader, found, rules) else max(leader.mean, VERDICT)]
        )
    return {
        arm_id: gain for arm_id, gain in gains.items() if gain > 0 and found.arms[arm_id].num_blocks < found.num_planned
    }


def _gain_of_more(arm: ArmEvidence, found: WorkloadEvidence, rules: SelectionRules, noise: Noise) -> float:
    on_leader = _gains_on_leader(arm, found)
    if not on_leader:
        return VERDICT
    ahead, num_blocks = fmean(on_leader), len(on_leader)
    if found.leader is None and not _is_disproven(arm, found, rules):
        return VERDICT
    if ahead + noise.margin(num_blocks, rules.confidence) < math.log1p(rules.tie_tolerance):
        return 0.0
    return expected_gain(ahead - rules.tie_tolerance, noise.revealed_sd(num_blocks, found.num_planned))


def expected_gain(ahead: float, sd: float) -> float:
    """Mean of what lies above 0 of a normal variable with mean `ahead`."""
    z = ahead / max(sd, 1e-9)
    return max(0.0, ahead * NormalDist().cdf(z) + sd * NormalDist().pdf(z))


def _is_proven(arm: ArmEvidence, found: WorkloadEvidence, rules: SelectionRules) -> bool:
    """As the verdict `speculate` asks."""
    confidence = simultaneous(rules.confidence, len(found.arms))
    half = arm.estimate.half_width(found.noise, confidence) if arm.estimate else math.inf
    return arm.mean > max(half, math.log1p(rules.tie_tolerance)) and arm.num_blocks >= rules.min_blocks


def _is_disproven(arm: ArmEvidence, found: WorkloadEvidence, rules: SelectionRules) -> bool:
    """As the verdict `baseline` asks."""
    half = arm.estimate.half_width(found.noise, rules.confidence) if arm.estimate else math.inf
    return arm.mean + half < math.log1p(rules.tie_tolerance) and arm.num_blocks >= rules.min_blocks


def _gains_on_leader(arm: ArmEvidence, found: WorkloadEvidence) -> list[float]:
    """ln(arm / leader) on each block that both measured; where the baseline leads, the speedups themselves."""
    if found.leader is None:
        return list(arm.log_speedups.values())
    theirs = found.leader.log_speedups
    return [own - theirs[block_id] for block_id, own in arm.log_speedups.items() if block_id in theirs]
