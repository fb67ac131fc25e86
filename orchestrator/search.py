"""The Ray Tune Searcher: turns the board's next visit into a trial."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from ray.tune.search import Searcher

from orchestrator.board import Board
from orchestrator.lookout import Lookout

NO_NODE_TIMEOUT_S = 600.0
"""How long a sweep waits for a node when none is alive, or all are about to be taken away."""


class VisitSearch(Searcher):
    """Suggests a visit for every idle node until the board has none left.

    Args:
        board: decides and remembers.
        live_nodes: node name -> Ray node id of the nodes that are alive.
        lookout: watches over what is suggested here.
    """

    def __init__(self, board: Board, live_nodes: Callable[[], Mapping[str, str]], lookout: Lookout) -> None:
        super().__init__()
        self._board = board
        self._lookout = lookout
        self._live_nodes = live_nodes
        self._last_seen_node = time.monotonic()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        live = self._live_nodes()
        nodes = self._lookout.usable(live)
        staying = self._board.staying(live)
        if staying:
            self._last_seen_node = time.monotonic()
        visit = self._board.next_visit(nodes)
        if visit is not None:
            self._lookout.begin(trial_id, visit, nodes[visit.node])
            return {"visit": visit.model_dump_json(), "ray_node_id": nodes[visit.node]}
        waits_for_node = not staying and time.monotonic() - self._last_seen_node < NO_NODE_TIMEOUT_S
        waits = self._board.running or waits_for_node or self._lookout.expects_node_back()
        return None if waits else str(Searcher.FINISHED)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._lookout.end(trial_id, self._live_nodes())

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its Searcher for a restore that this tool never does: the ledger is the state."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the ledger is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore: the ledger is the state."""
