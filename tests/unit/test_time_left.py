"""The time left: from the forecast at first, from what is measured later, and down one second a second."""

from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.config import Search, SweepConfig
from orchestrator.ledger import Ledger
from orchestrator.pace import PRIOR_STARTS
from orchestrator.plan import Plan
from orchestrator.policies import policy_for
from orchestrator.records import Arm, Visit, WorkloadCell
from orchestrator.time_left import Left, TimeLeft
from orchestrator.to_come import Dropped, to_come
from orchestrator.token_time import Range
from tests.unit.builders import answer, finished, make_config, plan_of

START_S, BLOCK_S, NUM_BLOCKS = 30.0, 10.0, 4
VISIT_S = START_S + NUM_BLOCKS * BLOCK_S


class Flat:
    """A forecast: every start and every block takes as long."""

    def load_s(self, arm: Arm, cell: WorkloadCell, num_requests: int) -> Range:
        return Range(BLOCK_S * num_requests / 2 / 2, BLOCK_S * num_requests / 2 * 2)

    def overhead_s(self, arm: Arm) -> Range:
        return Range(START_S / 3, START_S * 3)


class Sweep:
    """A sweep whose clock the test moves."""

    def __init__(self, folder: Path, foreseen: Flat | None, **search: object) -> None:
        settings = {"strategy": "grid", "confirm": False} | search
        self.config: SweepConfig = make_config((1, 3)).model_copy(update={"search": Search.model_validate(settings)})
        self.plan: Plan = plan_of(self.config)
        self.policy = policy_for(self.config)
        self.ledger = Ledger(folder / "ledger.jsonl")
        self.now_s = 1000.0
        self.dropped: Dropped = {}
        self._time = TimeLeft(self.config, self.plan, self.policy, foreseen)

    def continued(self) -> "Sweep":
        self._time.read(self.ledger)
        return self

    def begin(self, arm: Arm, phase: str = "arm", node: str = "a") -> Visit:
        ids = tuple(block.id for block in self.plan.blocks)
        found = Visit.model_validate(
            {
                "id": f"{arm.name}-{phase}-{node}",
                "arm": arm,
                "phase": phase,
                "node": node,
                "attempt": 1,
                "block_ids": ids,
            }
        )
        self._time.begin(found, self.now_s)
        return found

    def measure(self, visit: Visit, index: int, wall_s: float = BLOCK_S, **changes: object) -> None:
        self.now_s += wall_s
        record = answer(self.plan, visit, self.plan.blocks[index], wall_s=wall_s, **changes).record
        self.ledger.append(record)
        self._time.note_block(record)

    def finish(self, visit: Visit, start_s: float = START_S, blocks_s: float = NUM_BLOCKS * BLOCK_S) -> None:
        times = {"wall_s": start_s + blocks_s, "blocks_s": blocks_s}
        record = finished(visit).record.model_copy(update=times)
        self.ledger.append(record)
        self._time.note_visit(record)

    def visit(
        self, arm: Arm, phase: str = "arm", node: str = "a", start_s: float = START_S, block_s: float = BLOCK_S
    ) -> None:
        found = self.begin(arm, phase, node)
        self.now_s += start_s
        for index in range(NUM_BLOCKS):
            self.measure(found, index, block_s)
        self.finish(found, start_s, NUM_BLOCKS * block_s)

    def left(self) -> Left | None:
        running = self._time.running
        ahead = to_come(self.plan, self.ledger, self.policy, running, self.dropped, frozenset())
        self._time.update(ahead, self.ledger)
        return self._time.left(self.now_s)

    @property
    def left_s(self) -> float:
        left = self.left()
        assert left is not None
        return left.expected_s

    @property
    def baseline(self) -> Arm:
        return self.plan.baseline


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path, Flat())


def test_before_anything_is_measured_it_is_the_forecasts(sweep: Sweep) -> None:
    assert sweep.left_s == pytest.approx(4 * VISIT_S)


def test_without_a_forecast_nothing_is_said_until_a_block_is_measured(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, None)
    opening = sweep.begin(sweep.baseline, "opening")
    assert sweep.left() is None
    sweep.measure(opening, 0)
    assert sweep.left() is not None


def test_it_goes_down_second_by_second_while_a_server_starts_and_stands_still_where_that_takes_longer(
    sweep: Sweep,
) -> None:
    before_s = sweep.left_s
    sweep.begin(sweep.baseline, "opening")
    seen = []
    for _ in range(60):
        sweep.now_s += 1
        seen.append(sweep.left_s)
    assert seen[:30] == pytest.approx([before_s - passed for passed in range(1, 31)])
    assert all(later <= earlier for earlier, later in pairwise(seen))
    assert seen[-1] == pytest.approx(before_s - START_S - BLOCK_S)


def test_a_sweep_that_goes_as_foreseen_ends_when_it_was_foreseen_to(sweep: Sweep) -> None:
    """So no start is counted twice, nor any left out."""
    end_s = sweep.now_s + sweep.left_s
    for arm, phase in [(sweep.baseline, "opening"), *((arm, "arm") for arm in sweep.plan.arms[1:])]:
        visit = sweep.begin(arm, phase)
        sweep.now_s += START_S
        for index in range(NUM_BLOCKS):
            assert sweep.now_s + sweep.left_s == pytest.approx(end_s)
            sweep.measure(visit, index)
        sweep.finish(visit)
        assert sweep.now_s + sweep.left_s == pytest.approx(end_s)
    sweep.visit(sweep.baseline, "closing")
    assert sweep.left() is None


def test_what_blocks_and_starts_take_here_is_expected_of_those_to_come(sweep: Sweep) -> None:
    sweep.visit(sweep.baseline, "opening", start_s=3 * START_S, block_s=4 * BLOCK_S)
    start_s = START_S * (3 + PRIOR_STARTS) / (1 + PRIOR_STARTS)
    arm_s, closing_s = start_s + 4 * 2 * BLOCK_S, start_s + 4 * 4 * BLOCK_S
    assert sweep.left_s == pytest.approx(2 * arm_s + closing_s)


def test_an_earlier_session_tells_what_the_rest_takes(tmp_path: Path) -> None:
    Sweep(tmp_path, None).visit(Sweep(tmp_path, None).baseline, "opening", start_s=27.0, block_s=20.0)
    assert Sweep(tmp_path, None).continued().left_s == pytest.approx(3 * (27 + 4 * 20))


def test_nodes_share_the_arms_and_each_measures_its_own_baselines(sweep: Sweep) -> None:
    for node in ("a", "b"):
        sweep.visit(sweep.baseline, "opening", node)
    assert sweep.left_s == pytest.approx(VISIT_S + VISIT_S)


def test_a_void_block_asks_for_another_start(sweep: Sweep) -> None:
    sweep.visit(sweep.baseline, "opening")
    visit = sweep.begin(sweep.plan.arms[1])
    sweep.now_s += START_S
    before_s = sweep.left_s
    sweep.measure(visit, 0, void_reason="other processes")
    assert sweep.left_s == pytest.approx(before_s - BLOCK_S + START_S + BLOCK_S)


def test_what_the_search_dropped_takes_no_time(sweep: Sweep) -> None:
    sweep.dropped = {(sweep.plan.arms[1].id, sweep.plan.workloads[0].id): "clearly worse"}
    assert sweep.left_s == pytest.approx(3 * VISIT_S)


def test_a_search_that_may_stop_early_is_expected_to_and_says_what_it_takes_at_most(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Flat(), strategy="adaptive", confirm=True)
    sweep.config = sweep.config.model_copy(update={"speculation": make_config(range(1, 16)).speculation})
    sweep.plan = plan_of(sweep.config)
    sweep._time = TimeLeft(sweep.config, sweep.plan, sweep.policy, Flat())
    left = sweep.left()
    assert left is not None
    assert left.expected_s == pytest.approx((2 + 5) * VISIT_S + START_S + 3 * BLOCK_S)
    assert left.at_most_s == pytest.approx((2 + 15) * VISIT_S + 2 * (START_S + 3 * BLOCK_S))


def test_no_more_is_left_than_the_budget(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Flat(), strategy="adaptive", max_node_hours=100 / 3600)
    sweep.begin(sweep.baseline, "opening")
    sweep.now_s += 10
    assert sweep.left() == pytest.approx((90, 90))


def test_a_setting_that_is_only_confirmed_takes_as_long_as_the_arm_most_like_it(sweep: Sweep) -> None:
    for arm, phase in [(sweep.baseline, "opening"), *((arm, "arm") for arm in sweep.plan.arms[1:])]:
        sweep.visit(arm, phase)
    before_s = sweep.left_s
    sweep.begin(sweep.plan.arms[2].model_copy(update={"id": "schedule", "name": "schedule"}), "confirm")
    assert sweep.left_s == pytest.approx(before_s + VISIT_S)


def test_of_two_confirmations_one_is_expected(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Flat(), confirm=True)
    for arm, phase in [(sweep.baseline, "opening"), *((arm, "arm") for arm in sweep.plan.arms[1:])]:
        sweep.visit(arm, phase)
    confirmation_s = START_S + 3 * BLOCK_S
    assert sweep.left() == pytest.approx((confirmation_s + VISIT_S, 2 * confirmation_s + VISIT_S))
    sweep.visit(sweep.plan.arms[1], "confirm")
    assert sweep.left() == pytest.approx((VISIT_S, confirmation_s + VISIT_S))
