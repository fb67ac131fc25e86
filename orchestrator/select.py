"""The decision per workload, a pure function of plan and measured blocks.

Every comparison is made in pairs: the same prompts on the same node, arm against baseline, as a log ratio of
throughputs; over blocks, a t interval. Acceptance explains a figure, it never decides.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType

import numpy as np
from scipy import stats

from orchestrator.config import SelectionRules
from orchestrator.metrics import (
    acceptance_length,
    acceptance_rate,
    add_counters,
    survival,
    usd_per_million_output_tokens,
)
from orchestrator.plan import Plan
from orchestrator.records import Arm, BlockRecord, WorkloadCell
from orchestrator.selection import ArmResult, Choice, Interval, Quantiles, Verdict, WorkloadResult

Measured = Mapping[tuple[str, str], Sequence[BlockRecord]]
"""(arm id, workload id) -> valid blocks."""


def select_workloads(
    plan: Plan,
    blocks: Iterable[BlockRecord],
    rules: SelectionRules,
    usd_per_hour: float | None,
    failures: Mapping[str, str],
    dropped: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> tuple[WorkloadResult, ...]:
    """One result per workload of the plan.

    Args:
        blocks: in any order; void ones never enter.
        usd_per_hour: price of one node, or None where it is not known.
        failures: arm id -> why its last visit failed; quoted where the arm has no figure.
        dropped: (arm id, workload id) -> why the search measured the arm no further there; quoted likewise.
    """
    measured: defaultdict[tuple[str, str], list[BlockRecord]] = defaultdict(list)
    for block in blocks:
        if block.void_reason is None:
            measured[block.arm_id, block.workload_id].append(block)
    return tuple(
        _select_workload(plan, cell, measured, rules, usd_per_hour, failures, dropped) for cell in plan.workloads
    )


def _select_workload(
    plan: Plan,
    cell: WorkloadCell,
    measured: Measured,
    rules: SelectionRules,
    usd_per_hour: float | None,
    failures: Mapping[str, str],
    dropped: Mapping[tuple[str, str], str],
) -> WorkloadResult:
    baseline = measured.get((plan.baseline.id, cell.id), ())
    results = tuple(
        _arm_result(arm, cell, measured.get((arm.id, cell.id), ()), baseline, rules, usd_per_hour) for arm in plan.arms
    )
    verdict, best, reason = decide(results, rules)
    left_out = [
        _why_left_out(arm, result, rules, failures.get(arm.id))
        for arm, result in zip(plan.arms, results, strict=True)
        if result.num_blocks < rules.min_blocks and (arm.id, cell.id) not in dropped
    ]
    return WorkloadResult(
        dataset=cell.dataset,
        max_concurrency=cell.max_concurrency,
        output_len=cell.output_len,
        verdict=verdict,
        reason="; ".join([reason, *left_out, *_why_dropped(plan, cell, dropped)]),
        best=best,
        arms=results,
    )


def _why_dropped(plan: Plan, cell: WorkloadCell, dropped: Mapping[tuple[str, str], str]) -> list[str]:
    """One phrase per reason: a search may drop most of the arms."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for arm in plan.arms:
        if (arm.id, cell.id) in dropped:
            names[dropped[arm.id, cell.id]].append(arm.name)
    return [f"dropped, {why}: {', '.join(arms)}" for why, arms in names.items()]


def _why_left_out(arm: Arm, result: ArmResult, rules: SelectionRules, failure: str | None) -> str:
    if result.num_requests == 0:
        return f"{arm.name} has no figure ({failure or 'not measured yet'})"
    why = f" ({failure})" if failure else ""
    return f"{arm.name} is left out: {result.num_blocks} of at least {rules.min_blocks} valid blocks{why}"


def paired_log_ratios(arm: Iterable[BlockRecord], baseline: Iterable[BlockRecord]) -> dict[str, float]:
    """Block id -> ln(arm's tokens/s / baseline's), both on the same node.

    The baseline was measured at the node's start and end: its two figures are averaged as logs. For an arm in the
    middle that cancels a linear drift, for the others it halves it at least; the random order of arms makes the rest
    noise. Blocks without a baseline on their node are left out.
    """
    reference: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for block in baseline:
        reference[block.block_id, block.node].append(math.log(block.output_tokens_per_s))
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for block in arm:
        logs = reference.get((block.block_id, block.node))
        if logs:
            ratios[block.block_id].append(math.log(block.output_tokens_per_s) - fmean(logs))
    return {block_id: fmean(ratios[block_id]) for block_id in sorted(ratios)}


def log_interval(values: Sequence[float], confidence: float) -> Interval | None:
    """exp of the mean and of its two-sided t interval; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    half = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * float(stats.sem(values))
    return Interval(mean=math.exp(mean), ci_low=math.exp(mean - half), ci_high=math.exp(mean + half))


def decide(results: Sequence[ArmResult], rules: SelectionRules) -> tuple[Verdict, Choice | None, str]:
    """Verdict, choice and reason from one workload's arms, the baseline first."""
    baseline, *arms = results
    short = _too_few(baseline, arms, rules)
    if short:
        return "undecided", None, short
    speedups = {arm.num_speculative_tokens: arm.speedup for arm in arms if _counts(arm, rules) and arm.speedup}
    if not speedups:
        return "baseline", _choice(baseline), "no speculative arm was planned"
    top_k = max(speedups, key=lambda k: speedups[k].mean)
    leader = next(arm for arm in arms if arm.num_speculative_tokens == top_k)
    tied = [k for k, interval in speedups.items() if interval.mean >= speedups[top_k].mean * (1 - rules.tie_tolerance)]
    # A smaller k that happens to be noisy must not turn a proven gain into `undecided`.
    k = min([k for k in tied if _gains(speedups[k], rules)] or tied)
    best = next(arm for arm in arms if arm.num_speculative_tokens == k)
    figure = f"{best.method} k={k} gives {_show(speedups[k])} of the baseline's throughput"
    if _gains(speedups[k], rules):
        return "speculate", _choice(best), figure + _close_ones(k, speedups, leader)
    open_ones = [other for other, speedup in speedups.items() if speedup.ci_high >= 1 + rules.tie_tolerance]
    if not open_ones:
        return "baseline", _choice(baseline), f"no arm gains: the best, {figure}"
    if k in open_ones:
        return "undecided", None, f"{figure}: too close to 1 to tell; more blocks would narrow the interval"
    rest = ", ".join(f"k={other} ({_show(speedups[other])})" for other in open_ones)
    return "undecided", None, f"{figure}, but too noisy to exclude a gain: {rest}; more blocks would narrow it"


def _gains(speedup: Interval, rules: SelectionRules) -> bool:
    return speedup.ci_low > 1 and speedup.mean > 1 + rules.tie_tolerance


def _counts(arm: ArmResult, rules: SelectionRules) -> bool:
    return arm.speedup is not None and arm.num_blocks >= rules.min_blocks


def _too_few(baseline: ArmResult, arms: Sequence[ArmResult], rules: SelectionRules) -> str | None:
    if baseline.num_blocks < rules.min_blocks:
        return f"the baseline has {baseline.num_blocks} valid blocks; at least {rules.min_blocks} are needed"
    if arms and not any(_counts(arm, rules) for arm in arms):
        most = max(arm.num_blocks for arm in arms)
        return f"no speculative arm has more than {most} valid paired blocks; at least {rules.min_blocks} are needed"
    return None


def _close_ones(k: int, speedups: Mapping[int, Interval], leader: ArmResult) -> str:
    rivals = [str(other) for other, rival in speedups.items() if other != k and rival.ci_high > speedups[k].mean]
    tie = (
        f"; within the tie tolerance of k={leader.num_speculative_tokens}" if leader.num_speculative_tokens != k else ""
    )
    return tie + (f"; k={', '.join(rivals)} cannot be told apart from it" if rivals else "")


def _show(interval: Interval) -> str:
    return f"{interval.mean:.2f}x [{interval.ci_low:.2f}, {interval.ci_high:.2f}]"


def _choice(arm: ArmResult) -> Choice:
    return Choice(method=arm.method, num_speculative_tokens=arm.num_speculative_tokens)


def _arm_result(
    arm: Arm,
    cell: WorkloadCell,
    blocks: Sequence[BlockRecord],
    baseline: Sequence[BlockRecord],
    rules: SelectionRules,
    usd_per_hour: float | None,
) -> ArmResult:
    throughput = log_interval(_log_throughput_per_block(blocks), rules.confidence)
    ratios = {} if arm.is_baseline else paired_log_ratios(blocks, baseline)
    counters = add_counters(block.counters for block in blocks if block.counters)
    return ArmResult(
        method=arm.method,
        num_speculative_tokens=arm.num_speculative_tokens,
        num_blocks=len({block.block_id for block in blocks}) if arm.is_baseline else len(ratios),
        num_requests=sum(block.num_requests for block in blocks),
        output_tokens_per_s=throughput,
        speedup=log_interval(list(ratios.values()), rules.confidence),
        acceptance_length=acceptance_length(counters) if counters else None,
        acceptance_rate=acceptance_rate(counters) if counters else None,
        survival=survival(counters) if counters else None,
        ttft_s=_quantiles(value for block in blocks for value in block.ttft_s),
        tpot_s=_quantiles(value for block in blocks for value in block.tpot_s),
        usd_per_million_output_tokens=(
            usd_per_million_output_tokens(usd_per_hour, throughput.mean) if usd_per_hour and throughput else None
        ),
        outputs_match_baseline=None if arm.is_baseline or cell.temperature > 0 else _matching(blocks, baseline),
    )


def _log_throughput_per_block(blocks: Iterable[BlockRecord]) -> list[float]:
    """ln tokens/s, one value a block: repeats of a block are no new sample of the workload."""
    logs: defaultdict[str, list[float]] = defaultdict(list)
    for block in blocks:
        logs[block.block_id].append(math.log(block.output_tokens_per_s))
    return [fmean(logs[block_id]) for block_id in sorted(logs)]


def _quantiles(values: Iterable[float]) -> Quantiles | None:
    items = list(values)
    if not items:
        return None
    p50, p95 = np.quantile(items, [0.5, 0.95])
    return Quantiles(p50=float(p50), p95=float(p95))


def _matching(blocks: Iterable[BlockRecord], baseline: Iterable[BlockRecord]) -> float | None:
    """Share of prompts whose output equals the baseline's on the same node, the opening one's where there are two.

    None where nothing compares.
    """
    # "closing" < "opening": the later of two in this order wins, whatever order they were measured in.
    expected = {(b.block_id, b.node): b.output_sha256 for b in sorted(baseline, key=lambda b: b.phase)}
    same = [
        ours == theirs
        for block in blocks
        if (block.block_id, block.node) in expected
        for ours, theirs in zip(block.output_sha256, expected[block.block_id, block.node], strict=True)
    ]
    return sum(same) / len(same) if same else None
