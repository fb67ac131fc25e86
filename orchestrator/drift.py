"""Whether a machine changed between the baseline's two visits. Pure."""

from collections import defaultdict

from orchestrator.compare import Comparisons
from orchestrator.estimate import PRIOR_WEIGHT, Paired, Score, VisitNoise, estimate_all
from orchestrator.records import WorkloadCell
from orchestrator.selection import Drift


def drifts(found: Comparisons) -> tuple[Drift, ...]:
    """One a workload and node where both ends were measured on at least two blocks.

    Tested against the supposed noise between server starts: the estimated one was learnt from these very differences.
    """
    return tuple(drift for workload in found.plan.workloads for drift in _drifts(found, workload))


def _drifts(found: Comparisons, workload: WorkloadCell) -> list[Drift]:
    cell = found.cells.get((found.plan.baseline.id, workload.id))
    ends: defaultdict[str, defaultdict[str, dict[str, Score]]] = defaultdict(lambda: defaultdict(dict))
    for score in cell.throughputs if cell else ():
        ends[score.node][score.block_id][score.phase] = score
    per_node = {
        node: {
            block_id: _change(phases["opening"], phases["closing"])
            for block_id, phases in sorted(blocks.items())
            if "opening" in phases and "closing" in phases
        }
        for node, blocks in sorted(ends.items())
    }
    supposed = VisitNoise(found.rules.visit_noise**2, PRIOR_WEIGHT)
    shown = []
    for node, mean in estimate_all(per_node).items():
        change = mean.interval(supposed, found.rules.confidence)
        shown.append(
            Drift(
                dataset=workload.dataset,
                max_concurrency=workload.max_concurrency,
                request_rate=workload.request_rate,
                log_speed=workload.log_speed,
                node=node,
                num_blocks=len(per_node[node]),
                closing_over_opening=change,
                is_beyond_noise=not change.ci_low <= 1 <= change.ci_high,
            )
        )
    return shown


def _change(opening: Score, closing: Score) -> Paired:
    return Paired(closing.value - opening.value, {closing.visit_id: 1.0, opening.visit_id: -1.0})
