"""All that a sweep decides, a pure function of configuration, plan and measured blocks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from types import MappingProxyType

from orchestrator.compare import Comparisons, compare_cells
from orchestrator.config import SweepConfig
from orchestrator.confirm import Setting, confirm, settings_to_confirm
from orchestrator.drift import drifts
from orchestrator.drift_text import with_drifts
from orchestrator.measured import Folded, fold
from orchestrator.mix import mixes, traffic_of
from orchestrator.plan import Plan
from orchestrator.recommend import batch_size_schedules, crossovers, static_arm
from orchestrator.records import Arm, BlockRecord
from orchestrator.select import select_workloads
from orchestrator.selection import Confirmation, Crossover, Drift, Mix, Schedule, WorkloadResult
from orchestrator.why import explain


@dataclass(frozen=True)
class Decided:
    workloads: tuple[WorkloadResult, ...]
    schedules: tuple[Schedule, ...]
    crossovers: tuple[Crossover, ...]
    mixes: tuple[Mix, ...]
    settings: tuple[Setting, ...]
    """What a confirmation has to measure."""
    confirmations: tuple[Confirmation, ...]
    drifts: tuple[Drift, ...]
    visit_noise: float
    """As in selection.json."""
    recommended: Arm | None
    """None while nothing can be recommended."""
    reason: str


def decide(
    config: SweepConfig,
    plan: Plan,
    blocks: Iterable[BlockRecord],
    failures: Mapping[str, str] = MappingProxyType({}),
    dropped: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> Decided:
    """`failures` and `dropped` as `select.select_workloads` quotes them."""
    folded: Folded = fold(blocks, config.selection)
    found = compare_cells(plan, folded.cells, config.selection)
    traffic = traffic_of(config.workload)
    hardware = config.hardware
    workloads = select_workloads(
        found, hardware.usd_per_server_hour, failures, dropped, spot_usd_per_hour=hardware.spot_usd_per_server_hour
    )
    on_the_mix = [cell.level in traffic for cell in plan.workloads]
    allowed = _allowed(found, workloads, on_the_mix)
    must_gain = plan.baseline in _keeping_constraints(plan, workloads, on_the_mix)
    mixed = mixes(found, traffic, allowed, must_gain)
    static = static_arm(plan, mixed[-1])
    at_level = {
        level: _allowed(found, workloads, [cell.level == level for cell in plan.workloads])
        for level in sorted({cell.level for cell in plan.workloads})
    }
    settings = tuple(settings_to_confirm(found, traffic, static, at_level, must_gain))
    confirmations = confirm(found, folded.confirmed, traffic, settings, must_gain)
    recommended, reason = _recommend(plan, static, settings, confirmations, config.selection.tie_tolerance)
    if recommended == plan.baseline and not must_gain:
        reason = f"{reason}; it breaks a constraint itself, and no other setting is known to keep them"
    drifted = drifts(found)
    explained = explain(plan, folded.cells, workloads)
    return Decided(
        workloads=tuple(with_drifts(workload, drifted) for workload in explained),
        schedules=batch_size_schedules(plan, workloads),
        crossovers=crossovers(workloads),
        mixes=mixed,
        settings=settings,
        confirmations=confirmations,
        drifts=drifted,
        visit_noise=math.sqrt(found.noise.variance),
        recommended=recommended,
        reason=reason,
    )


def _allowed(found: Comparisons, workloads: Sequence[WorkloadResult], where: Sequence[bool]) -> list[Arm]:
    """Speculative arms with enough blocks and no broken constraint on all of `where` (one flag a workload)."""
    cells = list(compress(found.plan.workloads, where))
    return [
        arm
        for arm in _keeping_constraints(found.plan, workloads, where)
        if not arm.is_baseline
        and all(found.num_paired.get((arm.id, cell.id), 0) >= found.rules.min_blocks for cell in cells)
    ]


def _keeping_constraints(plan: Plan, workloads: Sequence[WorkloadResult], where: Sequence[bool]) -> list[Arm]:
    results = [each.arms for each in compress(workloads, where)]
    return [
        arm
        for position, arm in enumerate(plan.arms)
        if all(arms[position].meets_constraints is not False for arms in results)
    ]


def _worth(found: Confirmation, tie_tolerance: float) -> float:
    """A tie goes to the static setting: it is simpler to run."""
    gain = found.confirmed.mean if found.confirmed else 0.0
    return gain * (1 + tie_tolerance) if found.setting == "static" else gain


def _recommend(
    plan: Plan,
    static: Arm | None,
    settings: Sequence[Setting],
    confirmations: Sequence[Confirmation],
    tie_tolerance: float,
) -> tuple[Arm | None, str]:
    """What was measured again and held, a schedule only where it beats the static setting; else the baseline."""
    held = [
        (setting, found) for setting, found in zip(settings, confirmations, strict=True) if found.verdict == "holds"
    ]
    if held:
        setting, found = max(held, key=lambda pair: _worth(pair[1], tie_tolerance))
        return setting.arm, found.reason
    if static is None:
        return None, "no setting has figures on the whole mix"
    if static.is_baseline:
        return static, "no setting is proven to gain on the mix as a whole"
    again = next(found for found in confirmations if found.setting == "static")
    if again.verdict == "withdrawn":
        return plan.baseline, f"{again.arm} was withdrawn: {again.reason}"
    return static, "chosen on the mix; not measured again yet"
