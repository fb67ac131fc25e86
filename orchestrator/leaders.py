"""Who leads on each workload so far: what a running sweep shows, by the rules that will decide it. Pure."""

from orchestrator.compare import compare_cells
from orchestrator.config import Strict, SweepConfig
from orchestrator.display import workload_name
from orchestrator.ledger import LedgerView
from orchestrator.measured import fold
from orchestrator.plan import Plan
from orchestrator.policies import policy_for
from orchestrator.select import select_workloads
from orchestrator.selection import Interval, Verdict, WorkloadResult


class Leader(Strict):
    """One workload."""

    workload: str
    arm: str | None
    """The one with the highest mean speedup; None before anything compares."""
    speedup: Interval | None
    """Below 1 the baseline leads."""
    verdict: Verdict
    """What it would be if the sweep ended now."""
    num_measured: int
    """Arms that compare so far, besides the baseline."""
    dropped: dict[str, str]
    """Arm that is not measured further here -> why."""


def leaders(config: SweepConfig, plan: Plan, ledger: LedgerView) -> tuple[Leader, ...]:
    """One per workload of the plan, in its order."""
    found = compare_cells(plan, fold(ledger.valid_blocks(), config.selection).cells, config.selection)
    dropped = policy_for(config).dropped(plan, ledger)
    results = select_workloads(found, None, {})
    names = {arm.id: arm.name for arm in plan.arms}
    return tuple(
        _leader(result, {names[arm]: why for (arm, cell), why in dropped.items() if cell == workload.id})
        for workload, result in zip(plan.workloads, results, strict=True)
    )


def _leader(result: WorkloadResult, dropped: dict[str, str]) -> Leader:
    compared = [arm for arm in result.arms if arm.speedup is not None]
    best = max(compared, key=lambda arm: arm.speedup.mean if arm.speedup else 0.0, default=None)
    return Leader(
        workload=workload_name(result),
        arm=best.arm if best else None,
        speedup=best.speedup if best else None,
        verdict=result.verdict,
        num_measured=len(compared),
        dropped=dropped,
    )
