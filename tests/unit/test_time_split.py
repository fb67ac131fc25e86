"""Where the time went: parts that sum to the whole, also after a kill and on several nodes."""

import pytest

from orchestrator.plan import Plan
from orchestrator.records import SessionRecord
from orchestrator.time_split import time_split
from tests.unit.report_fixture import make_block, make_plan, make_visit


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan()


def session(wall_s: float) -> SessionRecord:
    return SessionRecord(started_utc="2026-08-01T10:15:00Z", wall_s=wall_s)


def test_time_split_shares_sum_to_one(plan: Plan) -> None:
    split = time_split([session(50)], [make_visit(plan)], [])
    assert split.shares is not None
    assert sum(split.shares.values()) == pytest.approx(1)
    assert sum(split.parts_s.values()) == pytest.approx(split.node_s)


def test_time_between_visits_is_other(plan: Plan) -> None:
    visit = make_visit(plan, server_start_s=20.0, warmup_s=2.0, blocks_s=60.0, server_stop_s=1.0, wall_s=84.0)
    split = time_split([session(100)], [visit], [])
    assert split.other_s == pytest.approx(17)
    assert split.outside_share == pytest.approx(0.2)


def test_sessions_of_a_continued_sweep_add_up(plan: Plan) -> None:
    assert time_split([session(40), session(60)], [make_visit(plan)], []).wall_s == 100


def test_two_nodes_have_twice_the_wall_time(plan: Plan) -> None:
    visits = [make_visit(plan, node=node, wall_s=90.0) for node in ("a", "b")]
    split = time_split([session(100)], visits, [])
    assert (split.num_nodes, split.node_s) == (2, 200)
    assert split.shares is not None
    assert max(split.shares.values()) < 1


def test_killed_driver_leaves_shares_that_are_shares(plan: Plan) -> None:
    """No session record for the killed run, so the visits took longer than the recorded wall time."""
    split = time_split([session(5)], [make_visit(plan)], [])
    assert split.shares is not None
    assert sum(split.shares.values()) == pytest.approx(1)
    assert all(share >= 0 for share in split.shares.values())


def test_blocks_of_a_killed_visit_count_as_load(plan: Plan) -> None:
    orphan = make_block(plan, visit_id="killed", wall_s=7.0)
    assert time_split([], [], [orphan]).load_s == 7
    known = make_visit(plan, blocks_s=10.0)
    assert time_split([], [known], [make_block(plan, visit_id=known.visit_id)]).load_s == 10


def test_visit_that_never_started_its_server_counts_as_other(plan: Plan) -> None:
    visit = make_visit(plan, server_start_s=None, server_stop_s=None, warmup_s=0.0, blocks_s=0.0, wall_s=30.0)
    assert time_split([session(30)], [visit], []).other_s == 30


def test_nothing_recorded_gives_no_shares_rather_than_zero() -> None:
    split = time_split([], [], [])
    assert (split.wall_s, split.shares, split.outside_share) == (None, None, None)
