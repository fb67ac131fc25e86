"""The decision per workload, a pure function of plan and measured blocks.

Every comparison is made in pairs: the same prompts on the same node, arm against baseline, as a log ratio; see
`estimate.py` for the intervals and `compare.py` for the choice. Acceptance explains a figure, it never decides.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from orchestrator.compare import (
    Candidate,
    Choosing,
    Comparisons,
    blocks_to_settle,
    choose,
    compare_cells,
    not_told_apart,
    times_to_settle,
)
from orchestrator.config import SelectionRules
from orchestrator.constraints import broken, meets
from orchestrator.display import listed
from orchestrator.estimate import alone, estimate_all
from orchestrator.measured import Cell
from orchestrator.metrics import acceptance_length, acceptance_rate, survival, usd_per_million_output_tokens
from orchestrator.plan import Plan
from orchestrator.records import Arm, WorkloadCell
from orchestrator.selection import ArmResult, Choice, Interval, Quantiles, WorkloadResult

OF_THE_BASELINE = {
    "throughput": "of the baseline's throughput",
    "cost": "of the baseline's tokens per dollar",
    "tpot": "of the baseline's speed per output token",
    "e2e": "of the baseline's speed per request",
    "goodput": "of the baseline's goodput",
}


MAX_NAMES = 4
"""Of arms in one reason."""


@dataclass(frozen=True)
class Judged:
    """One arm on one workload, as the decision sees it."""

    arm: Arm
    result: ArmResult
    refused: str | None
    """Why it may not be chosen; None for a candidate."""


class Prices(NamedTuple):
    """Of a node's hour, USD; None where not known."""

    on_demand: float | None
    spot: float | None


def select_workloads(
    found: Comparisons,
    usd_per_hour: float | None,
    failures: Mapping[str, str],
    dropped: Mapping[tuple[str, str], str] = MappingProxyType({}),
    spot_usd_per_hour: float | None = None,
) -> tuple[WorkloadResult, ...]:
    """One result per workload of the plan.

    Args:
        usd_per_hour: price of one server on demand, or None where it is not known; `spot_usd_per_hour` likewise.
        failures: arm id -> why its last visit failed; quoted where the arm has no figure.
        dropped: (arm id, workload id) -> why the search measured the arm no further there; quoted likewise.
    """
    by_throughput = found.rules.objective in ("throughput", "cost")
    speedups = found if by_throughput else compare_cells(found.plan, found.cells, found.rules, by_throughput=True)
    prices, results = Prices(usd_per_hour, spot_usd_per_hour), []
    for workload in found.plan.workloads:
        judged = [_judge(arm, workload, found, speedups, prices) for arm in found.plan.arms]
        decided = _decide(judged, workload, found)
        refused = [
            f"{each.arm.name} {each.refused}" + (f" ({failures[each.arm.id]})" if each.arm.id in failures else "")
            for each in judged
            if each.refused and (each.arm.id, workload.id) not in dropped
        ]
        reasons = [decided.reason, *refused, *_why_dropped(decided, found.plan, workload, dropped)]
        results.append(decided.model_copy(update={"reason": "; ".join(reasons)}))
    return tuple(results)


def _why_dropped(
    decided: WorkloadResult, plan: Plan, workload: WorkloadCell, dropped: Mapping[tuple[str, str], str]
) -> list[str]:
    """One phrase per reason: a search may drop most of the arms. The contenders of a choice are spoken of already."""
    contenders = {choice.arm for choice in decided.contenders} if decided.verdict == "speculate" else set()
    names: defaultdict[str, list[str]] = defaultdict(list)
    for arm, result in zip(plan.arms, decided.arms, strict=True):
        why = dropped.get((arm.id, workload.id))
        if why and arm.name not in contenders:
            what = "measured no further" if result.num_requests else "not measured here"
            names[f"{what}, {why}"].append(arm.name)
    return [f"{what}: {_enumerate(arms)}" for what, arms in names.items()]


def _enumerate(names: Sequence[str]) -> str:
    shown = names[:MAX_NAMES]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


# --- the decision


def _decide(judged: Sequence[Judged], workload: WorkloadCell, found: Comparisons) -> WorkloadResult:
    baseline, rules = judged[0], found.rules
    result = WorkloadResult(
        dataset=workload.dataset,
        max_concurrency=workload.max_concurrency,
        request_rate=workload.request_rate,
        log_speed=workload.log_speed,
        output_len=workload.output_len,
        verdict="undecided",
        reason="",
        best=None,
        arms=tuple(each.result for each in judged),
    )
    if baseline.result.num_blocks < rules.min_blocks:
        return _with(result, reason="the baseline has too few valid blocks")
    arms = [each for each in judged[1:] if not each.refused]
    if not arms:
        return _without_candidates(result, judged, rules.min_blocks)
    candidates = [
        Candidate(each.arm.num_speculative_tokens, found.estimates[each.arm.id, workload.id]) for each in arms
    ]
    choosing = choose(candidates, found.noise, rules)
    if baseline.refused:  # too slow for the constraints: whoever keeps them is better than what does not
        best = arms[choosing.chosen]
        return _with(result, "speculate", best, reason=f"{_figure(best, rules)}, and the baseline {baseline.refused}")
    rivals = _rivals(arms, choosing, workload, found)
    if choosing.verdict == "speculate":
        best = arms[choosing.chosen]
        reason = _figure(best, rules) + _close_ones(best, arms[choosing.leader], rivals)
        return _with(result, "speculate", best, reason=reason, contenders=rivals)
    if choosing.verdict == "baseline":
        which = "no arm" if all(each.result.num_requests for each in judged) else "no arm that was measured here"
        reason = f"{which} gains: the best, {_figure(arms[choosing.chosen], rules)}"
        return _with(result, "baseline", baseline, reason=reason)
    fewest = min(arms[at].result.num_blocks for at in choosing.open_ones)
    more = blocks_to_settle(candidates, choosing, fewest, found.noise, rules)
    times = times_to_settle(candidates, choosing, found.noise, rules) or math.inf
    reason = f"{_why_open(arms, choosing, rules)}; {_what_settles(times, more, fewest, workload, found)}"
    return _with(result, reason=reason, contenders=[arms[at] for at in choosing.open_ones], blocks_to_settle=more)


def _with(
    result: WorkloadResult,
    verdict: str = "undecided",
    best: Judged | None = None,
    *,
    reason: str,
    contenders: Sequence[Judged] = (),
    blocks_to_settle: int | None = None,
) -> WorkloadResult:
    return result.model_copy(
        update={
            "verdict": verdict,
            "best": choice_of(best.arm) if best else None,
            "reason": reason,
            "contenders": tuple(choice_of(each.arm) for each in contenders),
            "blocks_to_settle": blocks_to_settle,
        }
    )


def choice_of(arm: Arm) -> Choice:
    return Choice(
        arm=arm.name, method=arm.method, num_speculative_tokens=arm.num_speculative_tokens, settings=arm.settings
    )


def _without_candidates(result: WorkloadResult, judged: Sequence[Judged], min_blocks: int) -> WorkloadResult:
    baseline, *arms = judged
    if not arms:
        return _with(result, "baseline", baseline, reason="no speculative arm was planned")
    enough = [each.result.num_blocks >= min_blocks for each in arms]
    if all(enough) and all(each.result.meets_constraints is False for each in arms):
        return _with(result, "baseline", baseline, reason="no speculative arm keeps the constraints")
    return _with(result, reason="no speculative arm has enough valid paired blocks")


def _rivals(arms: Sequence[Judged], choosing: Choosing, workload: WorkloadCell, found: Comparisons) -> list[Judged]:
    """The arms that may truly be better than the chosen one."""
    chosen = arms[choosing.chosen]
    others = [each for each in arms if each is not chosen]
    paired = found.paired(workload.id)
    close = not_told_apart(paired[chosen.arm.id], [paired[each.arm.id] for each in others], found.noise, found.rules)
    return [others[at] for at in close]


def _figure(judged: Judged, rules: SelectionRules) -> str:
    gain = judged.result.gain
    return f"{_label(judged.arm)} gives {_show(gain)} {OF_THE_BASELINE[rules.objective]}" if gain else judged.arm.name


def _label(arm: Arm) -> str:
    return f"{arm.method} k={arm.num_speculative_tokens}{_settings(arm)}"


def _settings(arm: Arm) -> str:
    return "".join(f" {key}={value}" for key, value in arm.settings.items())


def _close_ones(best: Judged, leader: Judged, rivals: Sequence[Judged]) -> str:
    tie = f"; within the tie tolerance of {_label(leader.arm)}" if leader is not best else ""
    names = _labels([each.arm for each in rivals])
    return tie + (f"; {names} cannot be told apart from it" if rivals else "")


def _labels(arms: Sequence[Arm]) -> str:
    """`dflash k=6, 7 and 9; ngram k=3`: every kind of arm named once."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for arm in arms:
        kinds.setdefault((arm.method, _settings(arm)), []).append(arm.num_speculative_tokens)
    return "; ".join(f"{method} k={listed(ks)}{settings}" for (method, settings), ks in kinds.items())


def _why_open(arms: Sequence[Judged], choosing: Choosing, rules: SelectionRules) -> str:
    best = arms[choosing.chosen]
    rest = [at for at in choosing.open_ones if at != choosing.chosen]
    if best.result.gain and best.result.gain.ci_low > 1:
        return f"{_figure(best, rules)}, which may be chance among {len(arms)} arms"
    if choosing.chosen in choosing.open_ones:
        return f"{_figure(best, rules)}: too close to 1 to tell"
    others = ", ".join(f"{_label(arms[at].arm)} ({_show(arms[at].result.gain)})" for at in rest)
    return f"{_figure(best, rules)}, but too noisy to exclude a gain: {others}"


def _what_settles(times: float, more: int | None, num_blocks: int, workload: WorkloadCell, found: Comparisons) -> str:
    """`times` as many blocks as the `num_blocks`, together `more` where that is within reason."""
    if math.isinf(times):
        starts = 100 * math.sqrt(found.noise.variance)
        return f"more blocks alone would not settle it, where two starts of a server differ by {starts:.2g} %"
    if more is None:
        return f"it would take about {times:.0f} times the blocks to settle it"
    blocks = found.plan.blocks_of(workload.id)
    num_prompts, usable = more * len(blocks[0].prompt_indices), found.plan.prompts[workload.dataset].num_usable
    settled = f"about {more} blocks instead of {num_blocks} would settle it"
    if num_prompts > usable:
        return f"{settled}, which takes {num_prompts} prompts; the dataset has {usable}"
    return f"{settled} (workload.num_blocks={more} continues from here)"


def _show(interval: Interval | None) -> str:
    return f"{interval.mean:.2f}x [{interval.ci_low:.2f}, {interval.ci_high:.2f}]" if interval else "no figure"


# --- one arm on one workload


def _judge(arm: Arm, workload: WorkloadCell, found: Comparisons, speedups: Comparisons, prices: Prices) -> Judged:
    result = _arm_result(arm, workload, found, speedups, prices)
    cell = found.cells.get((arm.id, workload.id), Cell())
    return Judged(arm, result, why_refused(result, found.rules, cell))


def why_refused(result: ArmResult, rules: SelectionRules, cell: Cell) -> str | None:
    """Why an arm may not be chosen on a workload, where it measured `cell`; None for a candidate."""
    broken_limits = broken(cell, rules.constraints)
    if result.num_requests == 0:
        return "has no figure"
    if result.num_blocks < rules.min_blocks:
        return f"is left out: {result.num_blocks} of at least {rules.min_blocks} valid blocks"
    return f"breaks {broken_limits}" if broken_limits else None


def _arm_result(
    arm: Arm, workload: WorkloadCell, found: Comparisons, speedups: Comparisons, prices: Prices
) -> ArmResult:
    key, rules = (arm.id, workload.id), found.rules
    cell = found.cells.get(key, Cell())
    counters = cell.counters
    own = estimate_all({arm.id: alone(cell.throughputs)}).get(arm.id)
    throughput = own.interval(found.noise, rules.confidence) if own else None
    gain, speedup = found.estimates.get(key), speedups.estimates.get(key)
    return ArmResult(
        arm=arm.name,
        method=arm.method,
        num_speculative_tokens=arm.num_speculative_tokens,
        settings=arm.settings,
        num_blocks=found.num_paired.get(key, 0) if not arm.is_baseline else _num_blocks(cell),
        num_requests=cell.num_requests,
        output_tokens_per_s=throughput,
        gain=gain.interval(found.noise, rules.confidence) if gain else None,
        speedup=speedup.interval(speedups.noise, rules.confidence) if speedup else None,
        acceptance_length=acceptance_length(counters) if counters else None,
        acceptance_rate=acceptance_rate(counters) if counters else None,
        survival=survival(counters) if counters else None,
        prefix_cache_hit_rate=cell.prefix_cache_hit_rate,
        ttft_s=_quantiles(cell.ttft_s),
        tpot_s=_quantiles(cell.tpot_s),
        e2e_s=_quantiles(cell.e2e_s),
        goodput_requests_per_s=cell.num_good / cell.wall_s if rules.slo and cell.wall_s else None,
        meets_constraints=meets(cell, rules.constraints),
        saturated_share=cell.saturated_share,
        usd_per_million_output_tokens=_cost(prices.on_demand, throughput),
        spot_usd_per_million_output_tokens=_cost(prices.spot, throughput),
        outputs_match_baseline=None if arm.is_baseline else found.outputs_match(arm.id, [workload]),
    )


def _cost(usd_per_hour: float | None, throughput: Interval | None) -> float | None:
    return usd_per_million_output_tokens(usd_per_hour, throughput.mean) if usd_per_hour and throughput else None


def _num_blocks(cell: Cell) -> int:
    return len({score.block_id for score in cell.scores})


def _quantiles(values: Iterable[float]) -> Quantiles | None:
    items = np.fromiter(values, dtype=np.float64)
    if not items.size:
        return None
    p50, p95 = np.quantile(items, [0.5, 0.95])
    return Quantiles(p50=float(p50), p95=float(p95))
