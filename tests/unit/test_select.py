"""The decision on a workload: paired figures, what wins and why, and undecided as an answer."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import Constraints, SelectionRules, Slo
from orchestrator.open_loop import OpenLoop
from orchestrator.plan import Plan
from orchestrator.records import BlockRecord, SpecCounters
from orchestrator.select import select_workloads
from orchestrator.selection import Choice, WorkloadResult
from tests.unit.builders import QUIET, compare, make_plan, measured

BASELINE = [100.0, 110.0, 90.0, 105.0]


def selected(
    plan: Plan,
    blocks: Sequence[BlockRecord],
    rules: SelectionRules = QUIET,
    *,
    usd_per_hour: float | None = None,
    failures: Mapping[str, str] | None = None,
) -> WorkloadResult:
    return select_workloads(compare(plan, blocks, rules), usd_per_hour, failures or {})[0]


def of_rates(rates: Mapping[int, Sequence[float]], rules: SelectionRules = QUIET) -> WorkloadResult:
    """k -> tokens/s of its blocks."""
    plan = make_plan([k for k in rates if k] or [1])
    return selected(plan, measured(plan, rates), rules)


def times(factor: float, noise: Sequence[float] = (1.0, 1.01, 0.99, 1.0)) -> list[float]:
    return [base * factor * wobble for base, wobble in zip(BASELINE, noise, strict=True)]


NOISY = (1.3, 0.8, 1.2, 0.75)


def dflash(k: int) -> Choice:
    return Choice(arm=f"dflash-k{k}", method="dflash", num_speculative_tokens=k)


NONE = Choice(arm="none", method="none", num_speculative_tokens=0)


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


def test_two_measurements_of_a_block_are_one_sample() -> None:
    plan = make_plan([1])
    baseline = measured(plan, {0: [100] * 4}) + measured(plan, {0: [100] * 4}, phase="closing")
    twice = measured(plan, {1: [200] * 4}) + measured(plan, {1: [200] * 4})

    result = selected(plan, baseline + twice)

    assert [arm.num_blocks for arm in result.arms] == [4, 4]


# --- the decision


def test_fastest_arm_wins_and_k_need_not_be_monotone() -> None:
    result = of_rates({0: BASELINE, 1: times(1.3), 3: times(0.8), 7: times(1.9), 15: times(1.1)})

    assert (result.verdict, result.best) == ("speculate", dflash(7))
    assert result.reason.startswith("dflash k=7 gives 1.90x [")
    assert "of the baseline's throughput" in result.reason


def test_tie_within_one_percent_goes_to_the_smaller_k_and_both_are_named() -> None:
    result = of_rates({0: BASELINE, 3: times(1.99), 7: times(2.0)})

    assert (result.verdict, result.best) == ("speculate", dflash(3))
    assert "within the tie tolerance of dflash k=7" in result.reason


def test_close_rival_beyond_the_tie_is_a_contender_and_a_clear_loser_is_none() -> None:
    result = of_rates({0: BASELINE, 1: times(1.2), 3: times(1.925, (0.99, 1.03, 1.0, 0.98)), 7: times(1.95)})

    assert (result.verdict, result.best, result.contenders) == ("speculate", dflash(7), (dflash(3),))
    assert "dflash k=3 cannot be told apart from it" in result.reason


def test_baseline_is_kept_where_no_arm_gains() -> None:
    result = of_rates({0: BASELINE, 3: times(0.8), 7: times(0.9)})

    assert (result.verdict, result.best, result.contenders) == ("baseline", NONE, ())
    assert result.reason.startswith("no arm gains: the best, dflash k=7 gives 0.90x")


def test_undecided_has_no_best_but_contenders_and_says_what_would_settle_it() -> None:
    result = of_rates({0: BASELINE, 1: times(0.5), 3: times(1.2, NOISY)})

    assert (result.verdict, result.best, result.contenders) == ("undecided", None, (dflash(3),))
    assert result.blocks_to_settle is not None
    assert result.blocks_to_settle > 4
    assert "too close to 1 to tell" in result.reason
    assert f"workload.num_blocks={result.blocks_to_settle} continues from here" in result.reason


def test_undecided_names_the_arm_that_is_too_noisy_to_exclude() -> None:
    plan = make_plan([1, 3], num_blocks=8)

    result = selected(plan, measured(plan, {0: [100] * 8, 1: [70] * 8, 3: [34, 124] * 4}))

    assert (result.verdict, result.best) == ("undecided", None)
    assert "too noisy to exclude a gain: dflash k=3 (0.65x" in result.reason


def test_gain_that_is_proven_alone_may_be_chance_among_many_arms() -> None:
    wobble = (1.025, 0.975, 1.025, 0.975)
    rates = {0: BASELINE, 3: times(1.05, wobble)}

    alone = of_rates(rates | {5: times(0.5, wobble)})
    among = of_rates(rates | {k: times(0.5, wobble) for k in range(5, 16)})

    assert (alone.verdict, among.verdict) == ("speculate", "undecided")
    assert "which may be chance among 12 arms" in among.reason


@pytest.mark.parametrize("num_blocks", [4, 8])
def test_noise_between_server_starts_keeps_a_small_gain_open_however_equal_the_blocks(num_blocks: int) -> None:
    plan = make_plan([1], num_blocks=num_blocks)
    blocks = measured(plan, {0: [100] * num_blocks, 1: [103] * num_blocks})

    assert selected(plan, blocks).verdict == "speculate"
    assert selected(plan, blocks, SelectionRules(visit_noise=0.03)).verdict == "undecided"


@pytest.mark.parametrize(
    ("rates", "reason"),
    [
        ({0: BASELINE[:2], 1: times(2)}, "the baseline has too few valid blocks; none is left out: 2 of at least 3"),
        ({0: BASELINE, 1: times(2)[:2]}, "no speculative arm has enough valid paired blocks; dflash-k1 is left out: 2"),
        ({}, "the baseline has too few valid blocks; none has no figure"),
    ],
)
def test_too_few_blocks_are_undecided(rates: dict[int, list[float]], reason: str) -> None:
    result = of_rates(rates)

    assert (result.verdict, result.best) == ("undecided", None)
    assert result.reason.startswith(reason)


def test_plan_without_speculation_keeps_the_baseline() -> None:
    plan = make_plan([])

    assert selected(plan, measured(plan, {0: BASELINE})).verdict == "baseline"


# --- objectives and constraints


def test_verdict_is_about_the_objective_and_the_speedup_is_shown_beside_it() -> None:
    plan = make_plan([1])
    slow = [block.model_copy(update={"tpot_s": (0.03, 0.03)}) for block in measured(plan, {1: times(1.2)})]
    blocks = measured(plan, {0: BASELINE}) + slow  # more tokens/s, but each request waits longer for its own

    result = selected(plan, blocks, SelectionRules(visit_noise=0, objective="tpot"))

    assert result.verdict == "baseline"
    assert "of the baseline's speed per output token" in result.reason
    [gain, speedup] = [result.arms[1].gain, result.arms[1].speedup]
    assert gain is not None
    assert speedup is not None
    assert (gain.mean, speedup.mean) == pytest.approx((0.5, 1.2), rel=0.01)


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    plan = make_plan([1])
    rules = SelectionRules(objective="goodput", slo=Slo(ttft_s=0.15))  # the first request of every block's two

    result = selected(plan, measured(plan, {0: [100] * 4, 1: [200] * 4}), rules)

    assert [arm.goodput_requests_per_s for arm in result.arms] == pytest.approx([0.1, 0.2])


def with_ttft(plan: Plan, k: int, blocks: Sequence[BlockRecord], ttft_s: float) -> list[BlockRecord]:
    arm = next(arm for arm in plan.arms if arm.num_speculative_tokens == k)
    return [b.model_copy(update={"ttft_s": (ttft_s,) * 2}) if b.arm_id == arm.id else b for b in blocks]


STRICT = SelectionRules(visit_noise=0, constraints=Constraints(ttft_p95_s=0.3))


def test_arm_that_breaks_a_constraint_is_not_chosen_and_named() -> None:
    plan = make_plan([1, 3])
    blocks = with_ttft(plan, 3, measured(plan, {0: BASELINE, 1: times(1.3), 3: times(2)}), 0.4)

    result = selected(plan, blocks, STRICT)

    assert (result.verdict, result.best) == ("speculate", dflash(1))
    assert result.reason.endswith("dflash-k3 breaks ttft_p95_s=0.3 with 0.4")
    assert [arm.meets_constraints for arm in result.arms] == [True, True, False]
    assert [arm.meets_constraints for arm in selected(plan, blocks).arms] == [None] * 3


def test_baseline_is_kept_where_every_arm_breaks_a_constraint() -> None:
    plan = make_plan([1])
    blocks = with_ttft(plan, 1, measured(plan, {0: BASELINE, 1: times(2)}), 0.4)

    result = selected(plan, blocks, STRICT)

    assert (result.verdict, result.best) == ("baseline", NONE)
    assert result.reason.startswith("no speculative arm keeps the constraints")


def test_arm_that_keeps_the_constraints_wins_over_a_faster_baseline_that_breaks_them() -> None:
    plan = make_plan([1])
    blocks = with_ttft(plan, 0, measured(plan, {0: BASELINE, 1: times(0.9)}), 0.4)

    result = selected(plan, blocks, STRICT)

    assert (result.verdict, result.best) == ("speculate", dflash(1))
    assert "and the baseline breaks ttft_p95_s=0.3 with 0.4" in result.reason


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


@settings(max_examples=30, deadline=None)
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

    results = select_workloads(compare(plan, measured(plan, {0: BASELINE, 1: times(2)})), None, {})

    assert [(r.dataset, r.max_concurrency) for r in results] == [("code", 1), ("code", 4), ("chat", 1), ("chat", 4)]
    assert [r.verdict for r in results] == ["speculate", "undecided", "undecided", "undecided"]


def test_arms_that_the_search_dropped_are_named_with_the_reason_instead_of_as_left_out() -> None:
    plan = make_plan([1, 3, 7])
    blocks = measured(plan, {0: BASELINE, 1: times(2), 3: times(1.1)[:2]})
    cell = plan.workloads[0].id
    dropped = {(plan.arms[2].id, cell): "clearly worse", (plan.arms[3].id, cell): "predicted to gain nothing"}

    result = select_workloads(compare(plan, blocks), None, {}, dropped)[0]

    assert result.best == dflash(1)
    assert result.reason.endswith(
        "measured no further, clearly worse: dflash-k3; not measured here, predicted to gain nothing: dflash-k7"
    )
    assert "left out" not in result.reason


def test_arm_with_few_blocks_is_compared_on_the_blocks_it_has() -> None:
    plan = make_plan([1, 3])
    blocks = measured(plan, {0: BASELINE, 1: times(2), 3: times(1.5)[:3]})

    few = selected(plan, blocks).arms[2]

    assert few.speedup is not None
    assert few.num_blocks == 3
    assert few.speedup.mean == pytest.approx(1.5, rel=1e-3)


def test_undecided_says_how_many_blocks_would_settle_it_and_whether_the_prompts_are_there() -> None:
    plan = make_plan([1])
    noisy = [1.05 * rate * wobble for rate, wobble in zip(BASELINE, (1.06, 0.95, 1.05, 0.94), strict=True)]
    few = plan.model_copy(update={"prompts": {"code": plan.prompts["code"].model_copy(update={"num_usable": 20})}})

    enough = selected(plan, measured(plan, {0: BASELINE, 1: noisy}), rules=QUIET)
    short = selected(few, measured(few, {0: BASELINE, 1: noisy}), rules=QUIET)

    more = enough.blocks_to_settle
    assert more is not None
    assert f"about {more} blocks instead of 4 would settle it (workload.num_blocks={more} continues" in enough.reason
    assert f"which takes {2 * more} prompts; the dataset has 20" in short.reason


# --- open loops


def arrivals(is_saturated: bool | None) -> OpenLoop:
    return OpenLoop(
        offered_requests_per_s=2.0,
        median_lateness_s=0.0,
        max_lateness_s=0.0,
        latency_growth=0.5 if is_saturated else 0.0,
        is_saturated=is_saturated,
    )


def judged(e2e_s: Mapping[int, float], saturated: Sequence[int]) -> WorkloadResult:
    """By the time of a request, k -> seconds; all with the same throughput, as in an open loop."""
    plan = make_plan([k for k in e2e_s if k])
    blocks = [
        record.model_copy(
            update={
                "e2e_s": (e2e_s[k], e2e_s[k] * (1 + 0.001 * record.block_index)),
                "open_loop": arrivals(k in saturated),
            }
        )
        for k in e2e_s
        for record in measured(plan, {k: [100.0] * 4})
    ]
    return selected(plan, blocks, QUIET.model_copy(update={"objective": "e2e"}))


def test_open_loop_is_decided_by_the_time_of_a_request() -> None:
    result = judged({0: 2.0, 1: 1.0, 7: 1.6}, saturated=())

    assert (result.verdict, result.best) == ("speculate", dflash(1))
    assert result.arms[1].gain is not None
    assert result.arms[1].gain.mean == pytest.approx(2, rel=0.01)
    assert result.arms[1].speedup is not None
    assert result.arms[1].speedup.mean == pytest.approx(1)
    assert "of the baseline's speed per request" in result.reason


def test_arm_that_cannot_keep_up_is_not_chosen_however_fast_it_looks() -> None:
    result = judged({0: 2.0, 1: 1.6, 7: 1.0}, saturated=(7,))

    assert result.best == dflash(1)
    assert [arm.saturated_share for arm in result.arms] == [0, 0, 1]
    assert "dflash-k7 breaks under the load: its queue grew in 100 % of the blocks" in result.reason


def test_arm_that_keeps_up_wins_over_a_baseline_that_does_not() -> None:
    result = judged({0: 2.0, 1: 2.1}, saturated=(0,))

    assert (result.verdict, result.best) == ("speculate", dflash(1))
