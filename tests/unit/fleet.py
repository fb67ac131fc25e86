"""Nodes that do what a policy asks for, and the ledger they fill; what a block gives is the subclass's to say."""

from abc import ABC, abstractmethod
from pathlib import Path

from orchestrator.ledger import Ledger
from orchestrator.plan import Plan
from orchestrator.policy import Policy
from orchestrator.records import Block, BlockRecord, Visit
from tests.unit.builders import finished


class Fleet(ABC):
    def __init__(self, plan: Plan, policy: Policy, path: Path) -> None:
        self.plan, self.policy = plan, policy
        self.ledger = Ledger(path)
        self.started: list[Visit] = []
        self.running: set[str] = set()

    @abstractmethod
    def measure(self, visit: Visit, block: Block) -> BlockRecord:
        """What the ledger gets of `block`."""

    def start(self, node: str = "a") -> Visit | None:
        visit = self.policy.next_visit(self.plan, self.ledger, self.started, self.running, node)
        if visit:
            self.started.append(visit)
            self.running.add(visit.id)
        return visit

    def end(self, visit: Visit, num_blocks: int | None = None) -> None:
        """`num_blocks` less than all: the visit fails after them."""
        by_id = {block.id: block for block in self.plan.blocks}
        for block_id in visit.block_ids[:num_blocks]:
            self.ledger.append(self.measure(visit, by_id[block_id]))
        self.ledger.append(finished(visit, None if num_blocks is None else "crashed").record)
        self.running.discard(visit.id)
