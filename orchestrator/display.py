"""How figures and decisions read, the same in terminal, Markdown and HTML. Missing is an en dash, never 0."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, log10

from orchestrator.drift_text import ADVICE, drifted_on
from orchestrator.metrics import saving
from orchestrator.records import Arm
from orchestrator.selection import ArmResult, Choice, Interval, Selection, Verdict, WorkloadResult

DASH = "\N{EN DASH}"
VERDICT_TEXT: dict[Verdict, str] = {"speculate": "Speculate", "baseline": "Keep baseline", "undecided": "Undecided"}


@dataclass(frozen=True)
class DecisionRow:
    """One workload's decision, ready to print."""

    workload: str
    verdict: Verdict
    verdict_text: str
    best: str
    speedup: str
    baseline_tokens_per_s: str
    best_tokens_per_s: str
    acceptance_length: str
    usd_per_million: str
    saving_percent: str
    reason: str


def number(value: float | None) -> str:
    """Three significant digits, thousands separated, never an exponent for the sizes we measure."""
    if value is None:
        return DASH
    rounded = float(f"{value:.3g}")
    if rounded == 0:
        return "0"
    decimals = max(0, 2 - floor(log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"


def interval(value: Interval | None) -> str:
    return DASH if value is None else f"{number(value.mean)} [{number(value.ci_low)}, {number(value.ci_high)}]"


def percent(share: float | None) -> str:
    """A share (0..1) in percent, without the sign: that is in the header. Two decimals are enough below 1 %."""
    if share is None:
        return DASH
    value = 100 * share
    if 0 < abs(value) < 0.01:
        return "<0.01"
    return f"{value:.2f}" if 0 < abs(value) < 1 else number(value)


def identical(share: float | None) -> str:
    """As `percent`, but what is not the whole never reads 100."""
    return ">99.9" if share is not None and 0.9995 <= share < 1 else percent(share)


def milliseconds(seconds: float | None) -> str:
    return DASH if seconds is None else number(1000 * seconds)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{number(seconds)} s"


def listed(items: Iterable[object]) -> str:
    """`1, 4 and 16`"""
    *most, last = map(str, items)
    return f"{', '.join(most)} and {last}" if most else last


def cost(arm: ArmResult | None) -> str:
    """USD per million output tokens on demand, with that on spot beside it where it is known."""
    on_demand = number(arm.usd_per_million_output_tokens if arm else None)
    spot = arm.spot_usd_per_million_output_tokens if arm else None
    return on_demand if spot is None else f"{on_demand} ({number(spot)} on spot)"


def arm_name(arm: Arm | ArmResult | Choice) -> str:
    """As in logs and MLflow, but the baseline is called what it is."""
    if arm.method == "none":
        return "baseline"
    return arm.name if isinstance(arm, Arm) else arm.arm


def workload_name(workload: WorkloadResult) -> str:
    return workload.point_name


def baseline_of(workload: WorkloadResult) -> ArmResult | None:
    return next((arm for arm in workload.arms if arm.method == "none"), None)


def best_of(workload: WorkloadResult) -> ArmResult | None:
    """The chosen arm's figures; None while undecided."""
    return next((arm for arm in workload.arms if is_best(arm, workload)), None)


def is_best(arm: ArmResult, workload: WorkloadResult) -> bool:
    return workload.best is not None and arm.arm == workload.best.arm


def gain_of(arm: ArmResult | None) -> Interval | None:
    """In the objective; selections of before there were others have the speedup alone."""
    return (arm.gain or arm.speedup) if arm else None


def is_forced(workload: WorkloadResult) -> bool:
    """Whether an arm was chosen without a gain, because the baseline breaks a constraint."""
    baseline, gain = baseline_of(workload), gain_of(best_of(workload))
    keeps = baseline is None or baseline.meets_constraints is not False
    return workload.verdict == "speculate" and not keeps and not (gain and gain.ci_low > 1)


def decision_row(workload: WorkloadResult) -> DecisionRow:
    baseline, best = baseline_of(workload), best_of(workload)
    speedup = best.speedup if best else None
    return DecisionRow(
        workload=workload_name(workload),
        verdict=workload.verdict,
        verdict_text=VERDICT_TEXT[workload.verdict],
        best=arm_name(workload.best) if workload.best else DASH,
        speedup=interval(speedup),
        baseline_tokens_per_s=_throughput(baseline),
        best_tokens_per_s=_throughput(best),
        acceptance_length=number(best.acceptance_length if best else None),
        usd_per_million=cost(best),
        saving_percent=_saving(speedup),
        reason=workload.reason,
    )


def headline(selection: Selection) -> str:
    """The verdicts in one sentence: `Speculation pays on 3 of 6 workloads, ...`."""
    verdicts = [workload.verdict for workload in selection.workloads]
    forced = sum(map(is_forced, selection.workloads))
    parts = [f"Speculation pays on {verdicts.count('speculate') - forced} of {len(verdicts)} workloads"]
    if forced:
        parts.append(f"without a gain it is chosen on {forced}, where the baseline breaks a constraint")
    if keep := verdicts.count("baseline"):
        parts.append(f"keep the baseline on {keep}")
    if undecided := verdicts.count("undecided"):
        parts.append(f"undecided on {undecided}")
    if drifted := sum(bool(drifted_on(workload, selection.drifts)) for workload in selection.workloads):
        parts.append(f"on {drifted} the baseline drifted beyond noise: {ADVICE}")
    return "; ".join(parts) + "."


def recommendation_scope(selection: Selection) -> str:
    """What the recommended setting is for, and where it costs throughput all the same."""
    recommendation = selection.recommendation
    if recommendation is None:
        return "No setting can be recommended yet: see the reasons above."
    why = recommendation.reason
    if recommendation.speculative_config is None:
        return f"For the whole traffic mix on one server: run without speculation ({why})."
    gains = [
        (workload_name(workload), gain)
        for workload in selection.workloads
        for arm in workload.arms
        if arm.arm == recommendation.arm and (gain := gain_of(arm)) and gain.mean < 1
    ]
    lost = [f"{name} ({interval(gain)}x)" for name, gain in gains if gain.ci_high < 1]
    no_gain = [f"{name} ({interval(gain)}x)" for name, gain in gains if gain.ci_high >= 1]
    parts = [f"For the whole traffic mix on one server: {recommendation.arm} ({why})"]
    parts += [f"it loses on {', '.join(lost)}, so serve those apart"] if lost else []
    parts += [f"it shows no gain on {', '.join(no_gain)}"] if no_gain else []
    return f"{'; '.join(parts)}."


def _saving(speedup: Interval | None) -> str:
    """In percent, with its interval; negative where a token costs more."""
    if speedup is None or speedup.ci_low <= 0:
        return DASH
    mean, low, high = (percent(saving(value)) for value in (speedup.mean, speedup.ci_low, speedup.ci_high))
    return f"{mean} [{low}, {high}]"


def _throughput(arm: ArmResult | None) -> str:
    rate = arm.output_tokens_per_s if arm else None
    return number(rate.mean if rate else None)
