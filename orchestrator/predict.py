"""Predicted speedup of arms not measured yet: orders and prunes, never selects.

ln(speedup) = ln(tokens per step) - ln(time per step / the baseline's). Tokens per step come from the survival per
position of a longer draft, pooled over concurrency. The time is regressed on k at each concurrency, jointly over
datasets: a Gaussian process, so that its margin grows with the distance from what was measured.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, sqrt
from typing import NamedTuple

from orchestrator.config import Level
from orchestrator.evidence import ArmEvidence, Noise, WorkloadEvidence
from orchestrator.methods import METHODS
from orchestrator.metrics import add_counters
from orchestrator.records import Arm
from orchestrator.step_time import Floats, Point, StepTime, roughness_weights

CALIBRATION_WEIGHT = 6
"""Errors as large as expected that are supposed before the first one is seen."""


class Prediction(NamedTuple):
    log_speedup: float
    sd: float
    """Of the arm's true value around it, its own roughness included."""


class PredictionError(NamedTuple):
    """A prediction made from the arms measured earlier, and what was then measured."""

    workload_id: str
    num_speculative_tokens: int
    predicted: Prediction
    measured_log_speedup: float
    standardized: float
    """(measured - predicted) / the sd expected of that difference."""


@dataclass(frozen=True)
class Predictor:
    """Predicts the arms of one method from those of it measured so far: methods share neither survival nor costs."""

    workloads: tuple[WorkloadEvidence, ...]
    """With the arms of this method alone."""
    noise: Noise
    largest_k: int
    """Of the method in the plan; what k is a share of."""
    order: tuple[str, ...]
    """The method's arm ids in the order they were measured."""

    @classmethod
    def of_method(
        cls, method: str, arms: Sequence[Arm], workloads: Sequence[WorkloadEvidence], noise: Noise, order: Sequence[str]
    ) -> "Predictor":
        """`arms` are those of the plan, `order` the measured ones; both of any method."""
        own = {arm.id: arm for arm in arms if arm.method == method}
        return cls(
            workloads=tuple(_only(found, own) for found in workloads),
            noise=noise,
            largest_k=max(arm.num_speculative_tokens for arm in own.values()),
            order=tuple(arm_id for arm_id in order if arm_id in own),
        )

    def predict(self, workload: WorkloadEvidence, k: int) -> Prediction | None:
        """None where no arm with at least `k` tokens was measured on the dataset, or none at that concurrency."""
        found = self._predict(workload, k)
        return found and found._replace(sd=found.sd * self.widening)

    @cached_property
    def errors(self) -> tuple[PredictionError, ...]:
        """Every arm but the first, predicted from those before it, against its measurement."""
        errors: list[PredictionError] = []
        for position in range(1, len(self.order)):
            known = self.order[:position]
            earlier = replace(self, workloads=tuple(_only(found, known) for found in self.workloads), order=known)
            errors += earlier._errors_on(self.order[position], self.workloads)
        return tuple(errors)

    @cached_property
    def widening(self) -> float:
        """What measured errors ask of the margin, at least 1: their root mean square in expected sds."""
        squares = sum(error.standardized**2 for error in self.errors)
        return max(1.0, sqrt((CALIBRATION_WEIGHT + squares) / (CALIBRATION_WEIGHT + len(self.errors))))

    def _errors_on(self, arm_id: str, measured: Sequence[WorkloadEvidence]) -> list[PredictionError]:
        errors = []
        for found in measured:
            arm = found.arms.get(arm_id)
            prediction = arm and self._predict(found, arm.arm.num_speculative_tokens)
            if arm and prediction:
                off = arm.mean - prediction.log_speedup
                expected = sqrt(prediction.sd**2 + self.noise.variance(arm.num_blocks))
                k = arm.arm.num_speculative_tokens
                errors.append(PredictionError(found.cell.id, k, prediction, arm.mean, off / expected))
        return errors

    def _predict(self, workload: WorkloadEvidence, k: int) -> Prediction | None:
        tokens = self.tokens_per_step(workload.cell.dataset, k)
        fit = self._fits.get(workload.cell.level)
        if tokens is None or fit is None:
            return None
        log_time, variance = fit.at(k, workload.cell.dataset, self._weights)
        return Prediction(log_speedup=log(tokens) - log_time, sd=sqrt(variance))

    def tokens_per_step(self, dataset: str, k: int) -> float | None:
        """1 + the first k survivals of the shortest measured draft of at least `k`, over all concurrencies."""
        parts: dict[int, list[ArmEvidence]] = {}
        for found in self.workloads:
            for arm in found.arms.values() if found.cell.dataset == dataset else ():
                if arm.arm.num_speculative_tokens >= k and arm.counters:
                    parts.setdefault(arm.arm.num_speculative_tokens, []).append(arm)
        return _tokens_per_step(parts[min(parts)], k) if parts else None

    @cached_property
    def _fits(self) -> Mapping[Level, StepTime]:
        """Concurrency -> measured times per step; how many tokens each step gave is the arm's own count."""
        points: dict[Level, list[Point]] = {}
        for found in self.workloads:
            for arm in found.arms.values():
                tokens = _tokens_per_step([arm], None)
                if tokens:
                    k, variance = arm.arm.num_speculative_tokens, self.noise.variance(arm.num_blocks)
                    point = Point(k, found.cell.dataset, log(tokens) - arm.mean, variance)
                    points.setdefault(found.cell.level, []).append(point)
        return {level: StepTime(found, self.largest_k) for level, found in points.items()}

    @cached_property
    def _weights(self) -> Floats:
        return roughness_weights(list(self._fits.values()))


def _tokens_per_step(arms: Sequence[ArmEvidence], k: int | None) -> float | None:
    """Of the first `k` positions (None: all) of what `arms`, all of one method, drafted.

    A method that drafts only what it finds takes steps that `num_drafts` does not count: each step but a request's
    first gives one token and what was accepted, so they follow from the tokens.
    """
    counters = add_counters(arm.counters for arm in arms if arm.counters)
    if counters is None:
        return None
    accepted, steps = counters.num_accepted_tokens, counters.num_drafts
    if not all(METHODS[arm.arm.method].drafts_exactly for arm in arms):
        steps = sum(arm.num_decoded for arm in arms if arm.counters) - accepted
    if k is not None:
        accepted = sum(counters.num_accepted_tokens_per_pos[:k])
    return 1 + accepted / steps if steps > 0 else None


def _only(found: WorkloadEvidence, arm_ids: Collection[str]) -> WorkloadEvidence:
    return replace(found, arms={arm_id: arm for arm_id, arm in found.arms.items() if arm_id in arm_ids})
