"""Prices a drafter that was not run here: step times measured on this hardware, acceptance from elsewhere. Pure.

What comes out is a prediction, for deciding what to measure next; no selection is made from it.
"""

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean

from scipy.optimize import brentq

from orchestrator.config import Strict
from orchestrator.measured import Cell
from orchestrator.plan import Plan
from orchestrator.records import Arm
from orchestrator.step_cost import StepCosts, tokens_per_step


class BreakEven(Strict):
    """One arm at one concurrency, over its workloads."""

    arm: str
    num_speculative_tokens: int
    max_concurrency: int
    break_even_acceptance_length: float
    """Tokens a step must yield; below it speculation loses on this hardware."""
    least: float
    most: float
    """Over the workloads."""
    predicted_speedup: float | None
    """Geometric mean over the workloads, of the drafter that is priced; None where its profile is shorter."""


def break_evens(
    plan: Plan, cells: Mapping[tuple[str, str], Cell], profile: Sequence[float] = ()
) -> tuple[BreakEven, ...]:
    """Every arm whose step time was measured, by concurrency and k.

    Args:
        profile: share of drafts accepted up to and including each position, of the drafter to price; empty for none.
    """
    costs = StepCosts(plan, cells)
    levels = sorted({cell.max_concurrency for cell in plan.workloads if cell.max_concurrency is not None})
    rows = (_row(costs, arm, level, profile) for level in levels for arm in plan.arms if not arm.is_baseline)
    return tuple(row for row in rows if row)


def geometric_profile(acceptance_length: float, num_speculative_tokens: int) -> tuple[float, ...]:
    """A survival profile with that acceptance length, where each position is as likely to be accepted as the last.

    Raises:
        ValueError: no profile of so many positions has it.
    """
    k = num_speculative_tokens
    if not 1 <= acceptance_length <= k + 1:
        raise ValueError(f"an acceptance length with {k} speculative tokens lies from 1 to {k + 1}")

    def profile(chance: float) -> tuple[float, ...]:
        return tuple(chance**position for position in range(1, k + 1))

    return profile(float(brentq(lambda chance: tokens_per_step(profile(chance)) - acceptance_length, 0.0, 1.0)))


def _row(costs: StepCosts, arm: Arm, level: int, profile: Sequence[float]) -> BreakEven | None:
    cells = [cell for cell in costs.plan.workloads if cell.max_concurrency == level]
    ratios = [ratio for cell in cells if (ratio := costs.ratio(arm, cell))]
    if not ratios:
        return None
    k = arm.num_speculative_tokens
    known = tuple(profile[:k]) if len(profile) >= k else None
    speedups = [
        speedup
        for cell in cells
        if known and (ratio := costs.ratio(arm, cell)) and (speedup := costs.predicted_speedup(cell, ratio, known))
    ]
    return BreakEven(
        arm=arm.name,
        num_speculative_tokens=k,
        max_concurrency=level,
        break_even_acceptance_length=exp(fmean(log(ratio) for ratio in ratios)),
        least=min(ratios),
        most=max(ratios),
        predicted_speedup=exp(fmean(log(speedup) for speedup in speedups)) if speedups else None,
    )
