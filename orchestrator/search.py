"""The Ray Tune Searcher: turns the boards' next visits into trials."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray.tune.search import Searcher

from orchestrator.board import Board
from orchestrator.cluster import LiveNodes
from orchestrator.config import SweepConfig
from orchestrator.lookout import Lookout
from orchestrator.one_engine import measured_with

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
    lookout: Lookout = field(init=False)
    """Watches over its visits."""

    def __post_init__(self) -> None:
        self.lookout = Lookout(self.board, self.config)


class VisitSearch(Searcher):
    """Suggests a visit for every idle node until no board has one left.

    Args:
        drives: the sweeps, each of a name and a hardware of its own.
        live_nodes: the nodes that are alive.
    """

    def __init__(self, drives: Sequence[Drive], live_nodes: LiveNodes) -> None:
        super().__init__()
        self._drives = drives
        self._live_nodes = live_nodes

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        is_over = True
        for drive in self._drives:
            live = self._live_nodes(drive.config.hardware)
            nodes = drive.lookout.usable(live)
            staying = drive.board.staying(live)
            if staying:
                drive.last_seen_node = time.monotonic()
            visit = drive.board.next_visit(nodes)
            if visit is not None:
                drive.lookout.begin(trial_id, visit, nodes[visit.node])
                return {
                    "sweep": drive.config.name,
                    "visit": visit.model_dump_json(),
                    "ray_node_id": nodes[visit.node],
                    "measured_with": measured_with(drive.board.ledger.visits()).model_dump_json(),
                }
            waits_for_node = not staying and time.monotonic() - drive.last_seen_node < NO_NODE_TIMEOUT_S
            is_over &= not (drive.board.running or waits_for_node or drive.lookout.expects_node_back())
        return str(Searcher.FINISHED) if is_over else None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tune's scheduler sees the trial, and why it ended (see `schedule`)."""

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its Searcher for a restore that this tool never does: the ledger is the state."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the ledger is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore: the ledger is the state."""
