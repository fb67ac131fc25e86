"""Which visit comes next: each node between two baselines, every arm once somewhere, attempts bounded."""

from pathlib import Path

import pytest

from orchestrator.ledger import Ledger
from orchestrator.plan import Plan
from orchestrator.policy import Grid, is_complete, missing_blocks, num_measurements, unclosed_nodes
from orchestrator.records import MeasuredBlock, SessionRecord, Visit
from tests.unit.builders import answers, block_record, finished, make_plan, write_all


class Fleet:
    """Nodes that take visits and end them, and the ledger they fill."""

    def __init__(self, plan: Plan, path: Path, *, seed: int = 0, max_attempts: int = 2) -> None:
        self.plan = plan
        self.policy = Grid(seed=seed, max_attempts=max_attempts)
        self.ledger = Ledger(path)
        self.started: list[Visit] = []
        self.running: set[str] = set()

    def start(self, node: str) -> Visit | None:
        visit = self.policy.next_visit(self.plan, self.ledger, self.started, self.running, node)
        if visit:
            self.started.append(visit)
            self.running.add(visit.id)
        return visit

    def end(self, visit: Visit, num_blocks: int | None = None) -> None:
        """`num_blocks` less than all: the visit fails after them."""
        sent = [event for event in answers(self.plan, visit) if isinstance(event, MeasuredBlock)][:num_blocks]
        for event in sent:
            self.ledger.append(event.record)
        self.ledger.append(finished(visit, None if num_blocks is None else "crashed").record)
        self.running.discard(visit.id)

    def run(self, node: str) -> list[Visit]:
        visits = []
        while visit := self.start(node):
            visits.append(visit)
            self.end(visit)
        return visits


@pytest.fixture
def ledger_path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def test_baseline_is_measured_first_and_last_and_every_arm_once(ledger_path: Path) -> None:
    fleet = Fleet(make_plan([1, 3, 7]), ledger_path)

    visits = fleet.run("a")

    assert [visit.phase for visit in visits] == ["opening", "arm", "arm", "arm", "closing"]
    assert [visit.arm.is_baseline for visit in visits] == [True, False, False, False, True]
    assert {visit.arm.id for visit in visits} == {arm.id for arm in fleet.plan.arms}
    assert all(len(visit.block_ids) == len(fleet.plan.blocks) for visit in visits)
    assert is_complete(fleet.plan, fleet.ledger)


def test_order_of_arms_is_drawn_from_the_seed(tmp_path: Path) -> None:
    plan = make_plan(range(1, 9))
    orders = [
        [visit.arm.name for visit in Fleet(plan, tmp_path / f"{run}", seed=seed).run("a")]
        for run, seed in enumerate([0, 0, 1])
    ]

    assert orders[0] == orders[1] != orders[2]
    assert orders[0][1:-1] != [arm.name for arm in plan.arms[1:]]


def test_no_arm_before_the_nodes_opening_baseline_is_complete(ledger_path: Path) -> None:
    fleet = Fleet(make_plan([1]), ledger_path)
    opening = fleet.start("a")
    assert opening is not None

    fleet.end(opening, num_blocks=3)
    again = fleet.start("a")

    assert again is not None
    assert (again.phase, again.attempt) == ("opening", 2)
    assert again.block_ids == opening.block_ids[3:]


def test_node_whose_opening_baseline_fails_takes_no_arm_and_others_go_on(ledger_path: Path) -> None:
    fleet = Fleet(make_plan([1]), ledger_path)
    for _ in range(2):
        opening = fleet.start("bad")
        assert opening is not None
        fleet.end(opening, num_blocks=1)

    assert fleet.start("bad") is None
    assert [visit.phase for visit in fleet.run("good")] == ["opening", "arm", "closing"]
    assert is_complete(fleet.plan, fleet.ledger)


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_arm_is_tried_so_often_and_then_given_up(ledger_path: Path, max_attempts: int) -> None:
    fleet = Fleet(make_plan([1]), ledger_path, max_attempts=max_attempts)
    opening = fleet.start("a")
    assert opening is not None
    fleet.end(opening)
    attempts = []
    while (visit := fleet.start("a")) and visit.phase == "arm":
        attempts.append(visit)
        fleet.end(visit, num_blocks=0)

    assert [visit.attempt for visit in attempts] == list(range(1, max_attempts + 1))
    assert len({visit.id for visit in attempts}) == max_attempts
    assert visit is not None
    assert visit.phase == "closing"
    fleet.end(visit)
    assert not is_complete(fleet.plan, fleet.ledger)


def test_next_attempt_measures_only_what_is_missing(ledger_path: Path) -> None:
    fleet = Fleet(make_plan([1]), ledger_path)
    opening = fleet.start("a")
    assert opening is not None
    fleet.end(opening)
    first = fleet.start("a")
    assert first is not None
    fleet.end(first, num_blocks=1)

    second = fleet.start("a")

    assert second is not None
    assert second.block_ids == first.block_ids[1:]


def test_void_block_is_measured_again(ledger_path: Path) -> None:
    plan, ledger = make_plan([1]), Ledger(ledger_path)
    ledger.append(block_record(plan, plan.arms[1], plan.blocks[0], void_reason="a request failed"))

    assert plan.blocks[0] in missing_blocks(plan, ledger, plan.arms[1], "arm", "a")


def test_two_nodes_share_the_arms_and_each_has_its_own_baselines(ledger_path: Path) -> None:
    fleet = Fleet(make_plan([1, 3, 5, 7]), ledger_path)
    under_way: dict[str, Visit] = {}
    while True:
        for node in {"a", "b"} - under_way.keys():
            if visit := fleet.start(node):
                under_way[node] = visit
        if not under_way:
            break
        fleet.end(under_way.pop(min(under_way)))
        if under_way:
            fleet.end(under_way.pop(max(under_way)))

    of_arms = [visit for visit in fleet.started if visit.phase == "arm"]
    assert sorted(visit.arm.num_speculative_tokens for visit in of_arms) == [1, 3, 5, 7]
    for node in ("a", "b"):
        phases = [visit.phase for visit in fleet.started if visit.node == node]
        assert phases == ["opening", "arm", "arm", "closing"]
    assert is_complete(fleet.plan, fleet.ledger)


def test_arm_under_way_on_one_node_is_not_started_on_another_which_waits_before_closing(ledger_path: Path) -> None:
    fleet = Fleet(make_plan([1]), ledger_path)
    for node in ("a", "b"):
        opening = fleet.start(node)
        assert opening is not None
        fleet.end(opening)
    arm = fleet.start("a")
    assert arm is not None
    assert arm.phase == "arm"

    assert fleet.start("b") is None
    fleet.end(arm, num_blocks=0)
    taken = fleet.start("b")

    assert taken is not None
    assert (taken.phase, taken.attempt, taken.node) == ("arm", 2, "b")


def test_first_blocks_of_all_workloads_come_first(ledger_path: Path) -> None:
    plan = make_plan([1], datasets=("code", "chat"), num_blocks=2)

    blocks = missing_blocks(plan, Ledger(ledger_path), plan.baseline, "opening", "a")

    assert [(block.workload_id, block.index) for block in blocks] == [
        (cell.id, index) for index in (0, 1) for cell in plan.workloads
    ]


def test_number_of_measurements_is_what_a_sweep_takes(ledger_path: Path) -> None:
    plan = make_plan([1, 3])
    assert num_measurements(plan, ["a", "b"]) == len(plan.blocks) * (2 + 4)

    fleet = Fleet(plan, ledger_path)
    fleet.run("a")
    assert num_measurements(plan, ["a"]) == len(fleet.ledger.blocks())


def test_sweep_is_complete_only_with_the_closing_baseline(ledger_path: Path) -> None:
    plan, ledger = make_plan([1]), Ledger(ledger_path)
    assert not is_complete(plan, ledger)
    for arm in plan.arms:
        for block in plan.blocks:
            ledger.append(block_record(plan, arm, block))
    assert not is_complete(plan, ledger)

    write_all(ledger, plan)

    assert is_complete(plan, ledger)


def test_node_that_never_got_beyond_its_opening_baseline_does_not_keep_a_sweep_open(ledger_path: Path) -> None:
    plan, ledger = make_plan([1]), Ledger(ledger_path)
    ledger.append(block_record(plan, plan.baseline, plan.blocks[0], node="died"))
    write_all(ledger, plan)

    assert is_complete(plan, ledger)


def test_plan_of_the_baseline_alone_is_complete_with_both_its_visits(ledger_path: Path) -> None:
    fleet = Fleet(make_plan([]), ledger_path)

    assert [visit.phase for visit in fleet.run("a")] == ["opening", "closing"]
    assert is_complete(fleet.plan, fleet.ledger)


def test_node_that_has_gone_owes_no_closing_baseline_while_others_are_there(ledger_path: Path) -> None:
    plan, ledger = make_plan([1, 3]), Ledger(ledger_path)
    write_all(ledger, plan, node="a")
    for block in plan.blocks:
        ledger.append(block_record(plan, plan.baseline, block, 100.0, phase="opening", node="b"))
        ledger.append(block_record(plan, plan.arms[1], block, 100.0, phase="confirm", node="b"))
    assert not is_complete(plan, ledger)
    assert unclosed_nodes(ledger) == {"b"}

    ledger.append(SessionRecord(started_utc="2026-08-01T10:00:00Z", wall_s=1, nodes_gone=("b",)))
    assert is_complete(plan, ledger)

    ledger.append(SessionRecord(started_utc="2026-08-01T11:00:00Z", wall_s=1))
    assert not is_complete(plan, ledger)  # it came back
