"""The Ray Tune Searcher: turns the board's next visit into a trial."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from ray.tune.search import Searcher

from orchestrator.board import Board

NO_NODE_TIMEOUT_S = 600.0
"""How long a sweep waits for a node when none is alive, or all are about to be taken away."""


class VisitSearch(Searcher):
    """Suggests a visit for every idle node until the board has none left.

    Args:
        board: decides and remembers.
        live_nodes: node name -> Ray node id of the nodes that can take a visit now.
    """

    def __init__(self, board: Board, live_nodes: Callable[[], Mapping[str, str]]) -> None:
        super().__init__()
        self._board = board
        self._live_nodes = live_nodes
        self._visit_of: dict[str, str] = {}
        self._last_seen_node = time.monotonic()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        nodes = self._live_nodes()
        staying = self._board.staying(nodes)
        if staying:
            self._last_seen_node = time.monotonic()
        visit = self._board.next_visit(nodes)
        if visit is not None:
            self._visit_of[trial_id] = visit.id
            return {"visit": visit.model_dump_json(), "ray_node_id": nodes[visit.node]}
        waits_for_node = not staying and time.monotonic() - self._last_seen_node < NO_NODE_TIMEOUT_S
        return None if self._board.running or waits_for_node else str(Searcher.FINISHED)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        visit_id = self._visit_of.pop(trial_id, None)
        if visit_id is not None:
            self._board.lose(visit_id, "the node's worker process died or became unreachable")

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its Searcher for a restore that this tool never does: the ledger is the state."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the ledger is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore: the ledger is the state."""
