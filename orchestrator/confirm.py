"""Recommended settings measured once more, on server starts that had no part in choosing them. Pure.

The best of many noisy arms looks better than it is; a fresh start of its server does not know that it won.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot, inf

from orchestrator.compare import Comparisons, compare_cells
from orchestrator.config import Level
from orchestrator.constraints import broken
from orchestrator.estimate import Estimate
from orchestrator.measured import Cell
from orchestrator.mix import Traffic, gains_of, mix_levels, mixed_workloads
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
    found: Comparisons,
    traffic: Traffic,
    static: Arm | None,
    at_level: Mapping[Level, Sequence[Arm]],
    must_gain: bool = True,
) -> list[Setting]:
    """The static setting and the schedule, as far as they speculate; `at_level` are the arms that may be chosen there.

    Where the baseline breaks a constraint (not `must_gain`) there is no schedule: it may fall back on the baseline.
    """
    settings = []
    if static and not static.is_baseline:
        settings.append(Setting("static", static, mix_levels(found, traffic, gains_of(static, found))))
    schedules = [_schedule(found, traffic, at_level, method) for method in _methods(at_level) if must_gain]
    made = [setting for setting in schedules if setting]
    if made:  # of several methods the one that should gain most: a server has one
        settings.append(max(made, key=lambda setting: setting.predicted.mean if setting.predicted else -inf))
    return settings


def _methods(at_level: Mapping[Level, Sequence[Arm]]) -> list[str]:
    return list(dict.fromkeys(arm.method for arms in at_level.values() for arm in arms))


def _schedule(
    found: Comparisons, traffic: Traffic, at_level: Mapping[Level, Sequence[Arm]], method: str
) -> Setting | None:
    """One server switches k, never the method: each level chooses among the arms of `method` alone."""
    same = {level: [arm for arm in arms if arm.method == method] for level, arms in at_level.items()}
    levels = overall_levels(found, same)
    arm = schedule_arm(found.plan, levels)
    return Setting("schedule", arm, mix_levels(found, traffic, schedule_gains(levels, found))) if arm else None


def confirm(
    found: Comparisons,
    confirmed: Mapping[tuple[str, str], Cell],
    traffic: Traffic,
    settings: Sequence[Setting],
    must_gain: bool = True,
) -> tuple[Confirmation, ...]:
    """Predicted against measured again; a gain that does not show is withdrawn, or a constraint that is not kept.

    Args:
        confirmed: `measured.Folded.confirmed`.
        must_gain: False where the baseline breaks a constraint: then keeping them is enough.
    """
    baseline = {key: cell for key, cell in found.cells.items() if key[0] == found.plan.baseline.id}
    again = compare_cells(found.plan, {**baseline, **confirmed}, found.rules)
    return tuple(_confirm(found, again, traffic, setting, must_gain) for setting in settings)


def _confirm(
    found: Comparisons, again: Comparisons, traffic: Traffic, setting: Setting, must_gain: bool
) -> Confirmation:
    measured = mix_levels(again, traffic, gains_of(setting.arm, again))
    rules, noise = found.rules, found.noise
    predicted = setting.predicted
    fewest = min(again.num_paired.get((setting.arm.id, cell.id), 0) for cell in mixed_workloads(found.plan, traffic))
    verdict, reason = "open", "not measured again yet"
    if measured and fewest < rules.min_blocks:
        reason = f"measured again on {fewest} of at least {rules.min_blocks} blocks so far"
    elif measured:
        shown = measured.interval(noise, rules.confidence)
        verdict, reason = _judge(shown, rules.tie_tolerance, must_gain)
        late = _broken(again, traffic, setting.arm)
        if late:
            verdict, reason = "withdrawn", f"{reason}, but it breaks {late}"
        same = again.outputs_match(setting.arm.id, mixed_workloads(again.plan, traffic))
        if same is not None and same < 1:
            reason += f"; {100 * (1 - same):.2g} % of its outputs differ from the baseline's"
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


def _broken(again: Comparisons, traffic: Traffic, arm: Arm) -> str:
    """The constraints that the setting breaks, by workload of the mix."""
    cells = {each.name: again.cells.get((arm.id, each.id), Cell()) for each in mixed_workloads(again.plan, traffic)}
    limits = {name: broken(cell, again.rules.constraints) for name, cell in cells.items()}
    return "; ".join(f"{text} on {name}" for name, text in limits.items() if text)


def _judge(shown: Interval, tolerance: float, must_gain: bool) -> tuple[str, str]:
    figure = f"measured again at the mix: {shown.mean:.2f}x [{shown.ci_low:.2f}, {shown.ci_high:.2f}]"
    if not must_gain:
        return "holds", f"{figure}, and the baseline breaks a constraint"
    if shown.ci_low > 1 and shown.mean > 1 + tolerance:
        return "holds", figure
    return "withdrawn", f"{figure}, no proven gain"


def _agree(predicted: Estimate, measured: Estimate, found: Comparisons) -> bool:
    """Whether both may be the same truth; they share the baseline's noise, so this asks for little."""
    noise, confidence = found.noise, found.rules.confidence
    apart = hypot(predicted.half_width(noise, confidence), measured.half_width(noise, confidence))
    return abs(predicted.mean - measured.mean) <= apart
