"""What is predicted for arms not measured yet, and how far it is trusted."""

from collections.abc import Callable, Mapping, Sequence
from math import exp, log

import pytest

from orchestrator.config import SelectionRules
from orchestrator.evidence import Noise, gather
from orchestrator.plan import Plan
from orchestrator.predict import Prediction, Predictor
from orchestrator.records import BlockRecord, SpecCounters
from tests.unit.builders import block_record, make_plan

NOISE = Noise(block_sd=0.03, degrees_of_freedom=20, visit_sd=0.01)
SHARES = [0.9**position for position in range(1, 16)]
StepTime = Callable[[int], float]


def counters(k: int, shares: Sequence[float] = SHARES, num_drafts: int = 10_000) -> SpecCounters:
    accepted = tuple(round(num_drafts * share) for share in shares[:k])
    return SpecCounters(
        num_drafts=num_drafts,
        num_draft_tokens=num_drafts * k,
        num_accepted_tokens=sum(accepted),
        num_accepted_tokens_per_pos=accepted,
    )


def speedup(k: int, step_time: StepTime) -> float:
    return (1 + sum(SHARES[:k])) / step_time(k)


def affine(k: int) -> float:
    return 1.3 + 0.1 * k


def measure(plan: Plan, speedups: Mapping[int, float]) -> list[BlockRecord]:
    """The baseline at 100 tokens/s and these arms, on all blocks of all workloads."""
    found = [block_record(plan, plan.baseline, block, 100.0) for block in plan.blocks]
    for k, ratio in speedups.items():
        arm = next(arm for arm in plan.arms if arm.num_speculative_tokens == k)
        found += [block_record(plan, arm, block, 100 * ratio, counters=counters(k)) for block in plan.blocks]
    return found


def predictor(plan: Plan, blocks: Sequence[BlockRecord]) -> Predictor:
    order = tuple(dict.fromkeys(block.arm_id for block in blocks))
    return Predictor(workloads=gather(plan, blocks, SelectionRules()), noise=NOISE, largest_k=15, order=order)


def predict(plan: Plan, blocks: Sequence[BlockRecord], k: int, workload: int = 0) -> Prediction:
    found = predictor(plan, blocks)
    prediction = found.predict(found.workloads[workload], k)
    assert prediction is not None
    return prediction


def test_tokens_per_step_are_one_and_the_first_survivals_of_a_longer_draft() -> None:
    found = predictor(make_plan([3, 15]), measure(make_plan([3, 15]), {15: 2.0}))

    assert found.tokens_per_step("code", 3) == pytest.approx(1 + sum(SHARES[:3]), rel=1e-3)


def test_survival_comes_from_the_shortest_measured_draft_that_is_long_enough() -> None:
    plan = make_plan([1, 3, 15])
    blocks = measure(plan, {15: 2.0})
    arm = plan.arms[2]
    blocks += [block_record(plan, arm, block, 200.0, counters=counters(3, [0.5, 0.25, 0.125])) for block in plan.blocks]

    assert predictor(plan, blocks).tokens_per_step("code", 1) == pytest.approx(1.5)


def test_survival_is_pooled_over_concurrencies_but_time_is_not() -> None:
    plan = make_plan([3, 15], concurrencies=(1, 4))
    only_one = [block for block in measure(plan, {15: 2.0}) if block.workload_id == plan.workloads[0].id]
    found = predictor(plan, [*only_one, *measure(plan, {})])

    assert found.tokens_per_step("code", 3)
    assert found.predict(found.workloads[0], 3)
    assert found.predict(found.workloads[1], 3) is None


def two_methods() -> Plan:
    """dflash and ngram, k = 3 and 15 each."""
    plan = make_plan([3, 15])
    others = [
        arm.model_copy(update={"id": f"ngram-{arm.id}", "name": arm.name.replace("dflash", "ngram"), "method": "ngram"})
        for arm in plan.arms[1:]
    ]
    return plan.model_copy(update={"arms": (*plan.arms, *others)})


def test_methods_share_neither_survival_nor_step_times() -> None:
    plan = two_methods()
    dflash, ngram = (next(arm for arm in plan.arms if arm.name == name) for name in ("dflash-k15", "ngram-k15"))
    blocks = measure(plan, {})
    blocks += [block_record(plan, dflash, block, 200.0, counters=counters(15)) for block in plan.blocks]
    workloads = gather(plan, blocks, SelectionRules())
    of_dflash, of_ngram = (
        Predictor.of_method(method, plan.arms, workloads, NOISE, [arm.id for arm in (dflash, ngram)])
        for method in ("dflash", "ngram")
    )

    assert of_dflash.predict(workloads[0], 3) == predict(plan, blocks, 3)
    assert of_ngram.predict(workloads[0], 3) is None
    assert of_dflash.order == (dflash.id,)


def test_steps_that_found_nothing_to_draft_count_as_steps() -> None:
    plan = two_methods()
    ngram = next(arm for arm in plan.arms if arm.name == "ngram-k15")
    found = SpecCounters(
        num_drafts=10, num_draft_tokens=150, num_accepted_tokens=20, num_accepted_tokens_per_pos=(8, 6, 4, 2)
    )
    blocks = measure(plan, {})
    # 100 tokens decoded in 80 steps, 10 of which drafted.
    blocks += [block_record(plan, ngram, plan.blocks[0], counters=found, num_requests=2, output_tokens=102)]
    predictor = Predictor.of_method("ngram", plan.arms, gather(plan, blocks, SelectionRules()), NOISE, [ngram.id])

    assert predictor.tokens_per_step("code", 15) == pytest.approx(1 + 20 / 80)
    assert predictor.tokens_per_step("code", 2) == pytest.approx(1 + 14 / 80)


def test_longer_draft_than_any_measured_is_not_predicted() -> None:
    plan = make_plan([3, 7, 15])
    found = predictor(plan, measure(plan, {3: 2.0}))

    assert found.predict(found.workloads[0], 7) is None


def test_nothing_is_predicted_without_counters() -> None:
    plan = make_plan([3, 15])
    blocks = [block.model_copy(update={"counters": None}) for block in measure(plan, {15: 2.0})]
    found = predictor(plan, blocks)

    assert found.predict(found.workloads[0], 3) is None


def test_middle_k_is_predicted_from_both_ends_within_its_margin() -> None:
    plan = make_plan([1, 7, 15])
    ends = {k: speedup(k, affine) for k in (15, 1)}

    prediction = predict(plan, measure(plan, ends), 7)

    assert abs(prediction.log_speedup - log(speedup(7, affine))) < 2 * prediction.sd


def test_margin_is_wide_after_one_arm_and_narrows_with_each_near_one() -> None:
    plan = make_plan([1, 5, 6, 7, 15])
    order = [15, 1, 7, 5]
    sds = [
        predict(plan, measure(plan, {k: speedup(k, affine) for k in order[:number]}), 6).sd for number in (1, 2, 3, 4)
    ]

    assert sds == sorted(sds, reverse=True)
    assert sds[0] > 0.1 > 0.06 > sds[-1]


def test_time_of_a_k_on_one_dataset_tells_of_the_others_at_that_concurrency() -> None:
    plan = make_plan([1, 7, 15], datasets=("code", "chat"))
    blocks = measure(plan, {15: speedup(15, affine), 1: speedup(1, affine)})
    slow = measure(plan, {7: speedup(7, affine) / 1.5})[len(plan.blocks) :]
    on_code = [block for block in slow if block.workload_id == plan.workloads[0].id]

    before, after = predict(plan, blocks, 7, workload=1), predict(plan, [*blocks, *on_code], 7, workload=1)

    assert exp(before.log_speedup - after.log_speedup) > 1.2
    assert after.sd < before.sd


def test_jagged_measurements_leave_a_wider_margin_than_smooth_ones() -> None:
    plan = make_plan([1, 3, 4, 5, 7, 9, 11, 15])
    order = [15, 1, 7, 3, 11, 5, 9]
    smooth = {k: speedup(k, affine) for k in order}
    jagged = {k: value * (1.15 if place % 2 else 0.87) for place, (k, value) in enumerate(smooth.items())}

    assert predict(plan, measure(plan, jagged), 4).sd > 2 * predict(plan, measure(plan, smooth), 4).sd


def test_each_arm_but_the_first_is_checked_against_its_prediction() -> None:
    plan = make_plan([1, 7, 15])
    found = predictor(plan, measure(plan, {15: 2.0, 1: 1.3, 7: 2.2}))

    assert [error.num_speculative_tokens for error in found.errors] == [1, 7]
    assert found.errors[1].measured_log_speedup == pytest.approx(log(2.2))


def test_errors_as_small_as_expected_widen_nothing_and_larger_ones_do() -> None:
    plan = make_plan([1, 3, 5, 7, 15])
    good = {k: speedup(k, affine) for k in (15, 1, 7, 3)}
    bad = good | {3: good[3] * 1.6}

    assert predictor(plan, measure(plan, good)).widening == 1
    assert predictor(plan, measure(plan, bad)).widening > 1.3
