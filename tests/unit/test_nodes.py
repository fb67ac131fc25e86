"""A slow node is set aside, a noisy one or the last one never, and what it measured is measured elsewhere."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from orchestrator.adaptive import Adaptive
from orchestrator.board import Board
from orchestrator.budget import Budget
from orchestrator.config import Hardware, Search, SelectionRules
from orchestrator.ledger import Ledger
from orchestrator.nodes import judge, set_aside
from orchestrator.plan import Plan
from orchestrator.policy import Grid, Policy
from orchestrator.records import BlockRecord, MeasuredBlock, NodeInfo, Visit, VisitRecord
from orchestrator.sweep_dir import SweepDir
from tests.unit.builders import answers, block_record, finished, make_plan, measured
from tests.unit.report_fixture import NODE

LOCAL = Hardware(name="local")
NO_BUDGET = Budget(max_blocks=None, max_node_hours=None)
RATES = (100.0, 110.0, 90.0, 105.0)
POLICIES: list[Policy] = [
    Grid(seed=0, max_attempts=1),
    Adaptive(search=Search(strategy="adaptive", max_attempts=1), rules=SelectionRules(), budget=NO_BUDGET),
]


@pytest.fixture
def plan() -> Plan:
    return make_plan([1, 3])


def openings(plan: Plan, speeds: Mapping[str, Sequence[float]]) -> list[BlockRecord]:
    """Opening baselines: node -> its speed on each block as a share of RATES."""
    return [
        block
        for node, shares in speeds.items()
        for block in measured(plan, {0: [rate * share for rate, share in zip(RATES, shares, strict=False)]}, node=node)
    ]


def probed(node: str, memory_bandwidth_gb_per_s: float | None) -> VisitRecord:
    info: NodeInfo = NODE.model_copy(update={"memory_bandwidth_gb_per_s": memory_bandwidth_gb_per_s})
    return VisitRecord(
        **{"visit_id": f"v-{node}", "arm_id": "x", "attempt": 1, "phase": "opening", "node": node},
        **{"started_utc": "2026-08-01T10:00:00Z", "wall_s": 1.0, "num_blocks": 0, "node_info": info},
    )


def aside(plan: Plan, blocks: Sequence[BlockRecord], visits: Sequence[VisitRecord] = ()) -> set[str]:
    return set(set_aside(plan, LOCAL, blocks, visits))


def test_clearly_slower_node_is_named_with_by_how_much_and_what_to_do(plan: Plan) -> None:
    found = set_aside(plan, LOCAL, openings(plan, {"a": (1, 1, 1, 1), "b": (0.7, 0.72, 0.69, 0.71)}), ())

    assert found == {
        "b": "its baseline is 30 % slower than that of a on 4 blocks in common; find out what slows it, "
        "or count it all the same: hardware.node_tolerance=null"
    }


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        pytest.param({"a": (1, 1, 1, 1)}, set(), id="the only node"),
        pytest.param({"a": (1, 1, 1, 1), "b": (0.9, 0.88, 0.9, 0.89)}, set(), id="within the tolerance"),
        pytest.param({"a": (1, 1, 1, 1), "b": (0.2, 1, 1, 1)}, set(), id="one bad block is noise"),
        pytest.param({"a": (1,), "b": (0.5,)}, set(), id="one block in common says nothing"),
        pytest.param({"a": (1, 1, 1, 1), "b": (0.5,) * 4, "c": (0.98,) * 4}, {"b"}, id="one of three"),
        pytest.param({"a": (1,) * 4, "b": (0.5,) * 4, "c": (0.5,) * 4}, set(), id="most nodes are the fleet"),
        pytest.param(
            {"a": (1,) * 4, "b": (1,) * 4, "c": (0.5,) * 4, "d": (0.5,) * 4}, {"c", "d"}, id="half, the slower"
        ),
        pytest.param({"a": (1,) * 4, "b": (0.5,) * 4, "c": (0.4,)}, {"b"}, id="one has just begun"),
    ],
)
def test_who_is_set_aside(plan: Plan, speeds: dict[str, Sequence[float]], expected: set[str]) -> None:
    assert aside(plan, openings(plan, speeds)) == expected


def test_only_valid_opening_baselines_count(plan: Plan) -> None:
    slow = openings(plan, {"b": (0.5,) * 4})
    fast = openings(plan, {"a": (1,) * 4})

    assert not aside(plan, [*fast, *(block.model_copy(update={"void_reason": "x"}) for block in slow)])
    assert not aside(plan, [*fast, *(block.model_copy(update={"phase": "closing"}) for block in slow)])
    assert not aside(plan, [*fast, *(block.model_copy(update={"arm_id": "other"}) for block in slow)])


def test_memory_slower_by_more_than_twice_the_tolerance_sets_aside(plan: Plan) -> None:
    equal = openings(plan, {"a": (1,) * 4, "b": (1,) * 4})

    assert aside(plan, equal, [probed("a", 100), probed("b", 69)]) == {"b"}
    assert not aside(plan, equal, [probed("a", 100), probed("b", 71)])
    assert not aside(plan, equal, [probed("a", 100), probed("b", 69), probed("b", 95)])  # it was disturbed once
    assert not aside(plan, equal, [probed("a", 100), probed("b", None)])


def test_slow_memory_of_the_faster_node_leaves_it(plan: Plan) -> None:
    """What the engine does there decides; and one node has to stay."""
    blocks = openings(plan, {"a": (1,) * 4, "b": (0.5,) * 4})

    assert aside(plan, blocks, [probed("a", 50), probed("b", 100)]) == {"b"}


def test_no_tolerance_sets_no_node_aside(plan: Plan) -> None:
    blocks = openings(plan, {"a": (1,) * 4, "b": (0.1,) * 4})

    assert not set_aside(plan, Hardware(name="local", node_tolerance=None), blocks, ())


def slow_board(plan: Plan, policy: Policy, folder: Path) -> Board:
    """b has opened at 0.6 of a's speed; a has not come yet."""
    sweep_dir = SweepDir(folder)
    board = Board(plan, policy, Ledger(sweep_dir.ledger_path, judge(plan, LOCAL)), sweep_dir)
    [opening] = visits(board, "b", 0.6, most=1)
    assert opening.phase == "opening"
    return board


def visits(board: Board, node: str, speed: float, most: int = 100) -> list[Visit]:
    """What the node is given, one visit after the other, and measures."""
    done: list[Visit] = []
    while len(done) < most and (visit := board.next_visit([node])):
        for event in answers(board.plan, visit):
            if isinstance(event, MeasuredBlock):
                rate = 100 * speed * (1 + 0.01 * event.record.block_index)
                record = event.record.model_copy(update={"wall_s": event.record.output_tokens / rate})
                board.take(event.model_copy(update={"record": record}))
            else:
                board.take(event)
        done.append(visit)
    return done


@pytest.mark.parametrize("policy", POLICIES, ids=["grid", "adaptive"])
def test_what_a_slow_node_measured_is_measured_elsewhere(plan: Plan, policy: Policy, tmp_path: Path) -> None:
    """b measures an arm before a has opened and shows that b is slow."""
    board = slow_board(plan, policy, tmp_path)
    [early] = visits(board, "b", 0.6, most=1)
    assert early.phase == "arm"
    assert not board.ledger.set_aside

    given = visits(board, "a", 1.0)

    assert list(board.ledger.set_aside) == ["b"]
    assert board.next_visit(["a", "b"]) is None
    assert [visit.phase for visit in given] == ["opening", "arm", "arm", "closing"]
    assert policy.is_complete(plan, board.ledger)
    assert {block.node for block in board.ledger.valid_blocks()} == {"a"}
    assert len(board.ledger.valid_blocks()) == 4 * 4
    assert len(board.ledger.blocks()) == 4 * 4 + 2 * 4  # what b measured stays on record
    again = Ledger(board.ledger.path, judge(plan, LOCAL))
    assert (again.valid_blocks(), again.set_aside) == (board.ledger.valid_blocks(), board.ledger.set_aside)
    assert not policy.is_complete(plan, Ledger(board.ledger.path))  # were b to count, it would owe its closing


def test_arm_under_way_on_a_slow_node_is_given_to_another_at_once(plan: Plan, tmp_path: Path) -> None:
    board = slow_board(plan, POLICIES[0], tmp_path)
    on_b = board.next_visit(["b"])
    assert on_b is not None

    given = visits(board, "a", 1.0)

    assert on_b.arm.id in [visit.arm.id for visit in given]
    for event in answers(plan, on_b):  # late, and measured already
        board.take(event)
    assert {block.node for block in board.ledger.valid_blocks()} == {"a"}
    assert not board.running


def test_failed_visits_on_a_slow_node_use_up_no_attempt(plan: Plan, tmp_path: Path) -> None:
    board = slow_board(plan, POLICIES[0], tmp_path)
    while visit := board.next_visit(["b"]):
        board.take(finished(visit, error="crashed"))

    visits(board, "a", 1.0)

    assert POLICIES[0].is_complete(plan, board.ledger)


def test_node_counts_again_where_the_fleet_turns_out_to_be_as_slow(plan: Plan, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", judge(plan, LOCAL))
    for block in openings(plan, {"a": (1,) * 4, "b": (0.5,) * 4}):
        ledger.append(block)
    arm_on_b = block_record(plan, plan.arms[1], plan.blocks[0], node="b")
    arm_on_a = block_record(plan, plan.arms[1], plan.blocks[0], node="a")
    assert ledger.append(arm_on_b)
    assert ledger.append(arm_on_a)
    assert not ledger.append(arm_on_a)
    assert arm_on_b not in ledger.valid_blocks()

    for block in openings(plan, {"c": (0.5,) * 4}):
        ledger.append(block)

    assert not ledger.set_aside
    assert arm_on_b in ledger.valid_blocks()
    assert arm_on_a not in ledger.valid_blocks()  # each measurement counts once, the first
