"""The Ray Tune Searcher: turns the boards' next visits into trials."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray.tune.search import Searcher

from orchestrator.board import Board
from orchestrator.cluster import LiveNodes
from orchestrator.config import SweepConfig

NO_NODE_TIMEOUT_S = 600.0
"""How long a sweep waits for a node when none is alive, or all are about to be taken away."""


@dataclass
class Drive:
    """A sweep under way on the nodes of its own hardware."""

    config: SweepConfig
    board: Board
    """Decides and remembers."""
    revisions: Mapping[str, str]
    """Model -> commit, of all that come from the hub (see `model_files.pin_revisions`)."""
    last_seen_node: float = field(default_factory=time.monotonic)


class VisitSearch(Searcher):
    """Suggests a visit for every idle node until no board has one left.

    Args:
        drives: the sweeps, each of a name and a hardware of its own.
        live_nodes: the nodes that can take a visit now.
    """

    def __init__(self, drives: Sequence[Drive], live_nodes: LiveNodes) -> None:
        super().__init__()
        self._drives = drives
        self._live_nodes = live_nodes
        self._visit_of: dict[str, tuple[Board, str]] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        is_over = True
        for drive in self._drives:
            nodes = self._live_nodes(drive.config.hardware)
            staying = drive.board.staying(nodes)
            if staying:
                drive.last_seen_node = time.monotonic()
            visit = drive.board.next_visit(nodes)
            if visit is not None:
                self._visit_of[trial_id] = drive.board, visit.id
                return {
                    "sweep": drive.config.name,
                    "visit": visit.model_dump_json(),
                    "ray_node_id": nodes[visit.node],
                }
            waits_for_node = not staying and time.monotonic() - drive.last_seen_node < NO_NODE_TIMEOUT_S
            is_over &= not (drive.board.running or waits_for_node)
        return str(Searcher.FINISHED) if is_over else None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if trial_id in self._visit_of:
            board, visit_id = self._visit_of.pop(trial_id)
            board.lose(visit_id, "the node's worker process died or became unreachable")

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its Searcher for a restore that this tool never does: the ledger is the state."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the ledger is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore: the ledger is the state."""
