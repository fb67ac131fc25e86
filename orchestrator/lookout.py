"""Which visits are not to be waited for any longer, and which nodes. No Ray in here.

A visit is given up when its node has left the cluster, and when nothing was heard of it for longer than what it is
doing can take. Its node gets nothing more until Ray was restarted there: a process that hangs is still in its memory.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.board import Board
from orchestrator.config import SweepConfig
from orchestrator.policy import gone_nodes, unclosed_nodes
from orchestrator.records import BlockRecord, MeasuredBlock, Visit, VisitEvent, WorkloadCell
from tasks.model_files import FETCH_TIMEOUT_S, is_remote, references

PATIENCE = 10
"""Times the slowest block seen of a workload that another one may take: an arm may be slow."""


@dataclass
class _Watched:
    visit: Visit
    ray_node_id: str
    heard: float | None = None
    """When something was last heard of it, monotonic; None while it waits for its node, which another sweep may use."""
    has_measured: bool = False


class Lookout:
    """Watches over the visits of one board."""

    def __init__(self, board: Board, config: SweepConfig) -> None:
        self._board, self._config = board, config
        self._watched: dict[str, _Watched] = {}
        """Trial id -> its visit."""
        self._live: Mapping[str, str] = {}
        self._hung: set[str] = set()
        """Ray node ids."""
        self._last_seen: dict[str, float] = {}
        self._has_files: set[tuple[str, ...]] = set()
        """Ray node id and models of what was measured: their files are on the node."""
        self._slowest: dict[str, float] = {}
        """Workload id -> the longest time that a block of it took, seconds."""
        for block in board.ledger.valid_blocks():
            self._note(block)
        board.listeners.append(self._on_event)

    def usable(self, live: Mapping[str, str]) -> dict[str, str]:
        """Of the `live` nodes (name -> Ray node id) those that may get a visit."""
        self._live = live
        self._board.live = frozenset(live)
        self._last_seen |= dict.fromkeys(live, time.monotonic())
        return {name: ray_id for name, ray_id in live.items() if ray_id not in self._hung}

    def begin(self, trial_id: str, visit: Visit, ray_node_id: str) -> None:
        self._watched[trial_id] = _Watched(visit, ray_node_id)

    def hear(self, trial_id: str, *, has_measured: bool) -> None:
        """Something was heard of the trial: its start, or a result."""
        if trial_id in self._watched:
            self._watched[trial_id].heard = time.monotonic()
            self._watched[trial_id].has_measured = has_measured
            if has_measured:
                self._has_files.add(_files(self._watched[trial_id]))

    def end(self, trial_id: str, live: Mapping[str, str], *, unreachable: bool = False) -> None:
        """The trial is over: what it did not finish is lost.

        `unreachable`: its worker does not answer, on a node that Ray may still count for some seconds.
        """
        watched = self._watched.pop(trial_id, None)
        if watched:
            self._live = live
            lost = self._why_left(watched) or (f"node {watched.visit.node} does not answer" if unreachable else None)
            reason = lost or "the node's worker process died"
            self._board.lose(watched.visit.id, reason, blames_node=lost is not None)

    def give_up(self) -> list[str]:
        """Ids of the trials to end, whose visits are lost from now on."""
        given_up = []
        for trial_id, watched in self._watched.items():
            reason = self._why_lost(watched)
            if reason:
                self._board.lose(watched.visit.id, reason, blames_node=True)
                given_up.append(trial_id)
        for trial_id in given_up:
            del self._watched[trial_id]
        return given_up

    def expects_node_back(self) -> bool:
        """Whether a node that measured left only just now: Ray may be restarting there, and it has to close."""
        since = time.monotonic() - self._config.cluster.node_return_s
        ledger = self._board.ledger
        absent = unclosed_nodes(ledger) - gone_nodes(ledger) - self._live.keys()
        return any(self._last_seen.get(node, -math.inf) > since for node in absent)

    def _why_lost(self, watched: _Watched) -> str | None:
        left = self._why_left(watched)
        if left or watched.heard is None:
            return left
        limit_s = self.silence_limit_s(watched.visit, has_measured=watched.has_measured)
        if not watched.has_measured and _files(watched) not in self._has_files and _is_fetched(watched.visit):
            limit_s += FETCH_TIMEOUT_S
        if time.monotonic() - watched.heard < limit_s:
            return None
        self._hung.add(watched.ray_node_id)
        return (
            f"nothing was heard of node {watched.visit.node} for {limit_s:.0f} s: it hangs, "
            "and gets nothing more until Ray is restarted there"
        )

    def _why_left(self, watched: _Watched) -> str | None:
        gone = watched.ray_node_id not in self._live.values()
        return f"node {watched.visit.node} left the cluster" if gone else None

    def silence_limit_s(self, visit: Visit, *, has_measured: bool) -> float:
        """Seconds within which the visit must be heard of: its slowest block, with a warm-up that may come twice (see
        `tasks.visit`) before it, and before its first block the server's start.

        A block may take `PATIENCE` times as long as the slowest seen of its workload, and never longer than its
        requests may.
        """
        wanted, cells = set(visit.block_ids), {cell.id: cell for cell in self._board.plan.workloads}
        longest_s = max(
            min(
                PATIENCE * self._slowest.get(block.workload_id, math.inf),
                _longest_s(cells[block.workload_id], len(block.prompt_indices)),
            )
            for block in self._board.plan.blocks
            if block.id in wanted
        )
        server = self._config.server
        around_s = server.stop_grace_s if has_measured else server.ready_timeout_s
        return self._config.cluster.silence_grace_s + around_s + 3 * longest_s

    def _on_event(self, event: Visit | VisitEvent) -> None:
        if isinstance(event, MeasuredBlock):
            self._note(event.record)

    def _note(self, block: BlockRecord) -> None:
        self._slowest[block.workload_id] = max(block.wall_s, self._slowest.get(block.workload_id, 0.0))


def _files(watched: _Watched) -> tuple[str, ...]:
    return (watched.ray_node_id, *sorted(references(watched.visit.arm.server)))


def _is_fetched(visit: Visit) -> bool:
    return any(is_remote(reference) for reference in references(visit.arm.server))


def _longest_s(cell: WorkloadCell, num_requests: int) -> float:
    """In an open loop (no max_concurrency) the last request may be sent when the first ones have long ended."""
    return math.ceil(num_requests / (cell.max_concurrency or 1)) * cell.request_timeout_s
