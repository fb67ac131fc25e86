"""What an arm gains on the traffic mix: all levels of load in the shares of time that a server spends there. Pure.

In a second at level c the baseline gives R_c tokens and an arm s_c R_c, so over the mix an arm gains
sum(p_c s_c R_c) / sum(p_c R_c). Its interval follows from the levels' own by the delta method, in logs; levels that
share prompts share their luck. Datasets weigh the same, by the geometric mean.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from orchestrator.compare import Candidate, Comparisons, choose
from orchestrator.config import Level, Workload
from orchestrator.estimate import Estimate, combine
from orchestrator.plan import Plan
from orchestrator.records import Arm, WorkloadCell
from orchestrator.select import choice_of
from orchestrator.selection import Mix, MixedArm

Traffic = Mapping[Level, float]
"""Concurrency (or request rate, or log speed) -> share of time; only levels that have one."""

NO_CHANGE = Estimate(mean=0.0, block_variance=0.0, block_freedom=1.0, visits={})
"""The baseline against itself."""


def traffic_of(workload: Workload) -> dict[Level, float]:
    """`workload.traffic`, or the same share for every measured level."""
    given = workload.traffic or {level: 1 / len(workload.levels) for level in workload.levels}
    return {level: share for level, share in sorted(given.items()) if share > 0}


def mixed_workloads(plan: Plan, traffic: Traffic, dataset: str | None = None) -> list[WorkloadCell]:
    """The workloads that the mix has a share of."""
    return [cell for cell in plan.workloads if cell.level in traffic and dataset in (None, cell.dataset)]


def mix_levels(
    found: Comparisons, traffic: Traffic, gains: Mapping[str, Estimate], dataset: str | None = None
) -> Estimate | None:
    """The gain over the mix of a setting that gains `gains` (workload id -> estimate).

    None where the setting, or the baseline, lacks a figure on some of it.
    """
    datasets = dict.fromkeys(cell.dataset for cell in mixed_workloads(found.plan, traffic, dataset))
    parts = [_one_dataset(found, traffic, gains, name) for name in datasets]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return combine([(1 / len(known), part) for part in known])


def _one_dataset(found: Comparisons, traffic: Traffic, gains: Mapping[str, Estimate], dataset: str) -> Estimate | None:
    baseline = found.plan.baseline.id
    weighted: list[tuple[float, Estimate]] = []
    cells = mixed_workloads(found.plan, traffic, dataset)
    for cell in cells:
        measured = found.cells.get((baseline, cell.id))
        if cell.id not in gains or measured is None:
            return None
        rate = math.exp(fmean(score.value for score in measured.throughputs))
        weighted.append((traffic[cell.level] * rate, gains[cell.id]))
    before = sum(weight for weight, _ in weighted)
    after = sum(weight * math.exp(gain.mean) for weight, gain in weighted)
    shared = [[found.plan.shared_prompts(one.id, other.id) for other in cells] for one in cells]
    spread = combine([(weight * math.exp(gain.mean) / after, gain) for weight, gain in weighted], shared)
    return Estimate(math.log(after / before), spread.block_variance, spread.block_freedom, spread.visits)


def gains_of(arm: Arm, found: Comparisons) -> dict[str, Estimate]:
    """Workload id -> what the arm gains there."""
    return {
        cell.id: found.estimates[arm.id, cell.id]
        for cell in found.plan.workloads
        if (arm.id, cell.id) in found.estimates
    }


def mixes(found: Comparisons, traffic: Traffic, allowed: Sequence[Arm], must_gain: bool = True) -> tuple[Mix, ...]:
    """One a dataset, and last the one over all of them (left out where there is only one dataset).

    Args:
        allowed: the arms that may be chosen; what breaks a constraint somewhere may not.
        must_gain: False where the baseline breaks a constraint: then the best arm is chosen, gain or not.
    """
    datasets: list[str | None] = list(dict.fromkeys(cell.dataset for cell in found.plan.workloads))
    return tuple(_mix(found, traffic, allowed, must_gain, name) for name in datasets + [None] * (len(datasets) > 1))


def _mix(found: Comparisons, traffic: Traffic, allowed: Sequence[Arm], must_gain: bool, dataset: str | None) -> Mix:
    gains = {arm.name: mix_levels(found, traffic, gains_of(arm, found), dataset) for arm in found.plan.arms[1:]}
    arms = [arm for arm in allowed if gains.get(arm.name)]
    best: Arm | None = found.plan.baseline if len(found.plan.arms) == 1 else None
    verdict = "baseline" if best else "undecided"
    candidates = [Candidate(arm.num_speculative_tokens, gain) for arm in arms if (gain := gains[arm.name])]
    if candidates:
        choosing = choose(candidates, found.noise, found.rules)
        verdict = choosing.verdict if must_gain else "speculate"
        best = {"speculate": arms[choosing.chosen], "baseline": found.plan.baseline}.get(verdict)
    return Mix.model_validate(
        {
            "dataset": dataset,
            "traffic": dict(traffic),
            "verdict": verdict,
            "best": choice_of(best) if best else None,
            "arms": tuple(
                MixedArm(
                    arm=arm.name,
                    method=arm.method,
                    num_speculative_tokens=arm.num_speculative_tokens,
                    gain=gain.interval(found.noise, found.rules.confidence) if (gain := gains[arm.name]) else None,
                )
                for arm in found.plan.arms[1:]
            ),
        }
    )
