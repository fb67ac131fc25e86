"""The decision: pairs of the same block and node, intervals, ties to the smaller k, and undecided as an answer."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from orchestrator.config import SelectionRules
from orchestrator.plan import Plan
from orchestrator.records import BlockRecord, SpecCounters
from orchestrator.select import decide, log_interval, paired_log_ratios, select_workloads
from orchestrator.selection import ArmResult, Choice, Interval, WorkloadResult
from tests.unit.builders import block_record, make_plan, measured

RULES = SelectionRules()
BASELINE = [100.0, 110.0, 90.0, 105.0]


def selected(
    plan: Plan,
    blocks: Sequence[BlockRecord],
    *,
    usd_per_hour: float | None = None,
    failures: Mapping[str, str] | None = None,
) -> WorkloadResult:
    return select_workloads(plan, blocks, RULES, usd_per_hour, failures or {})[0]


def times(factor: float, noise: Sequence[float] = (1.0, 1.01, 0.99, 1.0)) -> list[float]:
    return [base * factor * wobble for base, wobble in zip(BASELINE, noise, strict=True)]


def arm_result(k: int, speedup: Interval | None, *, num_blocks: int = 4) -> ArmResult:
    return ArmResult(
        method="dflash" if k else "none",
        num_speculative_tokens=k,
        num_blocks=num_blocks,
        num_requests=8,
        output_tokens_per_s=Interval(mean=100, ci_low=90, ci_high=110),
        speedup=speedup,
        acceptance_length=None,
        acceptance_rate=None,
        survival=None,
        ttft_s=None,
        tpot_s=None,
        usd_per_million_output_tokens=None,
        outputs_match_baseline=None,
    )


def decided(**arms: tuple[float, float, float]) -> tuple[str, Choice | None, str]:
    """k1=(mean, ci_low, ci_high), ..."""
    results = [
        arm_result(int(name[1:]), Interval(mean=m, ci_low=low, ci_high=high)) for name, (m, low, high) in arms.items()
    ]
    return decide([arm_result(0, None), *results], RULES)


def dflash(k: int) -> Choice:
    return Choice(method="dflash", num_speculative_tokens=k)


# --- pairs


def test_arm_is_compared_with_the_baseline_on_the_same_block() -> None:
    plan = make_plan([1])
    # Blocks differ 9 to 1; the arm is exactly twice as fast on each. Unpaired this would drown.
    result = selected(plan, measured(plan, {0: [100, 900, 300, 500], 1: [200, 1800, 600, 1000]}))

    speedup = result.arms[1].speedup
    assert speedup is not None
    assert (speedup.mean, speedup.ci_low, speedup.ci_high) == pytest.approx((2, 2, 2))


def test_arm_is_compared_with_the_baseline_of_its_own_node() -> None:
    plan = make_plan([1])
    blocks = measured(plan, {0: [100] * 4}) + measured(plan, {0: [50] * 4, 1: [60] * 4}, node="slow")

    speedup = selected(plan, blocks).arms[1].speedup

    assert speedup is not None
    assert speedup.mean == pytest.approx(1.2)


def test_block_without_a_baseline_on_its_node_is_left_out() -> None:
    plan = make_plan([1])
    baseline, arm = measured(plan, {0: [100] * 4}), measured(plan, {1: [300] * 4}, node="other")

    assert paired_log_ratios(arm, baseline) == {}


def test_opening_and_closing_baseline_cancel_a_linear_drift_for_an_arm_in_the_middle() -> None:
    plan = make_plan([1])
    opening, closing = measured(plan, {0: [100] * 4}), measured(plan, {0: [81] * 4}, phase="closing")
    arm = measured(plan, {1: [90 * 1.5] * 4})  # the node is at 90 by then

    assert list(paired_log_ratios(arm, [*opening, *closing]).values()) == pytest.approx([math.log(1.5)] * 4)


def test_two_measurements_of_a_block_are_one_sample() -> None:
    plan = make_plan([1])
    baseline = measured(plan, {0: [100] * 4}) + measured(plan, {0: [100] * 4}, phase="closing")
    twice = measured(plan, {1: [200] * 4}) + measured(plan, {1: [200] * 4})

    result = selected(plan, baseline + twice)

    assert [arm.num_blocks for arm in result.arms] == [4, 4]


# --- intervals


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12), st.sampled_from([0.8, 0.95, 0.99]))
def test_interval_is_scipys_t_interval_of_the_logs(values: list[float], confidence: float) -> None:
    interval = log_interval(values, confidence)

    assert interval is not None
    sem = float(stats.sem(values))
    if sem > 1e-9:
        low, high = stats.t.interval(confidence, len(values) - 1, loc=fmean(values), scale=sem)
        assert (math.log(interval.ci_low), math.log(interval.ci_high)) == pytest.approx((low, high), abs=1e-9)
    assert math.log(interval.mean) == pytest.approx(fmean(values), abs=1e-9)


@pytest.mark.parametrize("values", [[], [0.3]])
def test_fewer_than_two_values_have_no_interval(values: list[float]) -> None:
    assert log_interval(values, 0.95) is None


@pytest.mark.parametrize("num_blocks", [3, 4, 8])
def test_95_percent_intervals_cover_the_true_speedup_with_noise_between_blocks(num_blocks: int) -> None:
    rng, plan, truth, runs = np.random.default_rng(7), make_plan([1], num_blocks=num_blocks), 1.3, 2000
    blocks, baseline_arm, arm = plan.blocks, plan.arms[0], plan.arms[1]
    template = {a.id: [block_record(plan, a, block) for block in blocks] for a in plan.arms}
    covered = 0
    for _ in range(runs):
        difficulty = rng.normal(0, 0.3, num_blocks)  # the same for both: pairing has to take it out
        walls = {a.id: 10 * np.exp(difficulty + rng.normal(0, 0.03, num_blocks)) for a in plan.arms}
        walls[arm.id] /= truth
        records = {
            a: [r.model_copy(update={"wall_s": w}) for r, w in zip(template[a], walls[a], strict=True)] for a in walls
        }
        ratios = paired_log_ratios(records[arm.id], records[baseline_arm.id])
        interval = log_interval(list(ratios.values()), 0.95)
        assert interval is not None
        covered += interval.ci_low <= truth <= interval.ci_high

    assert 0.93 <= covered / runs <= 0.97


# --- the decision


def test_fastest_arm_wins_and_k_need_not_be_monotone() -> None:
    plan = make_plan([1, 3, 7, 15])
    rates = {0: BASELINE, 1: times(1.3), 3: times(0.8), 7: times(1.9), 15: times(1.1)}

    result = selected(plan, measured(plan, rates))

    assert (result.verdict, result.best) == ("speculate", dflash(7))


def test_tie_within_one_percent_goes_to_the_smaller_k() -> None:
    verdict, best, reason = decided(k3=(1.99, 1.9, 2.1), k7=(2.0, 1.9, 2.1))

    assert (verdict, best) == ("speculate", dflash(3))
    assert "within the tie tolerance of k=7" in reason


def test_more_than_one_percent_is_no_tie_but_a_close_rival_is_named() -> None:
    verdict, best, reason = decided(k3=(1.97, 1.9, 2.1), k7=(2.0, 1.9, 2.1))

    assert (verdict, best) == ("speculate", dflash(7))
    assert "k=3 cannot be told apart" in reason


def test_noisy_smaller_k_does_not_undo_a_proven_gain() -> None:
    verdict, best, _ = decided(k3=(1.295, 0.9, 1.9), k7=(1.3, 1.25, 1.35))

    assert (verdict, best) == ("speculate", dflash(7))


def test_baseline_is_kept_where_no_arm_gains() -> None:
    verdict, best, reason = decided(k3=(0.8, 0.75, 0.85), k7=(1.0, 0.995, 1.005))

    assert (verdict, best) == ("baseline", Choice(method="none", num_speculative_tokens=0))
    assert "no arm gains" in reason


def test_gain_within_the_tie_tolerance_is_no_gain() -> None:
    assert decided(k3=(1.005, 1.002, 1.008))[0] == "baseline"


@pytest.mark.parametrize("interval", [(1.2, 0.95, 1.5), (0.98, 0.9, 1.07)])
def test_interval_that_spans_1_is_undecided_and_has_no_best(interval: tuple[float, float, float]) -> None:
    verdict, best, reason = decided(k3=interval)

    assert (verdict, best) == ("undecided", None)
    assert "more blocks" in reason


@pytest.mark.parametrize(
    ("rates", "reason"),
    [
        ({0: BASELINE[:2], 1: times(2)}, "the baseline has 2 valid blocks; at least 3 are needed"),
        ({0: BASELINE, 1: times(2)[:2]}, "no speculative arm has more than 2 valid paired blocks; at least 3"),
        ({}, "the baseline has 0 valid blocks"),
    ],
)
def test_too_few_blocks_are_undecided(rates: dict[int, list[float]], reason: str) -> None:
    plan = make_plan([1])

    result = selected(plan, measured(plan, rates))

    assert (result.verdict, result.best) == ("undecided", None)
    assert reason in result.reason


def test_plan_without_speculation_keeps_the_baseline() -> None:
    plan = make_plan([])

    assert selected(plan, measured(plan, {0: BASELINE})).verdict == "baseline"


# --- what is missing


def test_arm_without_a_figure_is_named_with_its_failure_and_never_counts_as_0() -> None:
    plan = make_plan([1, 3])
    failures = {plan.arms[2].id: "ServerCrashed: vLLM exited 1"}

    result = selected(plan, measured(plan, {0: BASELINE, 1: times(0.5)}), usd_per_hour=3.6, failures=failures)

    assert result.verdict == "baseline"
    assert result.reason.endswith("dflash-k3 has no figure (ServerCrashed: vLLM exited 1)")
    missing = result.arms[2]
    assert (missing.output_tokens_per_s, missing.speedup, missing.ttft_s, missing.survival) == (None,) * 4
    assert (missing.usd_per_million_output_tokens, missing.outputs_match_baseline) == (None, None)


def test_arm_with_too_few_blocks_is_left_out_and_named() -> None:
    plan = make_plan([1, 3])

    result = selected(plan, measured(plan, {0: BASELINE, 1: times(1.5), 3: times(9)[:2]}))

    assert (result.verdict, result.best) == ("speculate", dflash(1))
    assert result.reason.endswith("dflash-k3 is left out: 2 of at least 3 valid blocks")


def test_failure_of_an_arm_that_was_measured_in_the_end_is_not_quoted() -> None:
    plan = make_plan([1])

    result = selected(plan, measured(plan, {0: BASELINE, 1: times(2)}), failures={plan.arms[1].id: "crashed"})

    assert "crashed" not in result.reason


def test_void_block_never_enters_a_figure() -> None:
    plan = make_plan([1])
    good = measured(plan, {0: BASELINE, 1: times(0.7)})
    void = [b.model_copy(update={"void_reason": "failed"}) for b in measured(plan, {0: [1.0] * 4, 1: [9999.0] * 4})]

    assert selected(plan, void + good) == selected(plan, good)
    assert selected(plan, void).arms[1].num_requests == 0


@settings(max_examples=30)
@given(st.permutations(range(20)))
def test_order_of_the_ledger_does_not_matter(order: list[int]) -> None:
    plan = make_plan([1, 3, 7])
    blocks = measured(plan, {0: BASELINE, 1: times(1.37), 3: times(1.41), 7: times(0.93)})
    closing = measured(plan, {0: [99, 107, 93, 101]}, phase="closing")
    blocks += [block.model_copy(update={"output_sha256": ("other", "y")}) for block in closing]

    assert selected(plan, [blocks[i] for i in order], usd_per_hour=1.7) == selected(plan, blocks, usd_per_hour=1.7)


# --- the other figures


def test_cost_is_that_of_the_mean_throughput_and_null_without_a_price() -> None:
    plan = make_plan([1])
    blocks = measured(plan, {0: [100] * 4, 1: [200] * 4})

    priced, unpriced = selected(plan, blocks, usd_per_hour=3.6), selected(plan, blocks)

    assert [arm.usd_per_million_output_tokens for arm in priced.arms] == pytest.approx([10, 5])
    assert [arm.usd_per_million_output_tokens for arm in unpriced.arms] == [None, None]


def test_outputs_match_is_the_share_of_prompts_with_the_opening_baselines_output() -> None:
    plan = make_plan([1])
    blocks = measured(plan, {0: BASELINE, 1: times(2)})
    closing = measured(plan, {0: BASELINE}, phase="closing")
    blocks[4] = blocks[4].model_copy(update={"output_sha256": ("x", "different")})
    blocks = [block.model_copy(update={"output_sha256": ("p", "q")}) for block in closing] + blocks

    assert [arm.outputs_match_baseline for arm in selected(plan, blocks).arms] == [None, 7 / 8]


def test_outputs_are_not_compared_under_sampling() -> None:
    plan = make_plan([1], temperature=0.7)

    assert selected(plan, measured(plan, {0: BASELINE, 1: times(2)})).arms[1].outputs_match_baseline is None


def test_acceptance_is_that_of_the_counters_summed_over_blocks() -> None:
    plan = make_plan([1])
    arm = measured(plan, {1: times(2)})
    few = SpecCounters(num_drafts=10, num_draft_tokens=10, num_accepted_tokens=0, num_accepted_tokens_per_pos=(0,))
    many = SpecCounters(num_drafts=90, num_draft_tokens=90, num_accepted_tokens=90, num_accepted_tokens_per_pos=(90,))
    arm = [arm[0].model_copy(update={"counters": few}), arm[1].model_copy(update={"counters": many}), *arm[2:]]

    result = selected(plan, measured(plan, {0: BASELINE}) + arm).arms[1]

    assert (result.acceptance_rate, result.acceptance_length, result.survival) == (0.9, 1.9, (0.9,))


def test_acceptance_never_decides() -> None:
    plan = make_plan([1, 3])
    all_accepted = SpecCounters(
        num_drafts=100, num_draft_tokens=300, num_accepted_tokens=300, num_accepted_tokens_per_pos=(100,) * 3
    )
    blocks = measured(plan, {0: BASELINE, 1: times(1.5), 3: times(1.2)})
    blocks = [b.model_copy(update={"counters": all_accepted}) if b.arm_id == plan.arms[2].id else b for b in blocks]

    assert selected(plan, blocks).best == dflash(1)


def test_every_workload_of_the_plan_has_a_result() -> None:
    plan = make_plan([1], concurrencies=(1, 4), datasets=("code", "chat"))

    results = select_workloads(plan, measured(plan, {0: BASELINE, 1: times(2)}), RULES, None, {})

    assert [(r.dataset, r.max_concurrency) for r in results] == [("code", 1), ("code", 4), ("chat", 1), ("chat", 4)]
    assert [r.verdict for r in results] == ["speculate", "undecided", "undecided", "undecided"]


def test_undecided_names_the_arm_that_is_too_noisy_to_exclude() -> None:
    verdict, best, reason = decided(k1=(0.55, 0.4, 0.76), k3=(0.5, 0.2, 1.2))

    assert (verdict, best) == ("undecided", None)
    assert "k=3 (0.50x [0.20, 1.20])" in reason


def test_arms_that_the_search_dropped_are_named_with_the_reason_instead_of_as_left_out() -> None:
    plan = make_plan([1, 3, 7])
    blocks = measured(plan, {0: BASELINE, 1: times(2), 3: times(1.1)[:2]})
    cell = plan.workloads[0].id
    dropped = {(plan.arms[2].id, cell): "clearly worse", (plan.arms[3].id, cell): "predicted to gain nothing"}

    result = select_workloads(plan, blocks, RULES, None, {}, dropped)[0]

    assert result.best == dflash(1)
    assert result.reason.endswith("dropped, clearly worse: dflash-k3; dropped, predicted to gain nothing: dflash-k7")
    assert "left out" not in result.reason


def test_arm_with_few_blocks_is_compared_on_the_blocks_it_has() -> None:
    plan = make_plan([1, 3])
    blocks = measured(plan, {0: BASELINE, 1: times(2), 3: times(1.5)[:3]})

    only_those = measured(plan, {0: BASELINE[:3], 3: times(1.5)[:3]})
    assert selected(plan, blocks).arms[2].speedup == selected(plan, only_those).arms[2].speedup
