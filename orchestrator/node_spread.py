"""What nodes differ by, where two sweeps ran on different ones. Pure.

A node's own speed is in every figure that was measured on it, as a server start's is, and no number of blocks reduces
it. Where the same blocks ran on the same node it cancels; else it has to be known from a sweep with several nodes.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from orchestrator.estimate import Estimate, Paired, Score, alone, difference, mean_of


class NodeSpread(NamedTuple):
    """Between nodes of the same kind, as ln(objective) of the same server on the same blocks."""

    variance: float
    degrees_of_freedom: int


def node_spread(baselines: Iterable[Sequence[Score]]) -> NodeSpread | None:
    """From the baselines of several sweeps on one workload, which every node measures; None where none has two nodes.

    The noise of blocks and server starts is in it too: it is rather too large than too small.
    """
    squares, freedom = 0.0, 0
    for scores in baselines:
        means = _node_means(scores)
        if len(means) > 1:
            squares += float(np.var(means, ddof=1)) * (len(means) - 1)
            freedom += len(means) - 1
    return NodeSpread(squares / freedom, freedom) if freedom else None


def _node_means(scores: Sequence[Score]) -> list[float]:
    """Of each node, over the blocks that all of them have; empty where there is none."""
    by_node = [alone(found) for found in _by_node(scores).values()]
    common = set.intersection(*(set(found) for found in by_node)) if by_node else set()
    return [fmean(found[block_id].log_ratio for block_id in common) for found in by_node] if common else []


def same_node_pairs(a: Sequence[Score], b: Sequence[Score]) -> dict[str, Paired]:
    """Block id -> B against A on the nodes where both measured that block."""
    left, right = _by_node(a), _by_node(b)
    found: defaultdict[str, list[Paired]] = defaultdict(list)
    for node in sorted(left.keys() & right.keys()):
        for block_id, paired in difference(alone(right[node]), alone(left[node])).items():
            found[block_id].append(paired)
    return {block_id: mean_of(repeats) for block_id, repeats in sorted(found.items())}


def node_shares(a: Sequence[Score], b: Sequence[Score]) -> dict[str, float]:
    """Node -> its share in B's mean over blocks less that in A's; only nodes whose speed does not cancel."""
    shares: defaultdict[str, float] = defaultdict(float)
    for sign, scores in ((-1, a), (1, b)):
        blocks: defaultdict[str, list[str]] = defaultdict(list)
        for score in scores:
            blocks[score.block_id].append(score.node)
        for nodes in blocks.values():
            for node in nodes:
                shares[node] += sign / len(nodes) / len(blocks)
    return {node: share for node, share in shares.items() if abs(share) > 1e-9}


def between_nodes(shares: Mapping[str, float], spread: NodeSpread) -> Estimate:
    """What the nodes leave open about the difference of two means; nothing about its value."""
    variance = spread.variance * sum(share**2 for share in shares.values())
    return Estimate(mean=0.0, block_variance=variance, block_freedom=spread.degrees_of_freedom, visits={})


def _by_node(scores: Iterable[Score]) -> dict[str, list[Score]]:
    found: defaultdict[str, list[Score]] = defaultdict(list)
    for score in scores:
        found[score.node].append(score)
    return dict(found)
