"""What a step of each arm costs, from the times of whole requests and the counters of their blocks. Pure.

A request takes `prefill + steps x time per step`. The baseline takes a step for every token after the first; a drafting
arm as many as its counter num_drafts says. So the time per step follows without instrumenting the engine, and with it
how many tokens a step must yield before speculation gains.

The moment of the first token as the client sees it is not used as it is: a server that is faster than its client sends
several tokens in the first chunk. That only ever delays it, so the least of the arms' medians is taken for the prefill.

All of this is at a fixed concurrency. In an open loop a faster arm has a smaller batch, so its steps do not compare
with the baseline's, and there are no figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import exp, log
from statistics import fmean, median

from orchestrator.measured import Cell
from orchestrator.methods import METHODS
from orchestrator.metrics import survival
from orchestrator.plan import Plan
from orchestrator.records import Arm, WorkloadCell


def expected_steps(num_tokens: float, survival: Sequence[float]) -> float:
    """Mean steps until `num_tokens` are generated, the surplus of the last step included.

    `survival` is the share of drafts accepted up to and including each position. By Wald's identity, with the mean
    surplus of a renewal process in whole tokens: (E[X^2] - E[X]) / 2 E[X] for X tokens a step.
    """
    mean = tokens_per_step(survival)
    mean_square = 1 + sum((2 * position + 1) * share for position, share in enumerate(survival, start=1))
    return (num_tokens + (mean_square - mean) / (2 * mean)) / mean


def tokens_per_step(survival: Sequence[float]) -> float:
    """The acceptance length that a survival profile amounts to."""
    return 1 + sum(survival)


@dataclass(frozen=True)
class StepCosts:
    """Times per step of everything measured. Times in seconds; None where there is no figure."""

    plan: Plan
    cells: Mapping[tuple[str, str], Cell]
    """(arm id, workload id) -> what was measured."""

    def step_s(self, arm: Arm, workload: WorkloadCell) -> float | None:
        """Mean time of one step while requests of this workload decode."""
        return self._step_s.get((arm.id, workload.id))

    def ratio(self, arm: Arm, workload: WorkloadCell) -> float | None:
        """A step's time over the baseline's: the tokens a step must yield to break even."""
        own, plain = self.step_s(arm, workload), self.step_s(self.plan.baseline, workload)
        return own / plain if own and plain else None

    def pooled_ratio(self, arm: Arm, max_concurrency: int | None, without: str | None = None) -> float | None:
        """Geometric mean of `ratio` over the workloads at that concurrency, except the dataset `without`."""
        ratios = [
            self.ratio(arm, cell)
            for cell in self.plan.workloads
            if cell.max_concurrency == max_concurrency and cell.dataset != without
        ]
        logs = [log(ratio) for ratio in ratios if ratio]
        return exp(fmean(logs)) if logs else None

    def predicted_speedup(self, workload: WorkloadCell, ratio: float, survival: Sequence[float]) -> float | None:
        """Of a drafter with this survival profile whose step takes `ratio` times the baseline's."""
        plain, prefill_s = self.step_s(self.plan.baseline, workload), self._prefill_s.get(workload.id)
        cell = self._cell(self.plan.baseline, workload)
        if not cell or plain is None or prefill_s is None:
            return None
        num_tokens = cell.output_tokens / cell.num_requests - 1
        own_s = prefill_s + plain * ratio * expected_steps(num_tokens, survival)
        return (prefill_s + plain * num_tokens) / own_s

    def predicted_from_others(self, arm: Arm, workload: WorkloadCell) -> float | None:
        """The arm's speedup from its acceptance here and its time per step on the other datasets at this concurrency:
        what the measured one is checked against."""
        cell = self._cell(arm, workload)
        profile = survival(cell.counters) if cell and cell.counters else None
        ratio = self.pooled_ratio(arm, workload.max_concurrency, without=workload.dataset)
        return self.predicted_speedup(workload, ratio, profile) if ratio and profile else None

    def drafting_s(self, arm: Arm, workload: WorkloadCell) -> float | None:
        """The part of a step that is not verification, which is taken to last as long as a baseline step over as many
        positions: that of as many concurrent requests, interpolated between measured levels and never beyond."""
        own = self.step_s(arm, workload)
        if workload.max_concurrency is None:
            return None
        positions = workload.max_concurrency * (arm.num_speculative_tokens + 1)
        verify_s = self._baseline_step_s(workload.dataset, positions)
        return own - verify_s if own and verify_s else None

    def _baseline_step_s(self, dataset: str, batch_size: int) -> float | None:
        cells = [c for c in self.plan.workloads if c.dataset == dataset]
        known = sorted((c.level, step) for c in cells if (step := self.step_s(self.plan.baseline, c)))
        for (low, low_s), (high, high_s) in pairwise(known):
            if low <= batch_size <= high:
                return low_s + (high_s - low_s) * (batch_size - low) / (high - low)
        return None

    def _cell(self, arm: Arm, workload: WorkloadCell) -> Cell | None:
        cell = self.cells.get((arm.id, workload.id))
        return cell if cell and cell.num_requests else None

    @cached_property
    def _step_s(self) -> Mapping[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        fixed = {workload.id for workload in self.plan.workloads if not workload.is_open_loop}
        for (arm_id, workload_id), cell in self.cells.items():
            if workload_id not in fixed:
                continue
            steps, prefill_s = _steps(self.plan.arm(arm_id), cell), self._prefill_s.get(workload_id)
            if steps and prefill_s is not None:
                decoding_s = sum(cell.e2e_s) - prefill_s * cell.num_requests
                if decoding_s > 0:
                    found[arm_id, workload_id] = decoding_s / steps
        return found

    @cached_property
    def _prefill_s(self) -> Mapping[str, float]:
        """Workload id -> time to the first token."""
        found: dict[str, float] = {}
        for (_, workload_id), cell in self.cells.items():
            if cell.ttft_s:
                found[workload_id] = min(median(cell.ttft_s), found.get(workload_id, float("inf")))
        return found


def _steps(arm: Arm, cell: Cell) -> int | None:
    """Steps after the first token, over all requests; None where the counters do not tell."""
    if arm.is_baseline:
        return cell.num_decoded
    if not METHODS[arm.method].drafts_exactly:
        return None  # the counter leaves out the steps that found nothing to draft
    return cell.counters.num_drafts if cell.counters else None
