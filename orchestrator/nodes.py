"""Which nodes are too slow to belong to the fleet: a pure function of plan and ledger.

A node's arms are compared with its own baseline, so that a somewhat slower node does no harm. One that is clearly
slower is disturbed or of another kind, and what pays on it may not pay on the others.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from math import exp, log, sqrt
from statistics import fmean, stdev

from scipy import stats

from orchestrator.config import Hardware
from orchestrator.ledger import Judge
from orchestrator.plan import Plan
from orchestrator.records import BlockRecord, VisitRecord

CONFIDENCE = 0.95
MIN_BLOCKS = 2
BANDWIDTH_TOLERANCES = 2
"""A copy of a tenth of a second is a rougher figure than a baseline over many blocks."""

Openings = Mapping[str, Mapping[str, float]]
"""Node -> block id -> ln(output tokens/s) of the opening baseline."""


def judge(plan: Plan, hardware: Hardware) -> Judge:
    """What sets slow nodes aside in a ledger of this plan."""
    return partial(set_aside, plan, hardware)


def set_aside(
    plan: Plan, hardware: Hardware, blocks: Sequence[BlockRecord], visits: Sequence[VisitRecord]
) -> dict[str, str]:
    """Node -> why nothing that it measures counts; never all nodes.

    The opening baselines of two nodes are compared block by block; a node is too slow where the fleet's reference is
    faster by more than `hardware.node_tolerance`, and by more than noise can explain (one-sided t test at 95 % over the
    blocks). The reference is the median of the nodes, of two middle ones the faster: interference only ever slows a
    machine, so of two nodes the faster one is right. The same with the probed memory bandwidth and twice the tolerance.
    """
    tolerance = hardware.node_tolerance
    if tolerance is None:
        return {}
    openings = _openings(plan, blocks)
    slow = {node: reason for node in openings if (reason := _slow_baseline(node, openings, tolerance))}
    bandwidths = {node: best for node, best in _bandwidths(visits).items() if node not in slow}
    aside = slow | _slow_memory(bandwidths, BANDWIDTH_TOLERANCES * tolerance)
    return aside if aside.keys() < openings.keys() | bandwidths.keys() else {}


def _openings(plan: Plan, blocks: Sequence[BlockRecord]) -> Openings:
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for block in blocks:
        if block.phase == "opening" and block.arm_id == plan.baseline.id and block.void_reason is None:
            found[block.node][block.block_id] = log(block.output_tokens_per_s)
    return found


def _slow_baseline(node: str, openings: Openings, tolerance: float) -> str | None:
    gaps = {other: _gap(openings[node], theirs) for other, theirs in openings.items()}
    ordered = sorted((fmean(gap), other) for other, gap in gaps.items() if gap)
    if not ordered:
        return None
    mean, reference = ordered[len(ordered) // 2]
    gap, slower = gaps[reference], 1 - exp(-mean)
    noise = float(stats.t.ppf(CONFIDENCE, len(gap) - 1)) * stdev(gap) / sqrt(len(gap))
    if slower <= tolerance or mean <= noise:
        return None
    return _reason(
        f"its baseline is {100 * slower:.0f} % slower than that of {reference} on {len(gap)} blocks in common"
    )


def _gap(own: Mapping[str, float], theirs: Mapping[str, float]) -> list[float]:
    """ln(theirs / own) on the blocks in common; empty where they are under half of `own`: the other has just begun."""
    common = sorted(own.keys() & theirs.keys())
    return [theirs[id_] - own[id_] for id_ in common] if len(common) >= max(MIN_BLOCKS, len(own) / 2) else []


def _bandwidths(visits: Sequence[VisitRecord]) -> dict[str, float]:
    """Node -> the best of its visits' probes, GB/s."""
    best: dict[str, float] = {}
    for visit in visits:
        probed = visit.node_info.memory_bandwidth_gb_per_s if visit.node_info else None
        if probed is not None:
            best[visit.node] = max(probed, best.get(visit.node, 0.0))
    return best


def _slow_memory(bandwidths: Mapping[str, float], tolerance: float) -> dict[str, str]:
    ordered = sorted((best, node) for node, best in bandwidths.items())
    fastest, reference = ordered[len(ordered) // 2] if ordered else (0.0, "")
    return {
        node: _reason(f"its memory copies {best:.3g} GB/s, that of {reference} {fastest:.3g} GB/s")
        for node, best in bandwidths.items()
        if best < (1 - tolerance) * fastest
    }


def _reason(finding: str) -> str:
    return f"{finding}; find out what slows it, or count it all the same: hardware.node_tolerance=null"
