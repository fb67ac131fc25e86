"""Confirmations of settings that later measurements no longer would recommend: nothing measured is lost. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable

from orchestrator.compare import compare_cells
from orchestrator.config import SweepConfig
from orchestrator.measured import fold
from orchestrator.mix import mix_levels, traffic_of
from orchestrator.plan import Plan
from orchestrator.records import BlockRecord, VisitRecord
from orchestrator.selection import UnusedConfirmation


def unused_confirmations(
    config: SweepConfig,
    plan: Plan,
    blocks: Iterable[BlockRecord],
    visits: Iterable[VisitRecord],
    arm_ids: Collection[str],
) -> tuple[UnusedConfirmation, ...]:
    """One for each setting that was measured again, but for those of `arm_ids`, which are reported as they are."""
    blocks = list(blocks)
    names: dict[str, str] = {
        block.arm_id: block.visit_id.rpartition("-confirm-")[0]
        for block in blocks
        if block.phase == "confirm" and block.arm_id not in arm_ids
    }
    if not names:
        return ()
    logs: defaultdict[str, list[str]] = defaultdict(list)
    for visit in visits:
        if visit.phase == "confirm" and visit.server_log:
            logs[visit.arm_id].append(f"logs/{visit.server_log}")
    folded = fold(blocks, config.selection)
    baseline = {key: cell for key, cell in folded.cells.items() if key[0] == plan.baseline.id}
    noise = compare_cells(plan, folded.cells, config.selection).noise
    again = compare_cells(plan, {**baseline, **folded.confirmed}, config.selection)
    found = []
    for arm_id, name in sorted(names.items()):
        gains = {cell: gain for (arm, cell), gain in again.estimates.items() if arm == arm_id}
        gain = mix_levels(again, traffic_of(config.workload), gains)
        found.append(
            UnusedConfirmation(
                arm=name,
                confirmed=gain.interval(noise, config.selection.confidence) if gain else None,
                server_logs=tuple(logs[arm_id]),
            )
        )
    return tuple(found)
