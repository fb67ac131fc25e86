"""search=optuna: what is proposed, judged and left out; plan and ledger alone decide."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from orchestrator.config import Search, Space, SweepConfig
from orchestrator.ledger import Ledger
from orchestrator.optuna_search import OptunaSearch
from orchestrator.policies import policy_for
from orchestrator.records import Arm, Block, BlockRecord, Visit
from tests.unit.builders import answer, block_record, make_config, plan_of
from tests.unit.fleet import Fleet

SPACE = Space(
    max_num_seqs=(16, 32, 64),
    max_num_batched_tokens=(512, 2048, 8192),
    enforce_eager=(False, True),
    omp_threads_bind=("auto", "nobind", "0-3|4-7"),
)
"""With five k 270 arms."""

LogSpeedup = Callable[[Arm], float]


def make(num_proposals: int = 12, *, seed: int = 0, space: Space = SPACE, **search: object) -> SweepConfig:
    asked = Search.model_validate({"strategy": "optuna", "num_proposals": num_proposals, "confirm": False, **search})
    config = make_config((1, 3, 5, 7, 15), num_blocks=2, seed=seed)
    return config.model_copy(update={"search": asked, "space": space})


def separable(seed: int) -> LogSpeedup:
    """Every key adds its own share, numbers with a peak somewhere."""
    rng = Random(seed)
    peaks = {key: rng.choice(values) for key, values in {"k": (1, 3, 5, 7, 15), **SPACE.axes}.items()}
    weights = {key: rng.uniform(0.1, 0.5) for key in peaks}

    def log_speedup(arm: Arm) -> float:
        found = {"k": arm.num_speculative_tokens, **arm.settings}
        return -sum(weights[key] * _off(peak, found.get(key, peak)) for key, peak in peaks.items())

    return log_speedup


def _off(peak: object, value: object) -> float:
    if type(peak) is int and type(value) is int:
        return min(1.0, abs(math.log(value / peak)) / math.log(16))
    return float(peak != value)


class Noisy(Fleet):
    """Nodes that measure `log_speedup` with a little noise."""

    def __init__(self, config: SweepConfig, path: Path, log_speedup: LogSpeedup | None = None) -> None:
        policy = policy_for(config)
        assert isinstance(policy, OptunaSearch)
        super().__init__(plan_of(config), policy, path)
        self.log_speedup = log_speedup or separable(0)

    def measure(self, visit: Visit, block: Block) -> BlockRecord:
        gain = 0.0 if visit.arm.is_baseline else self.log_speedup(visit.arm)
        noise = Random(f"{visit.arm.name}/{block.id}/{visit.phase}").gauss(0, 0.01)
        return answer(self.plan, visit, block, tokens_per_s=100 * math.exp(gain + noise)).record

    def run(self, node: str = "a", most: int = 1000) -> list[Visit]:
        visits: list[Visit] = []
        while len(visits) < most and (visit := self.start(node)):
            visits.append(visit)
            self.end(visit)
        return visits

    @property
    def is_complete(self) -> bool:
        return self.policy.is_complete(self.plan, self.ledger)


def arms(visits: list[Visit]) -> list[str]:
    return [visit.arm.name for visit in visits if visit.phase == "arm"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


# --- visits


def test_proposals_are_measured_whole_between_two_baselines_and_never_twice(path: Path) -> None:
    fleet = Noisy(make(num_proposals=12), path)

    visits = fleet.run()

    assert [visit.phase for visit in visits] == ["opening", *["arm"] * 12, "closing"]
    assert len(set(arms(visits))) == 12
    assert all(len(visit.block_ids) == len(fleet.plan.blocks) for visit in visits)
    assert fleet.is_complete


def test_small_plan_is_measured_whole_and_no_arm_twice(path: Path) -> None:
    fleet = Noisy(make(num_proposals=50, space=Space(enforce_eager=(False, True))), path)

    assert len(arms(fleet.run())) == len(set(arms(fleet.started))) == 10
    assert fleet.is_complete


def test_without_a_space_it_searches_k_alone(path: Path) -> None:
    assert len(arms(Noisy(make(num_proposals=3, space=Space()), path).run())) == 3


def test_space_of_one_value_is_no_axis(path: Path) -> None:
    fleet = Noisy(make(num_proposals=3, space=Space(max_num_seqs=(32,), omp_threads_bind=("nobind",))), path)

    assert len(arms(fleet.run())) == 3


@pytest.mark.parametrize("grid", [(), (7,)])
def test_plan_with_nothing_to_choose_is_measured_whole(path: Path, grid: tuple[int, ...]) -> None:
    config = make_config(grid, num_blocks=2).model_copy(update={"search": Search(strategy="optuna", confirm=False)})
    fleet = Noisy(config, path)

    assert [visit.phase for visit in fleet.run()] == ["opening", *["arm"] * len(grid), "closing"]
    assert fleet.is_complete


# --- what is proposed


def test_proposals_follow_from_the_seed(tmp_path: Path) -> None:
    runs = [arms(Noisy(make(seed=seed), tmp_path / f"{run}").run()) for run, seed in enumerate([0, 0, 1])]

    assert runs[0] == runs[1] != runs[2]


def test_another_process_proposes_the_same(path: Path) -> None:
    fleet = Noisy(make(), path)
    fleet.run(most=8)
    code = (
        "import sys, pathlib; from tests.unit.test_optuna_search import Noisy, make; "
        "print(Noisy(make(), pathlib.Path(sys.argv[1])).start().arm.name)"
    )

    run = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=60
    )

    expected = fleet.start()
    assert expected is not None
    assert run.stdout.strip() == expected.arm.name
    assert run.stderr == ""


@pytest.mark.parametrize("kept", [1, 4, 9])
def test_resume_goes_on_as_if_it_had_not_been_interrupted(tmp_path: Path, kept: int) -> None:
    expected = arms(Noisy(make(), tmp_path / "whole").run())
    Noisy(make(), tmp_path / "cut").run(most=1 + kept)

    rest = Noisy(make(), tmp_path / "cut").run()

    assert arms(rest) == expected[kept:]


def test_what_was_measured_decides_what_is_proposed(tmp_path: Path) -> None:
    up = Noisy(make(), tmp_path / "up", separable(1)).run()
    down = Noisy(make(), tmp_path / "down", lambda arm: -separable(1)(arm)).run()

    assert arms(up)[:5] == arms(down)[:5]
    assert arms(up) != arms(down)


def test_optimum_of_a_separable_landscape_is_found_far_better_than_by_chance(tmp_path: Path) -> None:
    regrets, by_chance = [], []
    for seed in range(6):
        fleet = Noisy(make(num_proposals=20, seed=seed), tmp_path / f"{seed}", separable(seed))
        fleet.run()
        truth = [fleet.log_speedup(arm) for arm in fleet.plan.arms[1:]]
        found = [fleet.log_speedup(visit.arm) for visit in fleet.started if visit.phase == "arm"]
        regrets.append(max(truth) - max(found))
        by_chance += [max(truth) - max(Random(draw).sample(truth, 20)) for draw in range(50)]

    assert fmean(regrets) < 0.5 * fmean(by_chance)


def test_value_is_the_paired_speedup_so_that_a_slow_node_does_not_count_against_its_arms(tmp_path: Path) -> None:
    plan = plan_of(make())
    proposals = []
    for run, slow in enumerate([1.0, 0.3]):
        ledger = Ledger(tmp_path / f"{run}")
        for at, arm in enumerate([plan.baseline, *plan.arms[1:40:4]]):
            node, rate = ("b", slow) if at % 2 else ("a", 1.0)
            for block in plan.blocks:
                gain = 1.0 if arm.is_baseline else math.exp(separable(0)(arm))
                ledger.append(block_record(plan, arm, block, 100 * rate * gain, node=node))
        for block in plan.blocks:
            ledger.append(block_record(plan, plan.baseline, block, 100 * slow, node="b"))
        visit = policy_for(make(num_proposals=30)).next_visit(plan, ledger, (), (), "a")
        assert visit is not None
        proposals.append(visit.arm.name)

    assert proposals[0] == proposals[1]


# --- failures and nodes


def test_interrupted_arm_is_finished_before_the_next_proposal(path: Path) -> None:
    fleet = Noisy(make(), path)
    fleet.run(most=3)
    cut = fleet.start()
    assert cut is not None
    fleet.end(cut, num_blocks=1)

    again = Noisy(make(), path).start()

    assert again is not None
    assert (again.arm, again.block_ids) == (cut.arm, cut.block_ids[1:])


def test_arm_that_fails_is_given_up_counts_as_a_proposal_and_keeps_the_sweep_incomplete(path: Path) -> None:
    fleet = Noisy(make(num_proposals=4), path)
    fleet.run(most=2)
    tries = []
    for _ in range(2):
        failing = fleet.start()
        assert failing is not None
        fleet.end(failing, num_blocks=0)
        tries.append(failing)

    rest = fleet.run()

    assert [failing.attempt for failing in tries] == [1, 2]
    assert not set(arms(tries)) & set(arms(rest))
    assert [visit.phase for visit in rest] == ["arm", "arm", "closing"]
    assert not fleet.is_complete


def test_nodes_take_different_arms_and_close_when_none_is_under_way(path: Path) -> None:
    fleet = Noisy(make(num_proposals=2), path)
    for node in ("a", "b", "c"):
        opening = fleet.start(node)
        assert opening is not None
        fleet.end(opening)
    first, second = fleet.start("a"), fleet.start("b")

    assert first is not None
    assert second is not None
    assert first.arm != second.arm
    assert fleet.start("c") is None
    fleet.end(first)
    fleet.end(second)
    assert [visit.phase for visit in fleet.run("c")] == ["closing"]


# --- limits


def test_larger_number_of_proposals_continues_where_the_smaller_ended(path: Path) -> None:
    first = arms(Noisy(make(num_proposals=4), path).run())

    more = Noisy(make(num_proposals=6), path)

    assert not more.is_complete
    rest = arms(more.run())
    assert len(rest) == 2
    assert not set(rest) & set(first)
    assert more.is_complete


def test_budget_of_blocks_is_kept_with_both_baselines(path: Path) -> None:
    fleet = Noisy(make(max_blocks=9), path)

    visits = fleet.run()

    assert [visit.phase for visit in visits] == ["opening", "arm", "arm", "closing"]
    assert len(fleet.ledger.valid_blocks()) == 8
    assert fleet.is_complete


def test_budget_of_node_hours_is_kept(path: Path) -> None:
    fleet = Noisy(make(max_node_hours=0.06), path)

    visits = fleet.run()

    assert visits[-1].phase == "closing"
    assert 2 <= len(arms(visits)) < 12
    assert sum(visit.wall_s for visit in fleet.ledger.visits()) <= 0.06 * 3600
    assert fleet.is_complete


def test_arms_never_proposed_are_named_with_the_reason(path: Path) -> None:
    fleet = Noisy(make(num_proposals=4), path)
    measured = {visit.arm.id for visit in fleet.run()}

    dropped = fleet.policy.dropped(fleet.plan, fleet.ledger)

    assert {arm_id for arm_id, _ in dropped} == {arm.id for arm in fleet.plan.arms} - measured
    assert set(dropped.values()) == {"not proposed by search=optuna"}


def test_policy_and_its_proposals_write_nothing(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Noisy(make(num_proposals=7), path).run()

    assert capfd.readouterr() == ("", "")
