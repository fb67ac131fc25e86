"""The adaptive search: what is measured, what is dropped, when it ends; plan and ledger alone decide."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from benchmarks.landscapes import KINDS
from benchmarks.simulate_search import simulate_one
from orchestrator.adaptive import Adaptive
from orchestrator.budget import Budget
from orchestrator.config import Search, SelectionRules
from orchestrator.plan import Plan
from orchestrator.policies import policy_for
from orchestrator.policy import Grid
from orchestrator.records import Block, BlockRecord, SpecCounters, Visit
from orchestrator.worth import Worth
from tests.unit.builders import answer, make_config, make_plan
from tests.unit.fleet import Fleet

Speedup = Callable[[str, int], float]
"""Dataset, k -> the arm's speedup."""

NUM_DRAFTS = 1000


def middle(dataset: str, k: int) -> float:
    """Best at 5 on code, never a gain on chat."""
    tokens = 1 + sum((0.85 if dataset == "code" else 0.2) ** position for position in range(1, k + 1))
    return tokens / (1.1 + 0.12 * k)


def counters(dataset: str, k: int) -> SpecCounters:
    chance = 0.85 if dataset == "code" else 0.2
    accepted = tuple(round(NUM_DRAFTS * chance**position) for position in range(1, k + 1))
    return SpecCounters(
        num_drafts=NUM_DRAFTS,
        num_draft_tokens=NUM_DRAFTS * k,
        num_accepted_tokens=sum(accepted),
        num_accepted_tokens_per_pos=accepted,
    )


class Measuring(Fleet):
    """Nodes that measure `speedup` with little noise."""

    def __init__(
        self, plan: Plan, path: Path, speedup: Speedup = middle, noise: float = 0.01, **search: object
    ) -> None:
        self.adaptive = adaptive(**search)
        super().__init__(plan, self.adaptive, path)
        self.speedup, self.noise = speedup, noise

    def measure(self, visit: Visit, block: Block) -> BlockRecord:
        dataset = next(cell.dataset for cell in self.plan.workloads if cell.id == block.workload_id)
        k = visit.arm.num_speculative_tokens
        scatter = 1 + Random(f"{visit.arm.name}/{block.id}").gauss(0, self.noise)
        rate = 100 * scatter * (self.speedup(dataset, k) if k else 1)
        return answer(self.plan, visit, block, tokens_per_s=rate, counters=counters(dataset, k) if k else None).record

    def run(self, node: str = "a") -> list[Visit]:
        visits = []
        while visit := self.start(node):
            visits.append(visit)
            self.end(visit)
        return visits

    def indices(self, visit: Visit, dataset: str) -> list[int]:
        cells = {cell.id for cell in self.plan.workloads if cell.dataset == dataset}
        return [b.index for b in self.plan.blocks if b.id in visit.block_ids and b.workload_id in cells]


def adaptive(**search: object) -> Adaptive:
    found = Search.model_validate({"strategy": "adaptive", **search})
    budget = Budget(max_blocks=found.max_blocks, max_node_hours=found.max_node_hours)
    return Adaptive(search=found, rules=SelectionRules(), budget=budget)


def ks(visits: Sequence[Visit], phase: str = "arm") -> list[int]:
    return [visit.arm.num_speculative_tokens for visit in visits if visit.phase == phase]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def plan() -> Plan:
    return make_plan(range(1, 16), datasets=("code", "chat"))


# --- order and pruning


def test_baseline_comes_first_then_the_largest_k_and_the_baseline_closes(plan: Plan, path: Path) -> None:
    visits = Measuring(plan, path).run()

    assert [visit.phase for visit in visits] == ["opening", *["arm"] * (len(visits) - 2), "closing"]
    assert visits[1].arm.num_speculative_tokens == 15


def test_finds_the_best_k_and_leaves_many_out(plan: Plan, path: Path) -> None:
    fleet = Measuring(plan, path)

    measured = ks(fleet.run())

    best = max(range(1, 16), key=lambda k: middle("code", k))
    assert max(middle("code", k) for k in measured) > 0.98 * middle("code", best)
    assert len(measured) <= 9
    assert fleet.policy.is_complete(plan, fleet.ledger)


def test_workload_where_speculation_cannot_gain_gets_no_blocks_of_most_arms(plan: Plan, path: Path) -> None:
    fleet = Measuring(plan, path)

    visits = [visit for visit in fleet.run() if visit.phase == "arm"]

    on_chat = [visit for visit in visits if fleet.indices(visit, "chat")]
    assert len(on_chat) < len(visits)


def test_arm_that_may_become_the_one_setting_for_all_is_measured_on_all_workloads(plan: Plan, path: Path) -> None:
    fleet = Measuring(plan, path)

    visits = [visit for visit in fleet.run() if visit.phase == "arm"]

    on_code = [visit for visit in visits if fleet.indices(visit, "code")]
    best = max(on_code, key=lambda visit: middle("code", visit.arm.num_speculative_tokens))
    assert any(fleet.indices(visit, "chat") for visit in visits if visit.arm == best.arm)


def test_peak_that_the_prediction_does_not_expect_is_found_where_curves_are_known_to_be_rough(path: Path) -> None:
    def jagged(dataset: str, k: int) -> float:
        return middle(dataset, k) * (1.12 if k % 2 else 0.9)

    plan = make_plan(range(1, 16))
    measured = ks(Measuring(plan, path, jagged).run())

    best = max(range(1, 16), key=lambda k: jagged("code", k))
    assert max(jagged("code", k) for k in measured) > 0.97 * jagged("code", best)


def test_nothing_gains_ends_after_a_few_arms(plan: Plan, path: Path) -> None:
    fleet = Measuring(plan, path, lambda dataset, k: 0.3 * middle("chat", k))

    assert len(ks(fleet.run())) <= 3
    assert fleet.policy.is_complete(plan, fleet.ledger)


def test_without_counters_every_arm_is_measured(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.test_adaptive.counters", lambda dataset, k: None)
    fleet = Measuring(make_plan(range(1, 7)), path)

    measured = ks(fleet.run())

    assert measured[:2] == [6, 1]
    assert set(measured) == set(range(1, 7))


# --- blocks


def test_visit_takes_all_planned_blocks_where_the_rest_is_cheaper_than_a_server_start(plan: Plan, path: Path) -> None:
    fleet = Measuring(plan, path)

    visits = fleet.run()

    assert all(fleet.indices(visit, "code") in ([0, 1, 2, 3], []) for visit in visits)
    assert len(set(ks(visits))) == len(ks(visits))


def test_long_blocks_are_measured_few_at_first_and_more_only_of_arms_that_may_win(path: Path) -> None:
    plan = make_plan([1, 5, 15], num_blocks=12)
    fleet = Measuring(plan, path, lambda dataset, k: {1: 1.5, 5: 1.52, 15: 0.7}[k], noise=0.05)

    visits = fleet.run()

    first = {k: next(v for v in visits if v.arm.num_speculative_tokens == k) for k in (15, 5)}
    assert fleet.indices(first[15], "code") == [0, 1, 2]
    assert ks(visits).count(15) == 1


def test_opening_baseline_is_extended_before_an_arm_that_needs_more_blocks(path: Path) -> None:
    plan = make_plan([1, 5, 15], num_blocks=12)
    fleet = Measuring(plan, path, lambda dataset, k: {1: 1.05, 5: 1.06, 15: 1.04}[k], noise=0.08)

    baseline_has: set[str] = set()
    for visit in fleet.run():
        if visit.phase == "opening":
            baseline_has |= set(visit.block_ids)
        if visit.phase == "arm":
            assert set(visit.block_ids) <= baseline_has


def test_closing_baseline_measures_the_blocks_that_arms_used(plan: Plan, path: Path) -> None:
    fleet = Measuring(plan, path)

    visits = fleet.run()

    used = {block_id for visit in visits if visit.phase == "arm" for block_id in visit.block_ids}
    assert set(visits[-1].block_ids) == used


# --- resume, failures, nodes


def test_resume_goes_on_from_plan_and_ledger_alone(plan: Plan, tmp_path: Path) -> None:
    whole = Measuring(plan, tmp_path / "whole")
    expected = whole.run()
    first = Measuring(plan, tmp_path / "cut")
    for _ in range(3):
        visit = first.start()
        assert visit
        first.end(visit)

    rest = Measuring(plan, tmp_path / "cut").run()

    assert [visit.block_ids for visit in rest] == [visit.block_ids for visit in expected[3:]]
    assert ks(rest) == ks(expected[3:])


def test_settled_sweep_asks_for_nothing_more(plan: Plan, path: Path) -> None:
    fleet = Measuring(plan, path)
    fleet.run()

    again = Measuring(plan, path)

    assert again.start() is None
    assert again.policy.is_complete(plan, again.ledger)


def test_interrupted_visit_is_tried_again_with_what_is_missing_and_then_given_up(plan: Plan, path: Path) -> None:
    fleet = Measuring(plan, path)
    opening = fleet.start()
    assert opening
    fleet.end(opening)
    tries = []
    for _ in range(2):
        visit = fleet.start()
        assert visit
        tries.append(visit)
        fleet.end(visit, num_blocks=1)

    assert [visit.arm.num_speculative_tokens for visit in tries] == [15, 15]
    assert tries[0].block_ids[0] not in tries[1].block_ids
    assert 15 not in ks(fleet.run())
    assert not fleet.policy.is_complete(plan, fleet.ledger)


def test_second_node_takes_another_arm_and_closes_only_when_no_arm_is_under_way(plan: Plan, path: Path) -> None:
    fleet = Measuring(plan, path)
    for node in ("a", "b"):
        opening = fleet.start(node)
        assert opening
        fleet.end(opening)
    first, second = fleet.start("a"), fleet.start("b")

    assert first
    assert second
    assert first.arm.num_speculative_tokens == 15
    assert second.arm.num_speculative_tokens < 15
    fleet.end(second)
    while (visit := fleet.start("b")) is not None:
        assert visit.phase == "arm"
        fleet.end(visit)


def test_closing_baseline_changes_nothing_of_what_was_worth_measuring(plan: Plan, path: Path) -> None:
    fleet = Measuring(plan, path)
    while (visit := fleet.start()) and visit.phase != "closing":
        fleet.end(visit)
    assert visit
    before = Worth(plan, fleet.ledger, fleet.adaptive.search, fleet.adaptive.rules).workloads

    fleet.noise = 0.2
    fleet.end(visit)

    assert Worth(plan, fleet.ledger, fleet.adaptive.search, fleet.adaptive.rules).workloads == before


# --- budget and configuration


def test_budget_of_blocks_is_kept_with_both_baselines(plan: Plan, path: Path) -> None:
    fleet = Measuring(plan, path, max_blocks=30)

    visits = fleet.run()

    assert visits[-1].phase == "closing"
    assert len(fleet.ledger.valid_blocks()) <= 30
    assert fleet.policy.is_complete(plan, fleet.ledger)


def test_larger_budget_continues_a_sweep_that_had_spent_its_own(plan: Plan, path: Path) -> None:
    small = Measuring(plan, path, max_blocks=30)
    small.run()

    more = Measuring(plan, path)

    assert not more.policy.is_complete(plan, more.ledger)
    assert ks(more.run())


def test_budget_of_node_hours_is_kept(plan: Plan, path: Path) -> None:
    fleet = Measuring(plan, path, max_node_hours=0.05)

    fleet.run()

    assert sum(visit.wall_s for visit in fleet.ledger.visits()) <= 180


def test_dropped_arms_are_named_with_the_reason(plan: Plan, path: Path) -> None:
    fleet = Measuring(plan, path)
    measured = ks(fleet.run())

    dropped = fleet.policy.dropped(plan, fleet.ledger)

    code = plan.workloads[0].id
    unmeasured = {arm.id for arm in plan.arms[1:] if arm.num_speculative_tokens not in measured}
    assert {arm_id for arm_id, cell_id in dropped if cell_id == code} >= unmeasured
    assert set(dropped.values()) == {"predicted to gain nothing worth its time"}


def test_configuration_chooses_the_search() -> None:
    def policy(**search: object) -> object:
        return policy_for(make_config().model_copy(update={"search": Search.model_validate(search)}))

    assert isinstance(policy(confirm=False), Grid)
    assert isinstance(policy(strategy="adaptive", confirm=False), Adaptive)


def test_budget_with_the_grid_is_refused_since_nothing_would_keep_to_it() -> None:
    with pytest.raises(
        ValueError, match="max_blocks: only search=adaptive and search=optuna read it, but search is grid"
    ):
        Search(strategy="grid", max_blocks=10)


# --- on simulated machines


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("jagged", "flat")])
def test_choice_is_near_the_best_for_less_than_half_of_the_grids_machine_time(kind: str) -> None:
    regrets, ratios = [], []
    for seed in range(3):
        found, grid = simulate_one(kind, seed)
        regrets += found.regrets
        ratios.append(found.machine_s / grid.machine_s)

    assert sum(regrets) / len(regrets) < 0.02
    assert sum(ratios) / len(ratios) < 0.5
