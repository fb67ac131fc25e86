"""When a recommended setting is measured again: after the arms, before the node closes, as far as the budget takes."""

from collections.abc import Callable
from math import exp
from pathlib import Path

import pytest

from orchestrator.config import Search, SweepConfig
from orchestrator.confirming import Confirming
from orchestrator.policies import policy_for
from orchestrator.records import Arm, Block, BlockRecord, Visit
from tests.unit.builders import answer, make_config, plan_of
from tests.unit.fleet import Fleet

Speedup = Callable[[Arm, int], float]
"""Arm, concurrency -> how much faster than the baseline, which gives 100 tokens/s."""


def fastest_is_7(arm: Arm, concurrency: int) -> float:
    return {0: 1.0, 3: 1.3, 7: 1.6}[arm.num_speculative_tokens]


def crossing(arm: Arm, concurrency: int) -> float:
    """k=7 is best alone, k=3 with company: a schedule has both."""
    best_k = {1: 7, 4: 3}[concurrency]
    if arm.is_baseline:
        return 1.0
    return 2.0 if "schedule" in arm.name or arm.num_speculative_tokens == best_k else 1.2


class Exact(Fleet):
    """Nodes that measure `speedup` exactly."""

    def __init__(
        self,
        path: Path,
        speedup: Speedup = fastest_is_7,
        concurrencies: tuple[int, ...] = (1,),
        drift: float = 0.0,
        traffic: dict[int, float] | None = None,
        **search: object,
    ) -> None:
        """`drift`: of ln(tokens/s) from one visit to the next."""
        config = make_config([3, 7], concurrencies=concurrencies)
        workload = config.workload.model_copy(update={"traffic": traffic})
        self.config: SweepConfig = config.model_copy(
            update={"workload": workload, "search": Search.model_validate(search)}
        )
        super().__init__(plan_of(self.config), policy_for(self.config), path)
        self.speedup, self.drift = speedup, drift

    def measure(self, visit: Visit, block: Block) -> BlockRecord:
        place = self.started.index(visit)
        level = next(int(cell.level) for cell in self.plan.workloads if cell.id == block.workload_id)
        machine = 100 * exp(self.drift * place + 0.01 * (-1) ** block.index)
        rate = machine * self.speedup(visit.arm, level)
        started_utc = f"2026-08-01T10:{place:02}:00Z"
        return answer(self.plan, visit, block, tokens_per_s=rate, started_utc=started_utc).record

    def run(self, node: str = "a", until: str | None = None) -> list[Visit]:
        """All that is left, or up to the first visit of the phase `until`, which is left under way."""
        visits = []
        while visit := self.start(node):
            visits.append(visit)
            if visit.phase == until:
                break
            self.end(visit)
        return visits

    @property
    def arms(self) -> list[Arm]:
        """In the order they were measured."""
        return [visit.arm for visit in self.started if visit.phase == "arm"]

    @property
    def is_complete(self) -> bool:
        return self.policy.is_complete(self.plan, self.ledger)


def told(visits: list[Visit]) -> list[str]:
    return [f"{visit.phase} {visit.arm.name}" for visit in visits]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.mark.parametrize("strategy", ["grid", "adaptive"])
def test_recommended_setting_is_measured_again_after_the_arms_and_before_the_node_closes(
    path: Path, strategy: str
) -> None:
    fleet = Exact(path, strategy=strategy)

    visits = fleet.run()

    assert told(visits)[0] == "opening none"
    assert sorted(told(visits)[1:-2]) == ["arm dflash-k3", "arm dflash-k7"]
    assert told(visits)[-2:] == ["confirm dflash-k7", "closing none"]
    assert fleet.is_complete


def test_confirmation_measures_the_last_blocks_of_every_workload_of_the_mix(path: Path) -> None:
    fleet = Exact(path, concurrencies=(1, 4), first_blocks=3)

    confirming = fleet.run(until="confirm")[-1]

    indices = [block.index for block in fleet.plan.blocks if block.id in confirming.block_ids]
    assert sorted(indices) == [1, 1, 2, 2, 3, 3]


def test_level_without_a_share_of_the_traffic_is_not_measured_again(path: Path) -> None:
    fleet = Exact(path, concurrencies=(1, 4), traffic={1: 0.0, 4: 1.0})

    confirming = fleet.run(until="confirm")[-1]

    cells = {block.workload_id for block in fleet.plan.blocks if block.id in confirming.block_ids}
    assert cells == {fleet.plan.workloads[1].id}


def test_schedule_is_measured_again_too_and_what_held_is_complete(path: Path) -> None:
    fleet = Exact(path, crossing, concurrencies=(1, 4))

    visits = [visit for visit in told(fleet.run()) if visit.startswith("confirm")]

    assert len(visits) == 2
    assert "confirm dflash-schedule" in visits
    assert fleet.is_complete


def test_closing_baseline_that_changes_the_choice_brings_another_confirmation(path: Path) -> None:
    """The machine gets faster all the time: until the baseline closes, the arm measured last seems the better one."""
    fleet = Exact(path, drift=0.03)
    fleet.speedup = lambda arm, concurrency: {0: 1.6, 1: 1.57}[fleet.arms.index(arm)] if arm in fleet.arms else 1.0

    visits = [visit for visit in fleet.run() if visit.phase != "opening"]

    assert [visit.phase for visit in visits] == ["arm", "arm", "confirm", "closing", "confirm"]
    assert (visits[2].arm, visits[4].arm) == (visits[1].arm, visits[0].arm)
    assert fleet.is_complete


def test_confirmation_waits_for_arms_under_way_elsewhere_and_runs_on_one_node_only(path: Path) -> None:
    fleet = Exact(path)
    for node in ("a", "b"):
        opening = fleet.start(node)
        assert opening
        fleet.end(opening)
    arms = [fleet.start("a"), fleet.start("b")]
    assert arms[0]
    assert arms[1]
    fleet.end(arms[0])

    assert fleet.start("a") is None
    fleet.end(arms[1])
    confirming, meanwhile = fleet.start("a"), fleet.start("b")

    assert confirming
    assert confirming.phase == "confirm"
    assert meanwhile is None or meanwhile.phase == "closing"


def all_arms_on_a(fleet: Exact) -> None:
    """Both nodes have opened, and `a` has measured every arm."""
    for node in ("a", "b", "a", "a"):
        visit = fleet.start(node)
        assert visit
        fleet.end(visit)
    assert len(fleet.arms) == 2


@pytest.mark.parametrize("strategy", ["grid", "adaptive"])
def test_node_that_measured_nothing_but_a_confirmation_closes_too(path: Path, strategy: str) -> None:
    fleet = Exact(path, strategy=strategy)
    all_arms_on_a(fleet)

    confirming = fleet.start("b")
    assert confirming
    fleet.end(confirming)

    assert confirming.phase == "confirm"
    assert told(fleet.run("a")) == ["closing none"]
    assert not fleet.is_complete
    assert told(fleet.run("b")) == ["closing none"]
    assert fleet.is_complete


@pytest.mark.parametrize(("max_blocks", "is_taken"), [(25, False), (26, True)])
def test_budget_must_take_the_closing_baseline_that_a_confirmation_asks_for(
    path: Path, max_blocks: int, is_taken: bool
) -> None:
    """Two openings, two arms and one closing of 4 blocks; on `b` 3 blocks to confirm, and 3 to close."""
    fleet = Exact(path, strategy="adaptive", max_blocks=max_blocks)
    all_arms_on_a(fleet)

    assert (fleet.start("b") is not None) == is_taken


def test_failed_confirmation_is_tried_again_with_what_is_missing_and_then_given_up(path: Path) -> None:
    fleet = Exact(path, max_attempts=2)
    first = fleet.run(until="confirm")[-1]
    fleet.end(first, num_blocks=1)

    second = fleet.start()
    assert second
    assert (second.phase, second.attempt, second.block_ids) == ("confirm", 2, first.block_ids[1:])
    fleet.end(second, num_blocks=0)

    assert told(fleet.run()) == ["closing none"]
    assert not fleet.is_complete


def test_budget_that_does_not_take_a_confirmation_ends_without_one(path: Path) -> None:
    """16 blocks are both baselines and two arms."""
    fleet = Exact(path, strategy="adaptive", max_blocks=16)

    visits = told(fleet.run())

    assert "confirm" not in " ".join(visits)
    assert visits[-1] == "closing none"
    assert fleet.is_complete


def test_nothing_is_confirmed_where_the_baseline_wins(path: Path) -> None:
    fleet = Exact(path, lambda arm, concurrency: 1.0 if arm.is_baseline else 0.7)

    assert not [visit for visit in fleet.run() if visit.phase == "confirm"]
    assert fleet.is_complete


def test_resumed_sweep_confirms_from_plan_and_ledger_alone(path: Path) -> None:
    Exact(path).run(until="confirm")

    resumed = Exact(path)

    assert not resumed.is_complete
    assert told(resumed.run()) == ["confirm dflash-k7", "closing none"]
    assert Exact(path).is_complete


@pytest.mark.parametrize("strategy", ["grid", "adaptive"])
def test_confirmation_can_be_switched_off(path: Path, strategy: str) -> None:
    fleet = Exact(path, strategy=strategy, confirm=False)

    assert not [visit for visit in fleet.run() if visit.phase == "confirm"]
    assert fleet.is_complete


def test_confirmation_is_part_of_every_strategy_unless_switched_off() -> None:
    assert isinstance(policy_for(make_config()), Confirming)
