"""How a sweep stands: running, finished, failed or interrupted, from its folder alone."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from orchestrator.config import Strict
from orchestrator.ledger import LedgerView
from orchestrator.plan import Plan
from orchestrator.policies import policy_for
from orchestrator.policy import missing_blocks
from orchestrator.records import SessionRecord, VisitRecord
from orchestrator.sweep_dir import SweepDir
from orchestrator.to_come import to_come

State = Literal["running", "finished", "failed", "interrupted"]


class Outcome(Strict):
    state: State
    reason: str | None
    """Why it failed, or how it was interrupted."""
    num_done: int
    num_blocks: int
    """At most."""
    command: str | None
    """What was typed last; None where no session ended in order."""


def outcome(sweep_dir: SweepDir) -> Outcome:
    config, plan, ledger = sweep_dir.config(), sweep_dir.plan(), sweep_dir.ledger()
    policy = policy_for(config)
    blocks = to_come(plan, ledger, policy, (), policy.dropped(plan, ledger), frozenset())
    sessions = ledger.sessions()
    state, reason = _state(sweep_dir, plan, ledger, is_complete=policy.is_complete(plan, ledger))
    return Outcome(
        state=state,
        reason=reason,
        num_done=blocks.num_done,
        num_blocks=blocks.num_done if state == "finished" else blocks.num_blocks,
        command=sessions[-1].command if sessions else None,
    )


def _state(sweep_dir: SweepDir, plan: Plan, ledger: LedgerView, *, is_complete: bool) -> tuple[State, str | None]:
    if sweep_dir.is_running:
        return "running", None
    if is_complete:
        undecided = "all is measured, `orchestrator select` decides" if sweep_dir.selection() is None else None
        return ("interrupted", undecided) if undecided else ("finished", None)
    sessions = ledger.sessions()
    if _was_killed(sessions, ledger.visits()):
        return "interrupted", "its process was killed"
    has_reasons = sessions[-1].ended is not None or failures(ledger) or ledger.set_aside
    if sessions[-1].ended == "interrupted" or not has_reasons:  # how it ended was not always kept
        return "interrupted", None
    return "failed", sessions[-1].error or what_is_missing(plan, ledger, sweep_dir.path)


def _was_killed(sessions: Sequence[SessionRecord], visits: Sequence[VisitRecord]) -> bool:
    """Whether something was measured that no session's end came after."""
    if not sessions:
        return True
    ended = datetime.fromisoformat(sessions[-1].started_utc) + timedelta(seconds=sessions[-1].wall_s)
    return any(datetime.fromisoformat(visit.started_utc) > ended for visit in visits)


def failures(ledger: LedgerView) -> dict[str, str]:
    """Arm id -> what kept a block of it from counting: the last failed visit, else the last void block."""
    void = {block.arm_id: f"void: {block.void_reason}" for block in ledger.void_blocks()}
    return void | {visit.arm_id: visit.error for visit in ledger.visits() if visit.error}


def what_is_missing(plan: Plan, ledger: LedgerView, path: Path) -> str:
    """Of a sweep that measured all that it could, in the folder `path`."""
    why = failures(ledger)
    reasons = [
        f"{arm.name}: {why[arm.id]}"
        for arm in plan.arms
        if arm.id in why and (arm.is_baseline or missing_blocks(plan, ledger, arm, "arm", ""))
    ]
    reasons += [f"node {node} is set aside: {reason}" for node, reason in ledger.set_aside.items()]
    return (
        f"not everything could be measured. {'; '.join(reasons) or 'no node was left'}. "
        f"What was measured is in {path}; the same command tries the rest again"
    )
