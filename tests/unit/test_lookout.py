"""Whom a sweep waits for no longer: nodes that left, nodes that hang; and whom it expects back."""

from pathlib import Path

import pytest

from orchestrator import lookout as module
from orchestrator.board import Board
from orchestrator.config import Cluster, SweepConfig
from orchestrator.ledger import Ledger
from orchestrator.lookout import Lookout
from orchestrator.policy import Grid
from orchestrator.records import Visit
from orchestrator.sweep_dir import SweepDir
from tests.unit.builders import answers, make_config, plan_of

CLUSTER = Cluster(silence_grace_s=60, node_return_s=120)
REQUEST_TIMEOUT_S = 100_000
BOTH = {"a": "ray-1", "b": "ray-2"}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Sweep:
    """A board of a grid of two arms, and its lookout."""

    def __init__(self, folder: Path, config: SweepConfig) -> None:
        sweep_dir = SweepDir(folder)
        self.board = Board(plan_of(config), Grid(seed=0, max_attempts=2), Ledger(sweep_dir.ledger_path), sweep_dir)
        self.lookout = Lookout(self.board, config)
        self.lookout.usable(BOTH)

    def begin(self, trial_id: str, node: str = "a") -> Visit:
        visit = self.board.next_visit([node])
        assert visit
        self.lookout.begin(trial_id, visit, BOTH[node])
        return visit

    def finish(self, trial_id: str, node: str = "a") -> None:
        for event in answers(self.board.plan, self.begin(trial_id, node)):
            self.board.take(event)
        self.lookout.end(trial_id, BOTH)

    def errors(self) -> list[tuple[str | None, bool]]:
        return [(visit.error, visit.blames_node) for visit in self.board.ledger.visits()]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def sweep(tmp_path: Path, clock: Clock) -> Sweep:
    config = make_config([1, 3])
    workload = config.workload.model_copy(update={"request_timeout_s": REQUEST_TIMEOUT_S})
    return Sweep(tmp_path, config.model_copy(update={"cluster": CLUSTER, "workload": workload}))


def test_visit_whose_node_left_is_lost_also_while_it_waits_for_it(sweep: Sweep) -> None:
    sweep.begin("t1", "b")
    assert sweep.lookout.give_up() == []

    sweep.lookout.usable({"a": "ray-1", "b": "ray-3"})  # Ray was restarted there

    assert sweep.lookout.give_up() == ["t1"]
    assert sweep.errors() == [("node b left the cluster", True)]
    assert sweep.lookout.give_up() == []


def test_visit_that_waits_for_its_node_may_wait_for_ever(sweep: Sweep, clock: Clock) -> None:
    sweep.begin("t1")
    clock.now_s += 1e6
    assert sweep.lookout.give_up() == []


def test_silent_visit_is_lost_after_its_servers_start_and_the_longest_its_requests_may_take(
    sweep: Sweep, clock: Clock
) -> None:
    sweep.begin("t1")
    sweep.lookout.hear("t1", has_measured=False)
    # Grace, fetching the model, ready_timeout_s, warm-ups and a block of two requests.
    limit_s = 60 + 7200 + 900 + 3 * 2 * REQUEST_TIMEOUT_S
    clock.now_s += limit_s - 1
    assert sweep.lookout.give_up() == []
    clock.now_s += 1

    assert sweep.lookout.give_up() == ["t1"]
    [(reason, blames_node)] = sweep.errors()
    assert reason is not None
    assert reason.startswith(f"nothing was heard of node a for {limit_s:.0f} s: it hangs")
    assert blames_node


def test_once_blocks_were_measured_silence_is_judged_by_how_long_they_took(sweep: Sweep, clock: Clock) -> None:
    sweep.finish("t1")
    slowest_s = max(block.wall_s for block in sweep.board.ledger.blocks())
    sweep.begin("t2")
    sweep.lookout.hear("t2", has_measured=True)
    limit_s = 60 + 10 + 3 * 10 * slowest_s  # grace, stop_grace_s, ten times the slowest
    clock.now_s += limit_s - 1
    assert sweep.lookout.give_up() == []
    sweep.lookout.hear("t2", has_measured=True)
    clock.now_s += limit_s - 1
    assert sweep.lookout.give_up() == []
    clock.now_s += 1
    assert sweep.lookout.give_up() == ["t2"]


def test_node_that_hangs_gets_nothing_until_ray_was_restarted_there(sweep: Sweep, clock: Clock) -> None:
    sweep.begin("t1")
    sweep.lookout.hear("t1", has_measured=False)
    clock.now_s += 1e6
    sweep.lookout.give_up()

    assert sweep.lookout.usable(BOTH) == {"b": "ray-2"}
    assert sweep.lookout.usable({**BOTH, "a": "ray-3"}) == {"a": "ray-3", "b": "ray-2"}


def test_end_waits_for_a_node_that_left_without_a_closing_baseline_but_not_for_long(sweep: Sweep, clock: Clock) -> None:
    sweep.finish("opening", "b")
    assert not sweep.lookout.expects_node_back()
    sweep.finish("arm", "b")
    sweep.lookout.usable({"a": "ray-1"})
    assert sweep.lookout.expects_node_back()

    clock.now_s += CLUSTER.node_return_s + 1

    assert not sweep.lookout.expects_node_back()
    assert sweep.board.gone() == ["b"]


def test_worker_that_died_is_no_fault_of_a_node_that_is_still_there(sweep: Sweep) -> None:
    sweep.begin("t1")
    sweep.lookout.end("t1", BOTH)
    sweep.begin("t2")
    sweep.lookout.end("t2", {"b": "ray-2"})
    sweep.begin("t3")
    sweep.lookout.end("t3", BOTH, unreachable=True)

    assert sweep.errors() == [
        ("the node's worker process died", False),
        ("node a left the cluster", True),
        ("node a does not answer", True),
    ]
