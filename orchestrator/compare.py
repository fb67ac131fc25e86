"""Every arm against the baseline on every workload, and the rule that chooses between arms. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.config import SelectionRules
from orchestrator.estimate import (
    Estimate,
    Paired,
    VisitNoise,
    difference,
    estimate,
    pair_blocks,
    simultaneous,
    visit_noise,
)
from orchestrator.measured import Cell
from orchestrator.plan import Plan
from orchestrator.selection import Verdict

MOST_TIMES = 20
"""As many blocks over, a choice still open is one between equals for all that matters."""


@dataclass(frozen=True)
class Comparisons:
    """What a sweep has measured, compared. The mappings go by (arm id, workload id)."""

    plan: Plan
    rules: SelectionRules
    cells: Mapping[tuple[str, str], Cell]
    paired: Mapping[tuple[str, str], Mapping[str, Paired]]
    """Block by block."""
    estimates: Mapping[tuple[str, str], Estimate]
    """In the mean, where at least two blocks compare."""
    noise: VisitNoise


def compare_cells(
    plan: Plan, cells: Mapping[tuple[str, str], Cell], rules: SelectionRules, throughput: bool = False
) -> Comparisons:
    """Every arm with the baseline by `rules.objective`, or by `throughput` whatever that is."""
    scores = {key: cell.throughputs if throughput else cell.scores for key, cell in cells.items()}
    paired: dict[tuple[str, str], Mapping[str, Paired]] = {}
    estimates: dict[tuple[str, str], Estimate] = {}
    for workload in plan.workloads:
        baseline = scores.get((plan.baseline.id, workload.id), [])
        here = {
            arm_id: pair_blocks(found, baseline)
            for (arm_id, workload_id), found in scores.items()
            if workload_id == workload.id and arm_id != plan.baseline.id
        }
        for arm_id, found in here.items():
            paired[arm_id, workload.id] = found
            mean = estimate(found, [other for other_id, other in here.items() if other_id != arm_id])
            if mean:
                estimates[arm_id, workload.id] = mean
    baselines = [scores.get((plan.baseline.id, workload.id), []) for workload in plan.workloads]
    return Comparisons(plan, rules, cells, paired, estimates, visit_noise(baselines, rules.visit_noise))


class Candidate(NamedTuple):
    """An arm that may be chosen: k, and what it gains on the baseline."""

    num_speculative_tokens: int
    estimate: Estimate


class Choosing(NamedTuple):
    verdict: Verdict
    chosen: int
    """Position of the candidate that leads, also where it does not win."""
    leader: int
    """The one with the highest mean; another than `chosen` where both are equal within the tolerance."""
    open_ones: tuple[int, ...]
    """Candidates that may gain after all; empty where one is proven, or none can."""


def choose(candidates: Sequence[Candidate], noise: VisitNoise, rules: SelectionRules) -> Choosing:
    """The highest mean, ties to the smallest k; it must be proven above the baseline, and else none may gain.

    Proven means by an interval that holds for all candidates together. To exclude a gain, each one's own is enough: a
    single arm that gains makes the claim wrong.
    """
    least = math.log1p(rules.tie_tolerance)
    confidence = simultaneous(rules.confidence, len(candidates))

    def gains(found: Candidate) -> bool:
        mean = found.estimate.mean
        return mean > least and mean > found.estimate.half_width(noise, confidence)

    positions = range(len(candidates))
    leader = max(positions, key=lambda at: candidates[at].estimate.mean)
    lowest = candidates[leader].estimate.mean + math.log1p(-rules.tie_tolerance)
    tied = [at for at in positions if candidates[at].estimate.mean >= lowest]
    # A smaller k that happens to be noisy must not turn a proven gain into `undecided`.
    proven = [at for at in tied if gains(candidates[at])]
    chosen = min(proven or tied, key=lambda at: (candidates[at].num_speculative_tokens, at))
    if proven:
        return Choosing("speculate", chosen, leader, ())
    may_gain = tuple(
        at
        for at in positions
        if candidates[at].estimate.mean + candidates[at].estimate.half_width(noise, rules.confidence) >= least
    )
    return Choosing("undecided" if may_gain else "baseline", chosen, leader, may_gain)


def not_told_apart(
    chosen: Mapping[str, Paired], others: Sequence[Mapping[str, Paired]], noise: VisitNoise, rules: SelectionRules
) -> list[int]:
    """Positions of the `others` that may be better than `chosen`, whose blocks they are compared on.

    With probability `rules.confidence` all that are left out are truly no better (Hsu 1984, multiple comparisons with
    the best).
    """
    differences = [difference(other, chosen) for other in others]
    confidence = simultaneous(rules.confidence, len(others))
    found = []
    for at, ahead in enumerate(differences):
        mean = estimate(ahead, [other for position, other in enumerate(differences) if position != at])
        if mean is None or -_negated(mean).lower(noise, confidence) >= 0:
            found.append(at)
    return found


def _negated(mean: Estimate) -> Estimate:
    return Estimate(-mean.mean, mean.block_variance, mean.block_freedom, mean.visits)


def blocks_to_settle(
    candidates: Sequence[Candidate], choosing: Choosing, num_blocks: int, noise: VisitNoise, rules: SelectionRules
) -> int | None:
    """About how many blocks an arm would settle an undecided choice, as the interval narrows with their root.

    None where it is decided, and where more than MOST_TIMES as many would be needed: then it hardly matters.
    """
    if choosing.verdict != "undecided":
        return None
    least = math.log1p(rules.tie_tolerance)
    confidence = simultaneous(rules.confidence, len(candidates))
    needed = 1.0
    for at in choosing.open_ones:
        mean = candidates[at].estimate
        is_above = mean.mean > least
        distance = mean.mean if is_above else least - mean.mean
        half = mean.half_width(noise, confidence if is_above else rules.confidence)
        needed = max(needed, (half / distance) ** 2 if distance > 0 else math.inf)
    return math.ceil(num_blocks * needed) + 1 if needed <= MOST_TIMES else None
