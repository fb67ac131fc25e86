"""Step times from whole requests: found again in blocks that were made from known ones."""

import random
from collections.abc import Mapping, Sequence
from statistics import fmean

import pytest

from orchestrator.break_even import break_evens, geometric_profile
from orchestrator.measured import fold
from orchestrator.plan import Plan
from orchestrator.records import Arm, BlockRecord, SpecCounters, WorkloadCell
from orchestrator.step_cost import StepCosts, expected_steps, tokens_per_step
from tests.unit.builders import QUIET, block_record, make_plan

PREFILL_S = 0.05
NUM_TOKENS = 128
PROFILES = {"code": (0.9, 0.8, 0.7), "chat": (0.2, 0.05, 0.01)}
RATIOS = {0: 1.0, 1: 1.1, 3: 1.5}
"""k -> time of a step over the baseline's."""


def step_s(k: int, level: int) -> float:
    return 0.01 * RATIOS[k] * (1 + 0.2 * level)


def made(plan: Plan, arm: Arm, workload: WorkloadCell, late_first_token_s: float = 0.0) -> list[BlockRecord]:
    """Blocks of requests that take prefill and the expected number of steps."""
    k, profile = arm.num_speculative_tokens, PROFILES[workload.dataset]
    steps = expected_steps(NUM_TOKENS - 1, profile[:k])
    e2e_s = PREFILL_S + steps * step_s(k, int(workload.level))
    requests = 100
    drafts = round(requests * steps)
    counters = SpecCounters(
        num_drafts=drafts,
        num_draft_tokens=drafts * k,
        num_accepted_tokens=sum(round(share * drafts) for share in profile[:k]),
        num_accepted_tokens_per_pos=tuple(round(share * drafts) for share in profile[:k]),
    )
    return [
        block_record(
            plan,
            arm,
            block,
            num_requests=requests,
            output_tokens=requests * NUM_TOKENS,
            wall_s=requests * e2e_s / int(workload.level),
            ttft_s=(PREFILL_S + late_first_token_s,) * requests,
            tpot_s=(None,) * requests,
            e2e_s=(e2e_s,) * requests,
            counters=counters if k else None,
        )
        for block in plan.blocks_of(workload.id)
    ]


def world(
    datasets: Sequence[str] = ("code", "chat"), levels: Sequence[int] = (1, 4), late: Mapping[int, float] | None = None
) -> StepCosts:
    plan = make_plan((1, 3), concurrencies=levels, datasets=datasets)
    late = late or {}
    blocks = [
        block
        for arm in plan.arms
        for workload in plan.workloads
        for block in made(plan, arm, workload, late.get(arm.num_speculative_tokens, 0.0))
    ]
    return StepCosts(plan, fold(blocks, QUIET).cells)


@pytest.mark.parametrize("profile", [(), (0.5,), (0.9, 0.8, 0.7), (0.95, 0.9, 0.85, 0.8, 0.75, 0.7)])
def test_expected_steps_are_those_of_simulated_requests(profile: tuple[float, ...]) -> None:
    rng = random.Random(1)

    def steps() -> int:
        left, taken = NUM_TOKENS - 1, 0
        while left > 0:
            draw = rng.random()
            left, taken = left - 1 - sum(draw < share for share in profile), taken + 1
        return taken

    assert expected_steps(NUM_TOKENS - 1, profile) == pytest.approx(fmean(steps() for _ in range(3000)), rel=0.01)


def test_step_times_are_found_from_whole_requests() -> None:
    costs = world()
    for workload in costs.plan.workloads:
        for arm in costs.plan.arms:
            expected = step_s(arm.num_speculative_tokens, int(workload.level))
            assert costs.step_s(arm, workload) == pytest.approx(expected, rel=0.03)


def test_a_first_token_that_the_client_sees_late_changes_no_step_time() -> None:
    plain, late = world(), world(late={0: 0.3, 1: 0.1})
    for workload in plain.plan.workloads:
        for arm in plain.plan.arms:
            assert late.step_s(arm, workload) == pytest.approx(plain.step_s(arm, workload))


def test_an_arm_breaks_even_where_its_tokens_make_up_for_its_step() -> None:
    costs = world()
    code = costs.plan.workloads[0]
    for arm in costs.plan.arms[1:]:
        assert costs.ratio(arm, code) == pytest.approx(RATIOS[arm.num_speculative_tokens], rel=0.03)


def test_the_speedup_follows_from_own_acceptance_and_the_other_datasets_steps() -> None:
    costs = world()
    for workload in costs.plan.workloads:
        baseline, *arms = [costs.cells[arm.id, workload.id] for arm in costs.plan.arms]
        for arm, cell in zip(costs.plan.arms[1:], arms, strict=True):
            measured = baseline.wall_s / cell.wall_s
            assert costs.predicted_from_others(arm, workload) == pytest.approx(measured, rel=0.03)


def test_a_single_dataset_predicts_nothing_from_others() -> None:
    costs = world(datasets=("code",))
    assert costs.predicted_from_others(costs.plan.arms[1], costs.plan.workloads[0]) is None


def test_drafting_time_is_known_only_where_a_baseline_level_tells_what_verifying_takes() -> None:
    costs = world()
    k1, k3 = costs.plan.arms[1:]
    at = {(cell.dataset, cell.max_concurrency): cell for cell in costs.plan.workloads}
    verify_s = step_s(0, 2)  # two positions, between the levels 1 and 4
    assert costs.drafting_s(k1, at["code", 1]) == pytest.approx(step_s(1, 1) - verify_s, abs=5e-4)
    assert costs.drafting_s(k3, at["code", 4]) is None  # 16 positions: no level of the baseline is that high


def test_what_was_not_measured_has_no_step_time() -> None:
    plan = make_plan((1,))
    costs = StepCosts(plan, {})
    assert costs.step_s(plan.baseline, plan.workloads[0]) is None
    assert costs.ratio(plan.arms[1], plan.workloads[0]) is None
    assert costs.drafting_s(plan.arms[1], plan.workloads[0]) is None
    assert break_evens(plan, {}) == ()


def test_a_priced_drafter_gets_the_speedup_of_one_that_accepts_as_much() -> None:
    costs = world(datasets=("code",), levels=(1,))
    rows = break_evens(costs.plan, costs.cells, PROFILES["code"])
    workload = costs.plan.workloads[0]
    baseline = costs.cells[costs.plan.baseline.id, workload.id].wall_s
    for row, arm in zip(rows, costs.plan.arms[1:], strict=True):
        measured = baseline / costs.cells[arm.id, workload.id].wall_s
        assert row.predicted_speedup == pytest.approx(measured, rel=0.03)


def test_a_drafter_is_priced_only_as_far_as_its_profile_reaches() -> None:
    costs = world()
    priced = {row.num_speculative_tokens: row.predicted_speedup for row in break_evens(costs.plan, costs.cells, (0.8,))}
    assert priced[1] is not None
    assert priced[3] is None


def test_a_profile_from_an_acceptance_length_has_that_length() -> None:
    assert tokens_per_step(geometric_profile(6.93, 15)) == pytest.approx(6.93)
    assert geometric_profile(1.0, 3) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="from 1 to 4"):
        geometric_profile(4.5, 3)


def test_open_loop_has_no_step_time_because_a_faster_arm_has_another_batch() -> None:
    costs = world()
    at_a_rate = [
        cell.model_copy(update={"max_concurrency": None, "request_rate": 2.0}) for cell in costs.plan.workloads
    ]
    costs = StepCosts(costs.plan.model_copy(update={"workloads": tuple(at_a_rate)}), costs.cells)

    assert {costs.step_s(arm, cell) for arm in costs.plan.arms for cell in at_a_rate} == {None}
    assert {costs.drafting_s(costs.plan.arms[1], cell) for cell in at_a_rate} == {None}
