"""Why a verdict is what it is: tokens a step yields against what its time must yield to break even. Pure.

Explains, never decides: throughput does that, in `select.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.measured import Cell
from orchestrator.plan import Plan
from orchestrator.records import Arm, WorkloadCell
from orchestrator.selection import ArmResult, WorkloadResult
from orchestrator.step_cost import StepCosts


def explain(
    plan: Plan, cells: Mapping[tuple[str, str], Cell], results: Sequence[WorkloadResult]
) -> tuple[WorkloadResult, ...]:
    """`results`, one per workload of the plan, with their step times and the reason in words."""
    costs = StepCosts(plan, cells)
    return tuple(_explained(costs, workload, result) for workload, result in zip(plan.workloads, results, strict=True))


def _explained(costs: StepCosts, workload: WorkloadCell, result: WorkloadResult) -> WorkloadResult:
    arms = tuple(
        _with_step(costs, arm, workload, measured) for arm, measured in zip(costs.plan.arms, result.arms, strict=True)
    )
    return result.model_copy(update={"arms": arms, "why": _sentences(result.model_copy(update={"arms": arms}))})


def _with_step(costs: StepCosts, arm: Arm, workload: WorkloadCell, result: ArmResult) -> ArmResult:
    figures = {"step_s": costs.step_s(arm, workload)}
    if not arm.is_baseline:
        figures |= {
            "break_even_acceptance_length": costs.ratio(arm, workload),
            "drafting_s": costs.drafting_s(arm, workload),
            "predicted_speedup": costs.predicted_from_others(arm, workload),
        }
    return result.model_copy(update=figures)


@dataclass(frozen=True)
class _Step:
    """An arm whose step is known."""

    result: ArmResult
    label: str
    tokens: float
    break_even: float

    @property
    def gain(self) -> float:
        """Tokens a step over those needed: the speedup while decoding."""
        return self.tokens / self.break_even


def _sentences(result: WorkloadResult) -> str | None:
    """Two: what decides, and what the next best setting would change. None without step times."""
    steps = [step for arm in result.arms if (step := _step(arm))]
    if not steps:
        return None
    best = result.best.arm if result.best else None
    leading = next((step for step in steps if step.result.arm == best), max(steps, key=lambda step: step.gain))
    return " ".join([_what_decides(leading), *_what_else(leading, steps)])


def _step(arm: ArmResult) -> _Step | None:
    if arm.acceptance_length is None or arm.break_even_acceptance_length is None:
        return None
    label = f"{arm.method} k={arm.num_speculative_tokens}"
    label += "".join(f" {key}={value}" for key, value in arm.settings.items())
    return _Step(arm, label, arm.acceptance_length, arm.break_even_acceptance_length)


def _what_decides(step: _Step) -> str:
    takes = f"A step of {step.label} takes {step.break_even:.2f} times a step without speculation"
    if step.gain >= 1:
        return f"{takes} and yields {step.tokens:.2f} tokens: {step.gain:.2g} times what it needs to break even."
    return f"{takes} but yields only {step.tokens:.2f} tokens: {step.gain:.2g} of what it needs to break even."


def _what_else(leading: _Step, steps: Sequence[_Step]) -> list[str]:
    """The nearest longer draft of the same method, or the nearest shorter one."""
    same = [step for step in steps if _kind(step) == _kind(leading)]
    longer = min((step for step in same if _k(step) > _k(leading)), key=_k, default=None)
    other = longer or max((step for step in same if _k(step) < _k(leading)), key=_k, default=None)
    if other is None:
        return []
    tokens, times = other.tokens - leading.tokens, other.break_even - leading.break_even
    return [f"k={_k(other)} yields {_more(tokens, 'tokens')} in {_more(times, 'such step times')}."]


def _more(difference: float, what: str) -> str:
    return f"{abs(difference):.2f} {'more' if difference >= 0 else 'fewer'} {what}"


def _k(step: _Step) -> int:
    return step.result.num_speculative_tokens


def _kind(step: _Step) -> tuple[str, str]:
    return step.result.method, str(sorted(step.result.settings.items()))
