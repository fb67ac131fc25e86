"""How sure a comparison is: paired log ratios, and what blocks and server starts leave open about their mean. Pure.

The noise has two parts. Between blocks: an arm's own scatter, moderated by that of its neighbours, because four blocks
alone say little about a scatter (as in Smyth 2004, "Linear models and empirical Bayes methods"), but not where the arm
is more erratic than they are (as in Phipson et al. 2016, "Robust hyperparameter estimation"). Between server starts
("visits"): all blocks of one start share it, so no number of blocks reduces it; it is learnt from the baseline's two
visits on every node. Both are joined by Welch and Satterthwaite's degrees of freedom.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from scipy import stats

from orchestrator.records import Phase
from orchestrator.selection import Interval

NEIGHBOURS_WEIGHT = 3
"""Degrees of freedom that the scatter of the other arms counts for."""
UNLIKE = 0.05
"""Chance, by an F test, below which an arm that scatters more than the others is not taken to be like them."""
PRIOR_WEIGHT = 4
"""Degrees of freedom that the supposed noise between visits counts for, before the sweep has shown its own."""


class Score(NamedTuple):
    """One measured block, as far as comparing goes."""

    block_id: str
    node: str
    visit_id: str
    phase: Phase
    started_s: float
    """Seconds since the epoch."""
    value: float
    """ln of what the objective asks for; more is better."""


class Paired(NamedTuple):
    """ln(arm / baseline) on one block, and the share of each visit's noise in it."""

    log_ratio: float
    visits: Mapping[str, float]


def pair_blocks(arm: Iterable[Score], baseline: Iterable[Score]) -> dict[str, Paired]:
    """Block id -> arm against baseline, both on the same node; blocks without a baseline there are left out.

    The baseline was measured at the node's start and end: its two logs are interpolated to the time of the arm's block,
    which removes a linear drift of the machine.
    """
    references: defaultdict[tuple[str, str], list[Score]] = defaultdict(list)
    for score in baseline:
        references[score.block_id, score.node].append(score)
    paired: defaultdict[str, list[Paired]] = defaultdict(list)
    for score in arm:
        reference = references.get((score.block_id, score.node))
        if reference:
            paired[score.block_id].append(_against(score, reference))
    return {block_id: mean_of(found) for block_id, found in sorted(paired.items())}


def _against(score: Score, reference: Sequence[Score]) -> Paired:
    # By phase, not by time: where the node's clock was set back its stamps say nothing, and the middle is taken.
    first, last = min(reference, key=_is_closing), max(reference, key=_is_closing)
    between = last.started_s - first.started_s
    late = min(1.0, max(0.0, (score.started_s - first.started_s) / between)) if between > 0 else 0.5
    visits: defaultdict[str, float] = defaultdict(float, {score.visit_id: 1.0})
    visits[first.visit_id] -= 1 - late
    visits[last.visit_id] -= late
    return Paired(score.value - (1 - late) * first.value - late * last.value, visits)


def _is_closing(score: Score) -> bool:
    return score.phase == "closing"


def alone(scores: Iterable[Score]) -> dict[str, Paired]:
    """Block id -> an arm's own figure, compared with nothing; repeats of a block are no new sample of the workload."""
    found: defaultdict[str, list[Paired]] = defaultdict(list)
    for score in scores:
        found[score.block_id].append(Paired(score.value, {score.visit_id: 1.0}))
    return {block_id: mean_of(repeats) for block_id, repeats in sorted(found.items())}


def difference(left: Mapping[str, Paired], right: Mapping[str, Paired]) -> dict[str, Paired]:
    """Block id -> left against right, on the blocks that both have; a baseline that they share cancels."""
    return {
        block_id: Paired(
            mine.log_ratio - right[block_id].log_ratio, _add([(1, mine.visits), (-1, right[block_id].visits)])
        )
        for block_id, mine in left.items()
        if block_id in right
    }


def mean_of(found: Sequence[Paired]) -> Paired:
    """Of repeats of one block."""
    if len(found) == 1:
        return found[0]
    share = 1 / len(found)
    return Paired(fmean(each.log_ratio for each in found), _add([(share, each.visits) for each in found]))


def _add(parts: Iterable[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for weight, visits in parts:
        for visit_id, share in visits.items():
            total[visit_id] += weight * share
    return dict(total)


@dataclass(frozen=True)
class VisitNoise:
    """Noise between two starts of the same server, as ln(throughput)."""

    variance: float
    degrees_of_freedom: float


def visit_noise(baselines: Iterable[Iterable[Score]], supposed_sd: float) -> VisitNoise:
    """From how far the baseline's opening and closing visits differ on the same blocks of the same node.

    Args:
        baselines: the baseline's scores, one item a workload.
        supposed_sd: standard deviation before anything is known; weighs as PRIOR_WEIGHT repeated pairs.
    """
    per_node: defaultdict[str, list[float]] = defaultdict(list)
    for scores in baselines:
        for node, changes in _changes(scores).items():
            if len(changes) > 1:
                of_blocks = float(np.var(changes, ddof=1)) / len(changes)
                per_node[node].append((fmean(changes) ** 2 - of_blocks) / 2)
    seen = [max(0.0, fmean(found)) for found in per_node.values()]
    freedom = PRIOR_WEIGHT + len(seen)
    return VisitNoise((PRIOR_WEIGHT * supposed_sd**2 + sum(seen)) / freedom, freedom)


def _changes(scores: Iterable[Score]) -> dict[str, list[float]]:
    """Node -> closing - opening, of every block that has both."""
    ends: defaultdict[tuple[str, str], dict[Phase, float]] = defaultdict(dict)
    for score in scores:
        ends[score.node, score.block_id][score.phase] = score.value
    changes: defaultdict[str, list[float]] = defaultdict(list)
    for (node, _), values in ends.items():
        if "opening" in values and "closing" in values:
            changes[node].append(values["closing"] - values["opening"])
    return changes


@dataclass(frozen=True)
class Estimate:
    """A mean of logs, and what it may be off by."""

    mean: float
    block_variance: float
    """Of the mean, from the scatter between blocks."""
    block_freedom: float
    visits: Mapping[str, float]
    """Visit id -> share of its noise in the mean."""

    def standard_error(self, noise: VisitNoise) -> float:
        return math.sqrt(self.block_variance + self._visit_variance(noise))

    def half_width(self, noise: VisitNoise, confidence: float) -> float:
        """Of the two-sided interval."""
        return self._quantile(noise, (1 + confidence) / 2) * self.standard_error(noise)

    def lower(self, noise: VisitNoise, confidence: float) -> float:
        """The one-sided bound that the truth exceeds with that confidence."""
        return self.mean - self._quantile(noise, confidence) * self.standard_error(noise)

    def interval(self, noise: VisitNoise, confidence: float) -> Interval:
        """Two-sided, turned back by exp."""
        half = self.half_width(noise, confidence)
        return Interval(mean=math.exp(self.mean), ci_low=math.exp(self.mean - half), ci_high=math.exp(self.mean + half))

    def _visit_variance(self, noise: VisitNoise) -> float:
        return noise.variance * sum(share**2 for share in self.visits.values())

    def _quantile(self, noise: VisitNoise, probability: float) -> float:
        of_visits = self._visit_variance(noise)
        total = self.block_variance + of_visits
        spread = self.block_variance**2 / self.block_freedom + of_visits**2 / noise.degrees_of_freedom
        return float(stats.t.ppf(probability, total**2 / spread)) if spread else 0.0


def estimate_all(arms: Mapping[str, Mapping[str, Paired]]) -> dict[str, Estimate]:
    """The mean over blocks of every arm on one workload; arms with fewer than two blocks are left out.

    The scatter of the other arms moderates each one's own.
    """
    scatter = {name: _scatter(paired) for name, paired in arms.items() if len(paired) > 1}
    return {
        name: _estimate(arms[name], own, [other for other_name, other in scatter.items() if other_name != name])
        for name, own in scatter.items()
    }


class _Scatter(NamedTuple):
    squares: float
    """Sum of squares around the mean."""
    freedom: int
    """Degrees of freedom."""


def _scatter(paired: Mapping[str, Paired]) -> _Scatter:
    mean = fmean(found.log_ratio for found in paired.values())
    return _Scatter(math.fsum((found.log_ratio - mean) ** 2 for found in paired.values()), len(paired) - 1)


def _estimate(paired: Mapping[str, Paired], own: _Scatter, others: Sequence[_Scatter]) -> Estimate:
    squares, freedom = own.squares, float(own.freedom)
    if others:
        # The median, as an estimate of their variance: a single erratic arm must not widen all the others' intervals.
        typical = median(other.squares / float(stats.chi2.median(other.freedom)) for other in others)
        of_others = sum(other.freedom for other in others)
        if not _is_erratic(own, typical, of_others):
            weight = min(NEIGHBOURS_WEIGHT, of_others)
            squares += weight * typical
            freedom += weight
    return Estimate(
        mean=fmean(found.log_ratio for found in paired.values()),
        block_variance=squares / freedom / len(paired),
        block_freedom=freedom,
        visits=_add([(1 / len(paired), found.visits) for found in paired.values()]),
    )


def _is_erratic(own: _Scatter, typical: float, freedom: int) -> bool:
    """Whether an arm scatters more than chance lets one that is like the others, whose variance is `typical`: calm
    neighbours must not narrow its interval. One that scatters less may have been lucky, and is widened by them."""
    ratio = own.squares / own.freedom / typical if typical else math.inf
    return bool(own.squares and stats.f(own.freedom, freedom).sf(ratio) < UNLIKE)


def combine(parts: Sequence[tuple[float, Estimate]], shared: Sequence[Sequence[float]] | None = None) -> Estimate:
    """The weighted sum of estimates; visits that they share add up before they are squared.

    Args:
        parts: (weight, estimate).
        shared: for every two parts the part of their prompts that they have in common, 1 on the diagonal. Prompts that
            are lucky for one are lucky for the other, so their scatter is taken to go together as far as that, which is
            the most that it can. None: each has its own.
    """
    together = np.eye(len(parts)) if shared is None else np.asarray(shared, dtype=float)
    errors = np.array([weight * math.sqrt(part.block_variance) for weight, part in parts])
    # What each part adds to the variance; as the parts go together, so do the errors of what is known of their scatter.
    added = errors * (together @ errors)
    unsure = added / np.sqrt([part.block_freedom for _, part in parts])
    total, spread = float(added.sum()), float(unsure @ together**2 @ unsure)
    return Estimate(
        mean=sum(weight * part.mean for weight, part in parts),
        block_variance=total,
        block_freedom=total**2 / spread if spread else min(part.block_freedom for _, part in parts),
        visits=_add([(weight, part.visits) for weight, part in parts]),
    )


def simultaneous(confidence: float, num_comparisons: int) -> float:
    """The confidence of each of several intervals that all hold together with `confidence` (Sidak 1967; safe here,
    where a shared baseline makes them go together)."""
    return float(confidence ** (1 / max(1, num_comparisons)))
