"""Who leads on each workload so far: what a running sweep shows, by the rules that will decide it. Pure."""

from collections import defaultdict

from orchestrator.compare import Comparisons, compare_cells
from orchestrator.config import Strict, SweepConfig
from orchestrator.display import is_best, workload_name
from orchestrator.ledger import LedgerView
from orchestrator.measured import Cell, fold
from orchestrator.plan import Plan
from orchestrator.records import WorkloadCell
from orchestrator.select import select_workloads, why_refused
from orchestrator.selection import ArmResult, Interval, Verdict, WorkloadResult
from orchestrator.to_come import Dropped


class LeftOut(Strict):
    """An arm that may not be chosen, whatever its figure."""

    arm: str
    speedup: Interval
    why: str


class Leader(Strict):
    """One workload."""

    workload: str
    arm: str | None
    """What would be chosen, or while nothing would, the candidate that gains the most; None without a candidate."""
    speedup: Interval | None
    """Below 1 the baseline leads."""
    verdict: Verdict
    """What it would be if the sweep ended now."""
    num_measured: int
    """Arms that compare so far, besides the baseline."""
    left_out: tuple[LeftOut, ...] = ()
    """Those of them that are no candidates, the fastest first."""
    dropped: dict[str, str]
    """Arm that is not measured further here -> why."""


def leaders(config: SweepConfig, plan: Plan, ledger: LedgerView, dropped: Dropped) -> tuple[Leader, ...]:
    """One per workload of the plan, in its order. `dropped` is what the sweep's policy says of the same ledger."""
    found = compare_cells(plan, fold(ledger.valid_blocks(), config.selection).cells, config.selection)
    results = select_workloads(found, None, {})
    names, here = {arm.id: arm.name for arm in plan.arms}, defaultdict[str, dict[str, str]](dict)
    for (arm_id, cell_id), why in dropped.items():
        here[cell_id][names[arm_id]] = why
    return tuple(
        _leader(result, workload, found, here[workload.id])
        for workload, result in zip(plan.workloads, results, strict=True)
    )


def _leader(result: WorkloadResult, workload: WorkloadCell, found: Comparisons, dropped: dict[str, str]) -> Leader:
    candidates, left_out = [], []
    for arm, of_arm in zip(found.plan.arms, result.arms, strict=True):
        why = why_refused(of_arm, found.rules, found.cells.get((arm.id, workload.id), Cell()))
        if of_arm.speedup and of_arm.gain and why is None:
            candidates.append((of_arm.gain.mean, of_arm))
        elif of_arm.speedup and why:
            left_out.append(LeftOut(arm=of_arm.arm, speedup=of_arm.speedup, why=why))
    best = max(candidates, key=lambda found: (_is_chosen(found[1], result), found[0]), default=(0.0, None))[1]
    return Leader(
        workload=workload_name(result),
        arm=best.arm if best else None,
        speedup=best.speedup if best else None,
        verdict=result.verdict,
        num_measured=len(candidates) + len(left_out),
        left_out=tuple(sorted(left_out, key=lambda each: -each.speedup.mean)),
        dropped=dropped,
    )


def _is_chosen(arm: ArmResult, result: WorkloadResult) -> bool:
    return result.verdict == "speculate" and is_best(arm, result)
