"""What it is worth to measure an arm (further), and what that costs: values and prices of the adaptive search. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import exp, inf, sqrt
from statistics import fmean

from orchestrator.budget import server_start_s
from orchestrator.config import Search, SelectionRules
from orchestrator.evidence import (
    ArmEvidence,
    Noise,
    WorkloadEvidence,
    expected_gain,
    gains_of_more,
    gather,
    pooled_noise,
)
from orchestrator.ledger import LedgerView
from orchestrator.plan import Plan
from orchestrator.policy import num_first
from orchestrator.predict import Prediction, Predictor
from orchestrator.records import Arm

Wanted = Mapping[str, int]
"""Workload id -> how many of its blocks, from the first."""


class Worth:
    """What plan and ledger say now.

    Neither the closing baseline nor a confirmation changes anything here: else a sweep that was settled might not be
    once it has closed.
    """

    def __init__(self, plan: Plan, ledger: LedgerView, search: Search, rules: SelectionRules) -> None:
        self._plan, self._ledger, self._search, self._rules = plan, ledger, search, rules
        blocks = [block for block in ledger.valid_blocks() if block.phase in ("opening", "arm")]
        self.workloads = gather(plan, blocks, rules)
        self._noise: Noise = pooled_noise(self.workloads, rules.visit_noise)
        self._arms = [arm for arm in plan.arms if not arm.is_baseline]
        self._measured = {block.arm_id: None for block in blocks}  # in order, without repeats
        self._predicted: dict[tuple[str, str], Prediction | None] = {}

    def due(self, under_way: Collection[str]) -> list[tuple[Arm, Wanted]]:
        """Arms that are worth measuring (further), the most worthy first. Those `under_way` spread the others.

        New arms come before closer looks, which a new leader may make needless.
        """
        return self._first_visits(under_way) or self._revisits()

    def dropped(self) -> dict[tuple[str, str], str]:
        """(arm id, workload id) -> why the arm is not measured (further) there."""
        reasons = {}
        first = {arm.id: wanted for arm, wanted in self._first_visits(())}
        for found in self.workloads:
            for arm in self._arms:
                measured = found.arms.get(arm.id)
                if measured is None and found.cell.id not in first.get(arm.id, {}):
                    reasons[arm.id, found.cell.id] = "predicted to gain nothing worth its time"
                elif self._is_worse(measured, found):
                    reasons[arm.id, found.cell.id] = "clearly worse"
        return reasons

    def _is_worse(self, measured: ArmEvidence | None, found: WorkloadEvidence) -> bool:
        """Whether it has fewer blocks than planned for that reason."""
        if measured is None or measured is found.leader or measured.num_blocks == found.num_planned:
            return False
        return measured.arm.id not in self._more[found.cell.id]

    # --- what it gains

    def _first_visits(self, under_way: Collection[str]) -> list[tuple[Arm, Wanted]]:
        visits = []
        for arm in self._arms:
            cells, gain = self._worthy(arm)
            wanted = self._with_enough(cells)
            value = gain / len(self.workloads) / self._seconds(arm, wanted)
            if cells and value >= self._least_value:
                visits.append((value, arm, wanted))
        known = [arm for arm in self._arms if arm.id in under_way or arm.id in self._measured]
        rank = {arm.id: at for at, arm in enumerate(_by_distance([arm for _, arm, _ in visits], known))}
        visits.sort(key=lambda visit: (-visit[0], visit[1].id not in self._measured, rank[visit[1].id]))
        return [(arm, wanted) for _, arm, wanted in visits]

    def _worthy(self, arm: Arm) -> tuple[set[str], float]:
        """The workloads where what `arm` may gain pays for its blocks, the server running anyhow; and that gain.

        The one setting for all workloads counts as one more; an arm can become it only if it is measured on all.
        """
        cells, gain, rest_s = set(), 0.0, 0.0
        for found in self.workloads:
            here, blocks_s = self._gain(arm, found), found.num_planned * self._block_s(arm, found)
            if here > 0 and here / len(self.workloads) >= self._least_value * blocks_s:
                cells.add(found.cell.id)
                gain += here
            elif arm.id not in found.arms:
                rest_s += blocks_s
        overall = self._gain_overall(arm)
        if overall > 0 and overall / len(self.workloads) >= self._least_value * rest_s:
            cells |= {found.cell.id for found in self.workloads if arm.id not in found.arms}
            gain += overall
        return cells, gain

    @cached_property
    def _least_value(self) -> float:
        """Expected gain per second below which nothing is worth measuring."""
        everything_s = self.start_s + sum(found.num_planned * (found.block_s or 0.0) for found in self.workloads)
        return self._search.min_expected_gain / everything_s

    def _gain(self, arm: Arm, found: WorkloadEvidence) -> float:
        """Expected gain in ln(throughput) over the best measured arm, beyond a tie, from measuring `arm` here.

        Infinite where nothing can be predicted yet, and where a visit ended before it had measured its first blocks.
        """
        measured = found.arms.get(arm.id)
        if measured:
            is_begun = measured.num_blocks < min(num_first(self._search, self._rules), found.num_planned)
            return inf if is_begun else 0.0
        prediction = self._prediction(arm, found)
        if prediction is None:
            return inf
        ahead = prediction.log_speedup - found.best_mean - self._rules.tie_tolerance
        return expected_gain(ahead, self._revealed_sd(prediction, found))

    def _gain_overall(self, arm: Arm) -> float:
        """As `_gain`, for the mean over all workloads; 0 where nothing is left to measure, or nothing predicted."""
        if all(arm.id in found.arms for found in self.workloads):
            return 0.0
        mean = sd = 0.0
        for found in self.workloads:
            measured, prediction = found.arms.get(arm.id), self._prediction(arm, found)
            if measured:
                mean += measured.mean
            elif prediction:
                mean += prediction.log_speedup
                sd += self._revealed_sd(prediction, found)  # errors of one arm go together
            else:
                return 0.0
        ahead = mean / len(self.workloads) - self._best_overall - self._rules.tie_tolerance
        return expected_gain(ahead, sd / len(self.workloads))

    @cached_property
    def _best_overall(self) -> float:
        """The highest mean ln(speedup) of an arm measured on all workloads, or 0, the baseline's."""
        complete = [arm.id for arm in self._arms if all(arm.id in found.arms for found in self.workloads)]
        return max([0.0, *(fmean(found.arms[id_].mean for found in self.workloads) for id_ in complete)])

    def _revealed_sd(self, prediction: Prediction, found: WorkloadEvidence) -> float:
        """What a noisy measurement may reveal scatters less than what there is."""
        noise = self._noise.variance(found.num_planned)
        return prediction.sd**2 / sqrt(prediction.sd**2 + noise)

    @cached_property
    def predictors(self) -> Mapping[str, Predictor]:
        """Method -> its predictor."""
        methods = dict.fromkeys(arm.method for arm in self._arms)
        order = tuple(self._measured)
        return {
            method: Predictor.of_method(method, self._arms, self.workloads, self._noise, order) for method in methods
        }

    def _prediction(self, arm: Arm, found: WorkloadEvidence) -> Prediction | None:
        key = (arm.id, found.cell.id)
        if key not in self._predicted:
            self._predicted[key] = self.predictors[arm.method].predict(found, arm.num_speculative_tokens)
        return self._predicted[key]

    def _with_enough(self, cells: Collection[str]) -> Wanted:
        """The first blocks; all of them where measuring the rest now costs less than starting the server again."""
        here = [found for found in self.workloads if found.cell.id in cells]
        return self._all_if_cheap(here, {found.cell.id: num_first(self._search, self._rules) for found in here})

    def _all_if_cheap(self, here: Sequence[WorkloadEvidence], wanted: Mapping[str, int]) -> Wanted:
        capped = {found.cell.id: min(wanted[found.cell.id], found.num_planned) for found in here}
        rest_s = sum((found.num_planned - capped[found.cell.id]) * (found.block_s or 0.0) for found in here)
        return {found.cell.id: found.num_planned for found in here} if rest_s <= self.start_s else capped

    def _revisits(self) -> list[tuple[Arm, Wanted]]:
        """Arms that may change a choice by more blocks: twice as many, or all where that is cheap."""
        visits = []
        for arm in self._arms:
            more = {
                found.cell.id: found.arms[arm.id] for found in self.workloads if arm.id in self._more[found.cell.id]
            }
            here = [found for found in self.workloads if found.cell.id in more]
            wanted = self._all_if_cheap(here, {cell_id: 2 * measured.num_blocks for cell_id, measured in more.items()})
            value = sum(self._more[cell_id][arm.id] for cell_id in more) / len(self.workloads)
            seconds = self._seconds(arm, {cell_id: wanted[cell_id] - more[cell_id].num_blocks for cell_id in more})
            if more and value / seconds >= self._least_value:
                visits.append((value / seconds, arm, wanted))
        visits.sort(key=lambda visit: -visit[0])
        return [(arm, wanted) for _, arm, wanted in visits]

    @cached_property
    def _more(self) -> dict[str, dict[str, float]]:
        return {found.cell.id: gains_of_more(found, self._rules, self._noise) for found in self.workloads}

    # --- what it costs

    @cached_property
    def start_s(self) -> float:
        return server_start_s(self._ledger)

    def _seconds(self, arm: Arm, wanted: Wanted) -> float:
        return self.start_s + sum(
            number * self._block_s(arm, found) for found in self.workloads if (number := wanted.get(found.cell.id, 0))
        )

    def _block_s(self, arm: Arm, found: WorkloadEvidence) -> float:
        prediction = None if arm.is_baseline else self._prediction(arm, found)
        return (found.block_s or 0.0) / (exp(prediction.log_speedup) if prediction else 1.0)

    def visit_s(self, arm: Arm, block_ids: Collection[str]) -> float:
        """Seconds that a visit of these blocks is expected to take."""
        wanted = set(block_ids)
        per_workload = Counter(block.workload_id for block in self._plan.blocks if block.id in wanted)
        return self._seconds(arm, per_workload)


def _by_distance(arms: Sequence[Arm], known: Sequence[Arm]) -> list[Arm]:
    """`arms` so that each next one is farthest in k from all of its method before it; the largest k first of a method
    that none is `known` of."""
    left, taken, ordered = list(arms), list(known), []

    def distance(arm: Arm) -> tuple[float, int]:
        k = arm.num_speculative_tokens
        same = [abs(k - other.num_speculative_tokens) for other in taken if other.method == arm.method]
        return min(same, default=inf), k

    while left:
        arm = max(left, key=distance)
        left.remove(arm)
        taken.append(arm)
        ordered.append(arm)
    return ordered
