"""The driver's view of a running sweep: what was started, what runs where, what came back. No Ray in here."""

import logging
import secrets
from collections.abc import Callable, Collection, Set
from datetime import UTC, datetime

from orchestrator.ledger import Ledger, key_of
from orchestrator.plan import Plan
from orchestrator.policy import Policy, measuring_nodes
from orchestrator.records import FinishedVisit, MeasuredBlock, Visit, VisitEvent, VisitRecord
from orchestrator.sweep_dir import SweepDir

log = logging.getLogger(__name__)

MAX_EXCUSED = 5
"""Lost visits of one arm that are put down to their nodes: an arm that brings down every node is to blame itself."""


class Board:
    """Hands visits out to idle nodes and keeps what they measure.

    Results are fenced: what comes from a visit that is not running any more, or was measured already, is dropped.
    """

    def __init__(self, plan: Plan, policy: Policy, ledger: Ledger, sweep_dir: SweepDir) -> None:
        self.plan = plan
        self.ledger = ledger
        self.policy = policy
        self.sweep_dir = sweep_dir
        self._started: list[Visit] = []
        self._excused: set[str] = set()
        """Visit ids that count as no attempt, since their node failed."""
        self._unfit: set[str] = set()
        """Nodes that said they cannot measure."""
        self.live: Set[str] = frozenset()
        """Names of the nodes that are alive."""
        self.running: dict[str, Visit] = {}
        """Visit id -> visit."""
        self._leaving: set[str] = set()
        self._nothing_for: object = None
        """For what the policy last had no visit."""
        self.listeners: list[Callable[[Visit | VisitEvent], None]] = []
        """Told of every visit that starts, and of all that comes back."""

    def staying(self, nodes: Collection[str]) -> set[str]:
        """Of the live `nodes` those that are not about to be taken away. One that went and came back is a new one."""
        self._leaving &= set(nodes)
        return set(nodes) - self._leaving

    def next_visit(self, nodes: Collection[str]) -> Visit | None:
        """Start the next visit on one of the live `nodes`; None while there is nothing to start.

        A node that was set aside gets nothing more, and what it was given counts neither as tried nor as under way.
        Neither does a node that is about to be taken away, nor one that said that it is not fit. A visit that ended for
        what lies with its node is no attempt.
        Its id becomes unique here: a driver that was killed may have started the same visit before, and what that one
        left in raw/ or still sends must not mix with this one's.
        """
        busy = {visit.node for visit in self.running.values()}
        aside = self.ledger.set_aside
        started = [visit for visit in self._started if visit.node not in aside and visit.id not in self._excused]
        idle = self.staying(nodes) - busy - self._unfit - aside.keys()
        # A policy is a function of what is asked here: while nothing changes, neither does its answer.
        asked = frozenset(idle), frozenset(self.running), self.ledger.num_records, len(self._started), len(started)
        if asked == self._nothing_for:
            return None
        for node in sorted(idle):
            visit = self.policy.next_visit(self.plan, self.ledger, started, self.running, node)
            if visit:
                visit = visit.model_copy(update={"id": f"{visit.id}-{secrets.token_hex(2)}"})
                self._started.append(visit)
                self.running[visit.id] = visit
                self._tell(visit)
                return visit
        self._nothing_for = asked
        return None

    def take(self, event: VisitEvent) -> None:
        """Keep what a node sent. One that says that it cannot measure gets nothing more."""
        if isinstance(event, FinishedVisit) and event.record.blames_node and event.record.visit_id in self.running:
            self._unfit.add(event.record.node)
        self._keep(event)

    def _keep(self, event: VisitEvent) -> None:
        """Raw data first, since the ledger's line is what makes a block count."""
        record = event.record
        known = isinstance(event, MeasuredBlock) and self.ledger.has(key_of(event.record))
        if record.visit_id not in self.running or known:
            log.warning("dropped a late result of visit %s", record.visit_id)
            return
        if isinstance(event, MeasuredBlock):
            self.sweep_dir.write_raw(record.visit_id, event.record.block_id, event.requests)
        elif event.record.server_log:
            self.sweep_dir.write_server_log(event.record.server_log, event.server_log)
        self.ledger.append(record)
        if isinstance(event, FinishedVisit):
            ended = self.running.pop(record.visit_id)
            if event.record.blames_node:
                self._excuse(ended)
            if event.record.interrupted:
                self._leaving.add(record.node)
                self._started.remove(ended)
        self._tell(event)

    def _tell(self, event: Visit | VisitEvent) -> None:
        for listener in self.listeners:
            listener(event)

    def gone(self) -> list[str]:
        """Nodes that measured and are not alive, though others are."""
        return [node for node in measuring_nodes(self.ledger) if node not in self.live] if self.live else []

    def _excuse(self, visit: Visit) -> None:
        same = [
            v for v in self._started if v.id in self._excused and (v.arm.id, v.phase) == (visit.arm.id, visit.phase)
        ]
        if len(same) < MAX_EXCUSED:
            self._excused.add(visit.id)

    def lose(self, visit_id: str, reason: str, *, blames_node: bool = False) -> None:
        """A visit whose worker or node died: its finished blocks stay, the rest is to be measured again."""
        visit = self.running.get(visit_id)
        if visit is None:
            return
        blocks = [
            block for block in self.ledger.blocks() if (block.visit_id, block.attempt) == (visit_id, visit.attempt)
        ]
        blocks_s = sum(block.wall_s for block in blocks)
        record = VisitRecord(
            visit_id=visit.id,
            arm_id=visit.arm.id,
            attempt=visit.attempt,
            phase=visit.phase,
            node=visit.node,
            started_utc=datetime.now(UTC).isoformat(),
            blocks_s=blocks_s,
            wall_s=blocks_s,  # at least: how long the rest took died with the worker
            num_blocks=len(blocks),
            error=reason,
            blames_node=blames_node,
        )
        self._keep(FinishedVisit(record=record, server_log=""))
