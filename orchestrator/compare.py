"""Every arm against the baseline on every workload, and the rule that chooses between arms. Pure."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.config import SelectionRules
from orchestrator.estimate import (
    Estimate,
    Paired,
    Score,
    VisitNoise,
    difference,
    estimate_all,
    pair_blocks,
    simultaneous,
    visit_noise,
)
from orchestrator.measured import Cell
from orchestrator.plan import Plan
from orchestrator.records import WorkloadCell
from orchestrator.selection import Verdict

MOST_TIMES = 20
"""As many blocks over, a choice still open is one between equals for all that matters."""


@dataclass(frozen=True)
class Comparisons:
    """What a sweep has measured, compared. The mappings go by (arm id, workload id)."""

    plan: Plan
    rules: SelectionRules
    cells: Mapping[tuple[str, str], Cell]
    by_throughput: bool
    """Compared by throughput, whatever the objective."""
    num_paired: Mapping[tuple[str, str], int]
    """Blocks of the arm that compare with the baseline's."""
    estimates: Mapping[tuple[str, str], Estimate]
    """Arm against baseline in the mean, where at least two blocks compare."""
    noise: VisitNoise

    def paired(self, workload_id: str) -> dict[str, dict[str, Paired]]:
        """Arm id -> block id -> the arm against the baseline; made anew at every call, since all together are large."""
        return _pair(self.plan, self.cells, workload_id, self.by_throughput)

    def outputs_match(self, arm_id: str, workloads: Iterable[WorkloadCell]) -> float | None:
        """Share of prompts whose output equals the baseline's on the same node; None where nothing compares.

        Sampled outputs, at a temperature above 0, do not compare.
        """
        same = [
            ours == theirs
            for workload in workloads
            if workload.temperature == 0
            for ours, theirs in self._outputs_in_pairs(arm_id, workload.id)
        ]
        return sum(same) / len(same) if same else None

    def _outputs_in_pairs(self, arm_id: str, workload_id: str) -> Iterator[tuple[int, int]]:
        baseline = self.cells.get((self.plan.baseline.id, workload_id), Cell()).outputs
        for where, outputs in self.cells.get((arm_id, workload_id), Cell()).outputs.items():
            if where in baseline:
                yield from zip(outputs, baseline[where], strict=True)


def compare_cells(
    plan: Plan, cells: Mapping[tuple[str, str], Cell], rules: SelectionRules, by_throughput: bool = False
) -> Comparisons:
    """Every arm with the baseline by `rules.objective`, or by throughput whatever that is."""
    num_paired: dict[tuple[str, str], int] = {}
    estimates: dict[tuple[str, str], Estimate] = {}
    for workload in plan.workloads:
        paired = _pair(plan, cells, workload.id, by_throughput)
        num_paired |= {(arm_id, workload.id): len(found) for arm_id, found in paired.items()}
        estimates |= {(arm_id, workload.id): mean for arm_id, mean in estimate_all(paired).items()}
    baselines = [_scores(cells, (plan.baseline.id, workload.id), by_throughput) for workload in plan.workloads]
    noise = visit_noise(baselines, rules.visit_noise)
    return Comparisons(plan, rules, cells, by_throughput, num_paired, estimates, noise)


def _pair(
    plan: Plan, cells: Mapping[tuple[str, str], Cell], workload_id: str, by_throughput: bool
) -> dict[str, dict[str, Paired]]:
    baseline = _scores(cells, (plan.baseline.id, workload_id), by_throughput)
    return {
        arm_id: pair_blocks(_scores(cells, (arm_id, where), by_throughput), baseline)
        for arm_id, where in cells
        if where == workload_id and arm_id != plan.baseline.id
    }


def _scores(cells: Mapping[tuple[str, str], Cell], key: tuple[str, str], by_throughput: bool) -> Sequence[Score]:
    cell = cells.get(key)
    return () if cell is None else cell.throughputs if by_throughput else cell.scores


class Candidate(NamedTuple):
    """An arm that may be chosen: k, and what it gains on the baseline."""

    num_speculative_tokens: int
    estimate: Estimate


class Choosing(NamedTuple):
    verdict: Verdict
    chosen: int
    """Position of the candidate that leads, also where it does not win."""
    leader: int
    """The one with the highest mean of those that are proven, or of all where none is; another than `chosen` where both
    are equal within the tolerance."""
    open_ones: tuple[int, ...]
    """Candidates that may gain after all; empty where one is proven, or none can."""


def choose(candidates: Sequence[Candidate], noise: VisitNoise, rules: SelectionRules) -> Choosing:
    """The highest mean of those proven above the baseline, ties to the smallest k; where none is proven, none may gain.

    Proven means by an interval that holds for all candidates together. To exclude a gain, each one's own is enough: a
    single arm that gains makes the claim wrong. An arm that is faster in the mean but too noisy to be proven does not
    take the choice away; `not_told_apart` names it.
    """
    least = math.log1p(rules.tie_tolerance)
    confidence = simultaneous(rules.confidence, len(candidates))

    def gains(found: Candidate) -> bool:
        mean = found.estimate.mean
        return mean > least and mean > found.estimate.half_width(noise, confidence)

    positions = range(len(candidates))
    proven = [at for at in positions if gains(candidates[at])]
    leader = max(proven or positions, key=lambda at: candidates[at].estimate.mean)
    tied = [at for at in _tied(candidates, leader, rules) if not proven or at in proven]
    chosen = min(tied, key=lambda at: (candidates[at].num_speculative_tokens, at))
    if proven:
        return Choosing("speculate", chosen, leader, ())
    may_gain = tuple(
        at
        for at in positions
        if candidates[at].estimate.mean + candidates[at].estimate.half_width(noise, rules.confidence) >= least
    )
    return Choosing("undecided" if may_gain else "baseline", chosen, leader, may_gain)


def _tied(candidates: Sequence[Candidate], leader: int, rules: SelectionRules) -> list[int]:
    """Positions of those that are as good as the leader within the tolerance."""
    lowest = candidates[leader].estimate.mean + math.log1p(-rules.tie_tolerance)
    return [at for at, found in enumerate(candidates) if found.estimate.mean >= lowest]


def not_told_apart(
    chosen: Mapping[str, Paired], others: Sequence[Mapping[str, Paired]], noise: VisitNoise, rules: SelectionRules
) -> list[int]:
    """Positions of the `others` that may be better than `chosen`, whose blocks they are compared on.

    With probability `rules.confidence` all that are left out are truly no better (Hsu 1984, multiple comparisons with
    the best).
    """
    ahead = estimate_all({str(at): difference(chosen, other) for at, other in enumerate(others)})
    confidence = simultaneous(rules.confidence, len(others))
    return [at for at in range(len(others)) if str(at) not in ahead or ahead[str(at)].lower(noise, confidence) <= 0]


def blocks_to_settle(
    candidates: Sequence[Candidate], choosing: Choosing, num_blocks: int, noise: VisitNoise, rules: SelectionRules
) -> int | None:
    """About how many blocks an arm would settle an undecided choice; None where it is decided, and where that would be
    more than MOST_TIMES as many: then it hardly matters."""
    times = times_to_settle(candidates, choosing, noise, rules)
    return math.ceil(num_blocks * times) + 1 if times is not None and times <= MOST_TIMES else None


def times_to_settle(
    candidates: Sequence[Candidate], choosing: Choosing, noise: VisitNoise, rules: SelectionRules
) -> float | None:
    """How many times the blocks would settle an undecided choice: a proven gain of the best arm, or of one as good,
    where that is above the baseline; else the exclusion of a gain by every one that is open.

    None where it is decided; infinite where the noise between visits alone keeps it open, which blocks do not reduce.
    """
    if choosing.verdict != "undecided":
        return None
    least = math.log1p(rules.tie_tolerance)
    confidence = simultaneous(rules.confidence, len(candidates))
    if candidates[choosing.leader].estimate.mean > least:
        best = [candidates[at].estimate for at in _tied(candidates, choosing.leader, rules)]
        return min(
            _times_as_many(found, found.half_width(noise, confidence), found.mean, noise)
            for found in best
            if found.mean > least
        )
    return max(
        _times_as_many(found, found.half_width(noise, rules.confidence), least - found.mean, noise)
        for found in (candidates[at].estimate for at in choosing.open_ones)
    )


def _times_as_many(found: Estimate, half_width: float, distance: float, noise: VisitNoise) -> float:
    """Times the blocks at which the half width is down to `distance`; the part of the visits stays as it is."""
    if half_width <= distance:
        return 1.0
    share_of_blocks = found.block_variance / found.standard_error(noise) ** 2
    of_blocks, of_visits = half_width**2 * share_of_blocks, half_width**2 * (1 - share_of_blocks)
    left = distance**2 - of_visits
    return of_blocks / left if left > 0 else math.inf
