"""What a sweep is doing at the moment, in a file that another terminal can read (`orchestrator status`)."""

from datetime import UTC, datetime

from orchestrator.config import Strict
from orchestrator.leaders import Leader


class RunningVisit(Strict):
    node: str
    arm: str
    phase: str
    num_done: int
    num_blocks: int
    started_utc: str
    last: str
    """The block measured last with its tokens/s, or what it waits for."""

    num_void: int = 0
    """Of its blocks, which are to be measured again."""

    @property
    def running_s(self) -> float:
        return (datetime.now(UTC) - datetime.fromisoformat(self.started_utc)).total_seconds()


class Live(Strict):
    updated_utc: str
    running: tuple[RunningVisit, ...]
    num_done: int
    num_blocks: int
    is_at_most: bool
    """Whether fewer blocks than `num_blocks` may do."""
    left_s: float | None
    """Expected until all is measured, from `updated_utc` on; None where nothing tells, and at the end."""
    at_most_left_s: float | None = None
    node_hours: float
    """Spent on visits so far, all sessions."""
    usd: float | None
    """The same at the profile's price; None without one."""
    leaders: tuple[Leader, ...]
    """As of the last finished visit."""
