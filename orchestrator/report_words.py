"""The report's sentences: the decision as one would say it aloud, where speculation stops paying, what to type next."""

from collections.abc import Sequence

from orchestrator.display import best_of, gain_of, is_forced, listed, number, percent
from orchestrator.metrics import saving
from orchestrator.plots import axis_name
from orchestrator.select import OF_THE_BASELINE
from orchestrator.selection import Crossover, Selection, WorkloadResult


def by_dataset(selection: Selection) -> list[list[WorkloadResult]]:
    """The workloads of each dataset, in growing load."""
    groups: dict[str, list[WorkloadResult]] = {}
    for workload in selection.workloads:
        groups.setdefault(workload.dataset, []).append(workload)
    return [sorted(group, key=lambda workload: workload.level) for group in groups.values()]


def decision_sentences(selection: Selection) -> list[str]:
    """One a dataset: `code: speculate at concurrency 1 and 4, which gives ...; undecided at concurrency 16.`"""
    return [f"{group[0].dataset}: {_verdicts(group, selection)}." for group in by_dataset(selection)]


def _verdicts(group: Sequence[WorkloadResult], selection: Selection) -> str:
    axis = axis_name(group)
    at = {
        verdict: [workload for workload in group if workload.verdict == verdict and not is_forced(workload)]
        for verdict in ("speculate", "baseline", "undecided")
    }
    at["forced"] = [workload for workload in group if is_forced(workload)]
    levels = {
        verdict: f"{axis} {listed(f'{each.level:g}' for each in found)}" for verdict, found in at.items() if found
    }
    parts = []
    if "speculate" in levels:
        parts.append(f"speculate at {levels['speculate']}, which gives {_gain(at['speculate'], selection)}")
    if "forced" in levels:
        what = f"speculate at {levels['forced']} because the baseline breaks a constraint, without a proven gain"
        parts.append(f"{what}: {_gain(at['forced'], selection)}")
    if "baseline" in levels:
        parts.append(f"keep the baseline at {levels['baseline']}")
    if "undecided" in levels:
        parts.append(f"undecided at {levels['undecided']}")
    return "; ".join(parts)


def _gain(workloads: Sequence[WorkloadResult], selection: Selection) -> str:
    """`2.43x to 3.04x of the baseline's throughput (95 % intervals within 1.67x to 5.54x) and saves 58.9 to 67.1 %`"""
    known = [gain for workload in workloads if (gain := gain_of(best_of(workload)))]
    if not known:
        return "no figure"
    means = [gain.mean for gain in known]
    low, high = min(gain.ci_low for gain in known), max(gain.ci_high for gain in known)
    kind = "intervals within" if len(known) > 1 else "interval"
    sure = f"{100 * selection.confidence:g} % {kind} {number(low)}x to {number(high)}x"
    text = f"{_span(means, 'x')} {OF_THE_BASELINE[selection.objective]} ({sure})"
    if selection.objective not in ("throughput", "cost"):
        return text
    return f"{text} and {_cost(means, low, high, f'{100 * selection.confidence:g} % {kind}')}"


def _cost(speedups: Sequence[float], low: float, high: float, sure: str) -> str:
    """`saves 58.9 to 67.1 % of the cost of a token (95 % intervals within 40.1 to 81.9 %)`"""
    least, most = saving(min(speedups)), saving(max(speedups))
    if most < 0:
        within = f"{percent(-saving(high))} to {percent(-saving(low))} %"
        return f"costs {_percents(-most, -least)} % more a token ({sure} {within})"
    within = f"{percent(saving(low))} to {percent(saving(high))} %"
    if least < 0:
        return f"changes the cost of a token, from {percent(-least)} % more to {percent(most)} % less ({sure} {within})"
    return f"saves {_percents(least, most)} % of the cost of a token ({sure} {within})"


def _percents(low: float, high: float) -> str:
    return " to ".join(dict.fromkeys((percent(low), percent(high))))


def _span(values: Sequence[float], unit: str) -> str:
    ends = dict.fromkeys(f"{number(value)}{unit}" for value in (min(values), max(values)))
    return " to ".join(ends)


def crossover_sentence(group: Sequence[WorkloadResult], crossover: Crossover) -> str:
    """`Pays up to concurrency 4; at 16 keep the baseline.`"""
    text = _crossover(group, crossover)
    forced = [f"{each.level:g}" for each in group if is_forced(each)]
    if not forced:
        return text
    return f"{text} At {listed(forced)} speculation is chosen without a gain, because the baseline breaks a constraint."


def _crossover(group: Sequence[WorkloadResult], crossover: Crossover) -> str:
    axis = axis_name(group)
    if crossover.stops_at is None:
        return f"Pays at every measured {axis}, up to {crossover.pays_up_to:g}."
    stop = next(workload for workload in group if workload.level == crossover.stops_at)
    verdict = "keep the baseline" if stop.verdict == "baseline" else "undecided"
    if crossover.pays_up_to is None:
        text = f"Not proven to pay at the lowest measured {axis}, {crossover.stops_at:g}: {verdict}."
    else:
        text = f"Pays up to {axis} {crossover.pays_up_to:g}; at {crossover.stops_at:g}: {verdict}."
    again = [f"{each.level:g}" for each in group if each.level > crossover.stops_at and each.verdict == "speculate"]
    return f"{text} It pays again at {listed(again)}." if again else text


def repeat_command(latest: str | None, typed: Sequence[str]) -> str | None:
    """The command whose configuration the sweep has now, and as comments other ones that it was measured by.

    Args:
        latest: what was typed last; None: the last of `typed`.
        typed: of every session that ended in order.
    """
    if latest is None and not typed:
        return None
    latest = latest or typed[-1]
    others = [command for command in dict.fromkeys(typed) if command != latest]
    return "\n".join([latest, *(f"# another session of it: {command}" for command in others)])


def next_commands(sweep_id: str) -> str:
    """A shell's comments say what each is for."""
    return "\n".join(
        (
            "# files that platforms take: vLLM config, Compose, systemd, Kubernetes",
            f"orchestrator export {sweep_id}",
            "# decide again from the ledger, after more was measured or with other rules in config.yaml",
            f"orchestrator select {sweep_id}",
            "# another engine version, machine or drafter against this sweep",
            f"orchestrator compare {sweep_id} OTHER",
            "# what another drafter's published acceptance would give on this hardware",
            f"orchestrator break-even {sweep_id} --acceptance-length 6.93@15",
        )
    )
