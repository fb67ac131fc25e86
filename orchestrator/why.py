"""Why a verdict is what it is: tokens a step yields against what its time must yield to break even. Pure.

Explains, never decides: throughput does that, in `select.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.display import arm_name, percent
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
    why = _sentences(result.model_copy(update={"arms": arms}))
    cells = [costs.cells.get((arm.id, workload.id)) for arm in costs.plan.arms]
    lacking = [arm for arm, cell in zip(arms, cells, strict=True) if cell and cell.lacks_asked_times]
    reason = "; ".join([result.reason, *_what_was_asked(lacking)])
    return result.model_copy(update={"arms": arms, "why": why, "reason": reason})


def _what_was_asked(lacking: Sequence[ArmResult]) -> list[str]:
    """Why arms whose times are no measurement have no part in a decision that asks for them."""
    if not lacking:
        return []
    arms = ", ".join(f"{arm_name(arm)} ({percent(arm.all_at_once_share)} %)" for arm in lacking)
    return [
        "selection asks for times to the first token or per token, which were not measured: too many requests got "
        f"all their tokens at once, of {arms}"
    ]


def _with_step(costs: StepCosts, arm: Arm, workload: WorkloadCell, result: ArmResult) -> ArmResult:
    figures: dict[str, object] = {"step_s": costs.step_s(arm, workload)}
    cell = costs.cells.get((arm.id, workload.id))
    if cell:
        figures["all_at_once_share"] = cell.at_once_share
        untold = () if cell.has_token_times else ("ttft_s", "tpot_s")
        figures |= dict.fromkeys([*untold, *(() if cell.has_goodput else ("goodput_requests_per_s",))])
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
    """What decides, and what the next longer or shorter draft yields for its time. None without step times."""
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
    return [
        f"A step of k={_k(other)} takes {other.break_even:.2f} times a step without speculation.",
        f"It yields {other.tokens:.2f} tokens, {_more(other.tokens - leading.tokens)} k={_k(leading)}.",
    ]


def _more(difference: float) -> str:
    if f"{abs(difference):.2f}" == "0.00":
        return "as many as"
    return f"{abs(difference):.2f} {'more' if difference > 0 else 'fewer'} than"


def _k(step: _Step) -> int:
    return step.result.num_speculative_tokens


def _kind(step: _Step) -> tuple[str, str]:
    return step.result.method, str(sorted(step.result.settings.items()))
