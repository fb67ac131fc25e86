"""A block of the baseline that stays void costs the pairs of that block on that node, and nothing else."""

from collections import Counter
from pathlib import Path

import pytest

from orchestrator.config import Search, SweepConfig
from orchestrator.decide import decide
from orchestrator.policies import policy_for
from orchestrator.records import Block, BlockRecord, Visit
from tests.unit.builders import answer, make_config, plan_of
from tests.unit.fleet import Fleet

STRATEGIES = ("grid", "adaptive", "optuna")


class Voiding(Fleet):
    """Nodes on which the baseline's blocks `void` (node, workload's dataset, index) never count."""

    def __init__(self, config: SweepConfig, path: Path, *void: tuple[str, str, int]) -> None:
        super().__init__(plan_of(config), policy_for(config), path)
        self.void = set(void)
        self.datasets = {cell.id: cell.dataset for cell in self.plan.workloads}

    def measure(self, visit: Visit, block: Block) -> BlockRecord:
        is_void = visit.arm.is_baseline and (visit.node, self.datasets[block.workload_id], block.index) in self.void
        rate = 100 * (1 + 0.2 * (visit.arm.num_speculative_tokens == 3)) + block.index
        return answer(
            self.plan, visit, block, tokens_per_s=rate, void_reason="a request ended short" if is_void else None
        ).record

    def run(self, node: str = "a", most: int = 100) -> list[Visit]:
        visits: list[Visit] = []
        while len(visits) < most and (visit := self.start(node)):
            visits.append(visit)
            self.end(visit)
        assert len(visits) < most
        return visits

    def measured(self, phase: str) -> Counter[tuple[str, int]]:
        """(dataset, index) -> valid blocks."""
        blocks = [block for block in self.ledger.valid_blocks() if block.phase == phase]
        return Counter((self.datasets[block.workload_id], block.block_index) for block in blocks)


def make(strategy: str, *, datasets: tuple[str, ...] = ("code",), confirm: bool = False) -> SweepConfig:
    search = Search.model_validate({"strategy": strategy, "confirm": confirm})
    return make_config([1, 3], datasets=datasets).model_copy(update={"search": search})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_but_the_pairs_of_a_block_that_stays_void_is_measured_and_selected(tmp_path: Path, strategy: str) -> None:
    config = make(strategy)
    fleet = Voiding(config, tmp_path / "ledger.jsonl", ("a", "code", 1))

    visits = fleet.run()

    assert [visit.phase for visit in visits] == ["opening", "opening", "arm", "arm", "closing"]
    assert fleet.measured("arm") == {("code", 0): 2, ("code", 2): 2, ("code", 3): 2}
    assert fleet.measured("closing") == {("code", 0): 1, ("code", 2): 1, ("code", 3): 1}
    [result] = decide(config, fleet.plan, fleet.ledger.valid_blocks()).workloads
    assert result.best is not None
    assert (result.verdict, result.best.num_speculative_tokens) == ("speculate", 3)
    assert [arm.num_blocks for arm in result.arms] == [3, 3, 3]


@pytest.mark.parametrize("strategy", ["grid", "optuna"])
def test_sweep_that_was_to_measure_it_stays_incomplete_and_tries_it_again_the_next_time(
    tmp_path: Path, strategy: str
) -> None:
    config, path = make(strategy), tmp_path / "ledger.jsonl"
    fleet = Voiding(config, path, ("a", "code", 1))
    fleet.run()
    assert not fleet.policy.is_complete(fleet.plan, fleet.ledger)

    again = Voiding(config, path)
    visits = again.run()

    assert [(visit.phase, len(visit.block_ids)) for visit in visits] == [
        ("opening", 1), ("arm", 1), ("arm", 1), ("closing", 1)
    ]  # fmt: skip
    assert again.policy.is_complete(again.plan, again.ledger)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_recommended_setting_is_confirmed_on_blocks_that_have_a_baseline(tmp_path: Path, strategy: str) -> None:
    fleet = Voiding(make(strategy, confirm=True), tmp_path / "ledger.jsonl", ("a", "code", 0))

    visits = fleet.run()

    assert [visit.phase for visit in visits][-2:] == ["confirm", "closing"]
    assert fleet.measured("confirm") == {("code", 1): 1, ("code", 2): 1, ("code", 3): 1}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_workload_of_which_the_baseline_has_nothing_is_left_out_and_the_others_are_measured(
    tmp_path: Path, strategy: str
) -> None:
    fleet = Voiding(
        make(strategy, datasets=("code", "chat")),
        tmp_path / "ledger.jsonl",
        *[("a", "chat", index) for index in range(4)],
    )

    visits = fleet.run()

    assert [visit.phase for visit in visits] == ["opening", "opening", "arm", "arm", "closing"]
    assert {dataset for dataset, _ in fleet.measured("arm")} == {"code"}
    assert not fleet.policy.is_complete(fleet.plan, fleet.ledger)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_node_whose_baseline_has_nothing_valid_measures_nothing(tmp_path: Path, strategy: str) -> None:
    fleet = Voiding(make(strategy), tmp_path / "ledger.jsonl", *[("a", "code", index) for index in range(4)])

    assert [visit.phase for visit in fleet.run()] == ["opening", "opening"]


def test_another_node_with_a_baseline_of_that_block_measures_what_is_missing(tmp_path: Path) -> None:
    fleet = Voiding(make("grid"), tmp_path / "ledger.jsonl", ("a", "code", 1))
    fleet.run("a")

    visits = fleet.run("b")

    assert [visit.phase for visit in visits] == ["opening", "arm", "arm", "closing"]
    assert fleet.measured("arm") == dict.fromkeys([("code", index) for index in range(4)], 2)
