"""Where a sweep's time went, from the ledger alone."""

from collections.abc import Iterable, Mapping, Sequence

from orchestrator.config import Strict
from orchestrator.records import BlockRecord, SessionRecord, VisitRecord


class TimeSplit(Strict):
    """Node-seconds by what they were spent on. The five parts sum to `node_s`."""

    wall_s: float | None
    """Driver time over all sessions; None where no session ended in order."""
    num_nodes: int
    node_s: float
    """Time the nodes were ours: wall_s x num_nodes, or what the visits took where that is more."""
    server_start_s: float
    warmup_s: float
    load_s: float
    server_stop_s: float
    other_s: float
    """Idle nodes, the driver's own work, and whatever a visit did besides the four parts above."""

    @property
    def parts_s(self) -> Mapping[str, float]:
        return {
            "Server starts": self.server_start_s,
            "Warm-up": self.warmup_s,
            "Load (measured blocks)": self.load_s,
            "Server stops": self.server_stop_s,
            "Everything else": self.other_s,
        }

    @property
    def shares(self) -> Mapping[str, float] | None:
        """Parts of node_s, 0..1, summing to 1; None where no time was recorded."""
        if not self.node_s:
            return None
        return {name: seconds / self.node_s for name, seconds in self.parts_s.items()}

    @property
    def outside_share(self) -> float | None:
        """Share of node_s that is neither a server start nor load: the sweep's own overhead."""
        return 1 - (self.server_start_s + self.load_s) / self.node_s if self.node_s else None


def time_split(
    sessions: Sequence[SessionRecord], visits: Sequence[VisitRecord], blocks: Iterable[BlockRecord]
) -> TimeSplit:
    """Split the sweep's time, in node-seconds.

    Several nodes work at once, so parts of wall time could sum to more than all of it. The whole is therefore
    wall time x nodes; a node that waits for another one shows as `other`. A driver that was killed leaves visits
    but no session, and then visits can exceed that product: the whole is then what the visits took, so that shares
    stay shares. Blocks whose visit left no record (killed before its end) count with their own time.
    """
    finished = {(visit.visit_id, visit.attempt) for visit in visits}
    nodes = {visit.node for visit in visits}
    orphans_s = 0.0
    for block in blocks:
        if (block.visit_id, block.attempt) not in finished:
            nodes.add(block.node)
            orphans_s += block.wall_s
    parts = {
        "server_start_s": sum(visit.server_start_s or 0.0 for visit in visits),
        "warmup_s": sum(visit.warmup_s for visit in visits),
        "load_s": sum(visit.blocks_s for visit in visits) + orphans_s,
        "server_stop_s": sum(visit.server_stop_s or 0.0 for visit in visits),
    }
    wall_s = sum(session.wall_s for session in sessions) if sessions else None
    used_s = max(sum(visit.wall_s for visit in visits) + orphans_s, sum(parts.values()))
    num_nodes = max(1, len(nodes))
    node_s = max((wall_s or 0.0) * num_nodes, used_s)
    return TimeSplit(
        wall_s=wall_s, num_nodes=num_nodes, node_s=node_s, other_s=max(0.0, node_s - sum(parts.values())), **parts
    )
