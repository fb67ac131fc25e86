"""What a sweep may spend: closing baselines are counted before they run, and no differently afterwards."""

from collections.abc import Collection
from pathlib import Path

import pytest

from orchestrator.budget import SERVER_START_S, Budget, server_start_s
from orchestrator.ledger import Ledger
from orchestrator.plan import Plan
from orchestrator.policy import Grid
from orchestrator.records import Arm, Visit
from tests.unit.builders import answers, finished, make_plan, write_all


@pytest.fixture
def plan() -> Plan:
    return make_plan([1, 3], num_blocks=4)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.jsonl")


def visit_of(plan: Plan, ledger: Ledger) -> Visit:
    visit = Grid(seed=0, max_attempts=2).next_visit(plan, ledger, (), (), "a")
    assert visit is not None
    return visit


def affords(
    plan: Plan, ledger: Ledger, *visits: Visit, max_blocks: int | None = None, seconds: float | None = None
) -> bool:
    def visit_s(arm: Arm, block_ids: Collection[str]) -> float:
        return 10.0 + len(block_ids)

    hours = None if seconds is None else seconds / 3600
    return Budget(max_blocks=max_blocks, max_node_hours=hours).affords(plan, ledger, visits, visit_s)


def take(plan: Plan, ledger: Ledger, visit: Visit) -> None:
    for event in answers(plan, visit):
        ledger.append(event.record)


def test_without_limits_everything_is_afforded(plan: Plan, ledger: Ledger) -> None:
    assert affords(plan, ledger, visit_of(plan, ledger))


def test_arm_is_afforded_together_with_the_closing_baseline_it_asks_for(plan: Plan, ledger: Ledger) -> None:
    take(plan, ledger, visit_of(plan, ledger))  # 4 blocks in 30 s
    arm = visit_of(plan, ledger)

    assert affords(plan, ledger, arm, max_blocks=12)
    assert not affords(plan, ledger, arm, max_blocks=11)
    assert affords(plan, ledger, arm, seconds=30 + 14 + 14)
    assert not affords(plan, ledger, arm, seconds=30 + 14 + 13)


def test_what_is_afforded_does_not_change_once_the_sweep_has_closed(plan: Plan, ledger: Ledger) -> None:
    for _ in range(2):
        take(plan, ledger, visit_of(plan, ledger))
    arm = visit_of(plan, ledger)
    closing = arm.model_copy(update={"id": "closing", "arm": plan.baseline, "phase": "closing"})
    answers_before = [affords(plan, ledger, arm, seconds=seconds) for seconds in (60 + 27, 60 + 28)]

    take(plan, ledger, closing)

    assert [affords(plan, ledger, arm, seconds=seconds) for seconds in (60 + 27, 60 + 28)] == answers_before
    assert answers_before == [False, True]


def test_server_start_is_what_visits_took_besides_their_blocks(plan: Plan, ledger: Ledger) -> None:
    assert server_start_s(ledger) == SERVER_START_S
    write_all(ledger, plan)
    visit = visit_of(make_plan([1]), Ledger(ledger.path.with_name("empty")))
    ledger.append(finished(visit, error="crashed").record)
    assert server_start_s(ledger) == SERVER_START_S

    ledger.append(finished(visit).record)

    assert server_start_s(ledger) == 30.0
