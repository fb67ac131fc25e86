"""From verdicts to settings: a static choice, a schedule over batch sizes, and where speculation stops paying. Pure."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from orchestrator.compare import Candidate, Comparisons, choose
from orchestrator.config import Level
from orchestrator.estimate import Estimate, combine
from orchestrator.ids import content_id
from orchestrator.methods import METHODS
from orchestrator.mix import NO_CHANGE
from orchestrator.plan import Plan
from orchestrator.records import SCHEDULE_KEY, Arm
from orchestrator.selection import Crossover, Mix, Schedule, WorkloadResult

Ranges = tuple[tuple[int, int, int], ...]
"""vLLM's num_speculative_tokens_per_batch_size: first batch size, last batch size, num_speculative_tokens."""


def static_arm(plan: Plan, overall: Mix) -> Arm | None:
    """The setting for a server that sees the whole mix; the baseline where no gain is proven; None without figures."""
    if overall.best:
        return next(arm for arm in plan.arms if arm.name == overall.best.arm)
    return plan.baseline if any(arm.gain for arm in overall.arms) else None


def crossovers(workloads: Sequence[WorkloadResult]) -> tuple[Crossover, ...]:
    """Per dataset, over the measured levels in growing order."""
    found = []
    for dataset in dict.fromkeys(workload.dataset for workload in workloads):
        levels = sorted((each for each in workloads if each.dataset == dataset), key=lambda each: each.level)
        pays = [each.verdict == "speculate" for each in levels]
        first = pays.index(False) if False in pays else len(levels)
        found.append(
            Crossover(
                dataset=dataset,
                pays_up_to=levels[first - 1].level if first else None,
                stops_at=levels[first].level if first < len(levels) else None,
            )
        )
    return tuple(found)


def batch_size_schedules(plan: Plan, workloads: Sequence[WorkloadResult]) -> tuple[Schedule, ...]:
    """Per dataset, from the verdicts at each concurrency.

    Between two measured levels the smaller of both k holds, above the last one none: nothing was measured there.
    An undecided level counts as 0. Datasets where no level speculates, or with a single level, have no schedule, nor
    those where levels chose different methods or one that takes none, nor a sweep that varied server settings (a
    schedule switches k alone), nor an open loop, whose levels are no batch sizes.
    """
    if any(arm.settings for arm in plan.arms):
        return ()
    found = []
    for dataset in dict.fromkeys(workload.dataset for workload in workloads):
        chosen = {
            workload.max_concurrency: workload.best
            for workload in workloads
            if workload.dataset == dataset and workload.max_concurrency is not None
        }
        methods = {best.method for best in chosen.values() if best and best.num_speculative_tokens}
        if len(chosen) > 1 and len(methods) == 1 and all(METHODS[method].takes_schedule for method in methods):
            levels = {level: best.num_speculative_tokens if best else 0 for level, best in chosen.items()}
            ranges = batch_size_ranges(levels, plan.baseline.server.max_num_seqs)
            found.append(Schedule(dataset=dataset, method=methods.pop(), num_speculative_tokens_per_batch_size=ranges))
    return tuple(found)


def overall_levels(found: Comparisons, allowed: Mapping[Level, Sequence[Arm]]) -> dict[Level, Arm]:
    """Level -> the arm that gains most there over all datasets together, the baseline where none is proven to.

    `allowed` are the arms that may be chosen at each level: one that is unfit for another level may be.
    """
    chosen = {}
    for level, at_level in allowed.items():
        gains = {arm.id: _over_datasets(arm, level, found) for arm in at_level}
        arms = [arm for arm in at_level if gains[arm.id]]
        candidates = [Candidate(arm.num_speculative_tokens, gain) for arm in arms if (gain := gains[arm.id])]
        choosing = choose(candidates, found.noise, found.rules) if candidates else None
        is_gain = choosing is not None and choosing.verdict == "speculate"
        chosen[level] = arms[choosing.chosen] if choosing and is_gain else found.plan.baseline
    return chosen


def _over_datasets(arm: Arm, level: Level, found: Comparisons) -> Estimate | None:
    cells = [cell for cell in found.plan.workloads if cell.level == level]
    parts = [found.estimates[arm.id, cell.id] for cell in cells if (arm.id, cell.id) in found.estimates]
    return combine([(1 / len(parts), part) for part in parts]) if len(parts) == len(cells) else None


def schedule_gains(levels: Mapping[Level, Arm], found: Comparisons) -> dict[str, Estimate]:
    """Workload id -> what a server gains there that switches by `levels`."""
    gains = {}
    for cell in found.plan.workloads:
        arm = levels[cell.level]
        gain = NO_CHANGE if arm.is_baseline else found.estimates.get((arm.id, cell.id))
        if gain:
            gains[cell.id] = gain
    return gains


def schedule_arm(plan: Plan, levels: Mapping[Level, Arm]) -> Arm | None:
    """The server that switches k by its batch size; None where that is no other than a static one.

    In an open loop the levels are no batch sizes, so there is none.
    """
    speculative = [arm for arm in levels.values() if not arm.is_baseline]
    if len({arm.id for arm in levels.values()}) < 2 or any(arm.settings for arm in plan.arms):
        return None
    if any(cell.is_open_loop for cell in plan.workloads):
        return None
    largest = max(speculative, key=lambda arm: arm.num_speculative_tokens)
    if len({arm.method for arm in speculative}) > 1 or not METHODS[largest.method].takes_schedule:
        return None
    ks = {int(level): arm.num_speculative_tokens for level, arm in levels.items()}
    ranges = batch_size_ranges(ks, plan.baseline.server.max_num_seqs)
    config: dict[str, JsonValue] = {
        **(largest.server.speculative_config or {}),
        SCHEDULE_KEY: [list(each) for each in ranges],
    }
    server = largest.server.model_copy(update={"speculative_config": config})
    return largest.model_copy(
        update={
            "id": content_id({"schedule": server.model_dump(mode="json"), "hardware": largest.hardware}),
            "name": f"{largest.method}-schedule",
            "server": server,
        }
    )


def batch_size_ranges(levels: Mapping[int, int], max_batch: int) -> Ranges:
    """`levels`: measured concurrency -> k."""
    measured = sorted(levels)
    per_batch = []
    for batch in range(1, max_batch + 1):
        below = [level for level in measured if level <= batch]
        above = [level for level in measured if level >= batch]
        neighbours = [levels[side[at]] for side, at in ((below, -1), (above, 0)) if side]
        per_batch.append(min(neighbours) if above else 0)
    ranges: list[tuple[int, int, int]] = []
    for batch, k in enumerate(per_batch, start=1):
        if ranges and ranges[-1][2] == k:
            ranges[-1] = (ranges[-1][0], batch, k)
        else:
            ranges.append((batch, batch, k))
    return tuple(ranges)
