"""Recommended settings measured once more, on server starts that had no part in choosing them. Pure.

The best of many noisy arms looks better than it is; a fresh start of its server does not know that it won.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot, log1p

from orchestrator.compare import Comparisons, compare_cells
from orchestrator.estimate import Estimate
from orchestrator.measured import Cell
from orchestrator.mix import Traffic, gains_of, mix_levels
from orchestrator.recommend import overall_levels, schedule_arm, schedule_gains
from orchestrator.records import Arm
from orchestrator.selection import Confirmation, Interval


@dataclass(frozen=True)
class Setting:
    """What may be recommended, and what it should gain at the mix."""

    kind: str
    """`static` or `schedule`."""
    arm: Arm
    predicted: Estimate | None


def settings_to_confirm(
    found: Comparisons, traffic: Traffic, static: Arm | None, allowed: Sequence[Arm]
) -> list[Setting]:
    """The static setting and the schedule, as far as they speculate."""
    settings = []
    if static and not static.is_baseline:
        settings.append(Setting("static", static, mix_levels(found, traffic, gains_of(static, found))))
    levels = overall_levels(found, allowed)
    arm = schedule_arm(found.plan, levels)
    if arm:
        settings.append(Setting("schedule", arm, mix_levels(found, traffic, schedule_gains(levels, found))))
    return settings


def confirm(
    found: Comparisons, confirmed: Mapping[tuple[str, str], Cell], traffic: Traffic, settings: Sequence[Setting]
) -> tuple[Confirmation, ...]:
    """Predicted against measured again; a gain that does not show is withdrawn.

    Args:
        confirmed: `measured.Folded.confirmed`.
    """
    baseline = {key: cell for key, cell in found.cells.items() if key[0] == found.plan.baseline.id}
    again = compare_cells(found.plan, {**baseline, **confirmed}, found.rules)
    return tuple(_confirm(found, again, traffic, setting) for setting in settings)


def _confirm(found: Comparisons, again: Comparisons, traffic: Traffic, setting: Setting) -> Confirmation:
    measured = mix_levels(again, traffic, gains_of(setting.arm, again))
    rules, noise = found.rules, found.noise
    predicted = setting.predicted
    verdict, reason = "open", "not measured again yet"
    if measured:
        shown = measured.interval(noise, rules.confidence)
        verdict, reason = _judge(shown, rules.tie_tolerance)
        if predicted and not _agree(predicted, measured, found):
            reason += f"; {exp(predicted.mean):.2f}x was predicted, which is more than noise apart"
    return Confirmation.model_validate(
        {
            "setting": setting.kind,
            "arm": setting.arm.name,
            "speculative_config": setting.arm.server.speculative_config or {},
            "predicted": predicted.interval(noise, rules.confidence) if predicted else None,
            "confirmed": measured.interval(noise, rules.confidence) if measured else None,
            "verdict": verdict,
            "reason": reason,
        }
    )


def _judge(shown: Interval, tolerance: float) -> tuple[str, str]:
    figure = f"measured again at the mix: {shown.mean:.2f}x [{shown.ci_low:.2f}, {shown.ci_high:.2f}]"
    if shown.ci_low > 1 and shown.mean > exp(log1p(tolerance)):
        return "holds", figure
    return "withdrawn", f"{figure}, no proven gain"


def _agree(predicted: Estimate, measured: Estimate, found: Comparisons) -> bool:
    """Whether both may be the same truth; they share the baseline's noise, so this asks for little."""
    noise, confidence = found.noise, found.rules.confidence
    apart = hypot(predicted.half_width(noise, confidence), measured.half_width(noise, confidence))
    return abs(predicted.mean - measured.mean) <= apart
