"""How sure a comparison is: pairs, drift, noise that blocks share, and its degrees of freedom."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from orchestrator.estimate import (
    NEIGHBOURS_WEIGHT,
    PRIOR_WEIGHT,
    Estimate,
    Paired,
    Score,
    VisitNoise,
    alone,
    combine,
    difference,
    estimate_all,
    pair_blocks,
    simultaneous,
    visit_noise,
)
from orchestrator.records import Phase

QUIET = VisitNoise(variance=0.0, degrees_of_freedom=PRIOR_WEIGHT)


def scores(
    values: Sequence[float], phase: Phase = "arm", *, at_s: float = 0.0, visit: str = "", node: str = "a"
) -> list[Score]:
    """One a block, in their order, each a second after the one before."""
    return [
        Score(f"b{index}", node, visit or f"{phase}-{node}", phase, at_s + index, value)
        for index, value in enumerate(values)
    ]


def log_ratios(paired: Mapping[str, Paired]) -> list[float]:
    return [found.log_ratio for found in paired.values()]


def paired(values: Sequence[float], visits: Mapping[str, float] | None = None) -> dict[str, Paired]:
    return {f"b{index}": Paired(value, visits or {}) for index, value in enumerate(values)}


def estimate(mean: float = 0.0, variance: float = 0.0, freedom: float = 3.0, **visits: float) -> Estimate:
    return Estimate(mean=mean, block_variance=variance, block_freedom=freedom, visits=visits)


# --- pairs


@pytest.mark.parametrize("at_s", [0.0, 130.0, 500.0, 1000.0])
def test_linear_drift_of_the_machine_cancels_wherever_between_the_baselines_the_arm_was_measured(at_s: float) -> None:
    difficulty, drift, gain = [0.3, -0.2, 0.1], -1e-4, math.log(1.5)

    def drifting(gain: float, phase: Phase, at_s: float) -> list[Score]:
        return scores([d + gain + drift * (at_s + i) for i, d in enumerate(difficulty)], phase, at_s=at_s)

    baseline = drifting(0, "opening", 0) + drifting(0, "closing", 1000)

    assert log_ratios(pair_blocks(drifting(gain, "arm", at_s), baseline)) == pytest.approx([gain] * 3)


def test_nothing_is_extrapolated_beyond_the_baselines_two_visits() -> None:
    baseline = scores([0.0], "opening", at_s=0) + scores([0.1], "closing", at_s=10)

    assert log_ratios(pair_blocks(scores([1.0], at_s=99), baseline)) == pytest.approx([0.9])


def test_baseline_that_has_only_opened_counts_whole() -> None:
    found = pair_blocks(scores([1.0]), scores([0.4], "opening"))["b0"]

    assert found.log_ratio == pytest.approx(0.6)
    assert found.visits == {"arm-a": 1.0, "opening-a": -1.0}


def test_arm_compares_only_with_the_baseline_of_its_own_node() -> None:
    baseline = scores([0.0, 0.0], "opening", node="a") + scores([5.0, 5.0], "opening", node="b")

    assert log_ratios(pair_blocks(scores([5.2, 5.2], node="b"), baseline)) == pytest.approx([0.2, 0.2])
    assert pair_blocks(scores([1.0], node="c"), baseline) == {}


def test_repeats_of_a_block_are_one_sample_of_it_and_halve_the_share_of_each_visit() -> None:
    twice = scores([1.0], visit="first") + scores([2.0], visit="second")

    expected = {"b0": Paired(1.5, {"first": 0.5, "second": 0.5})}
    assert alone(twice) == expected
    assert pair_blocks(twice, scores([0.0], "opening"))["b0"].visits == {"first": 0.5, "second": 0.5, "opening-a": -1.0}


def test_difference_of_two_arms_keeps_the_blocks_of_both_and_cancels_the_baseline_they_share() -> None:
    left = paired([1.0, 2.0, 3.0], {"mine": 1.0, "base": -1.0})
    right = paired([0.5, 0.5], {"other": 1.0, "base": -1.0})

    found = difference(left, right)

    assert log_ratios(found) == [0.5, 1.5]
    assert found["b0"].visits == {"mine": 1.0, "base": 0.0, "other": -1.0}


# --- intervals


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12), st.sampled_from([0.8, 0.95, 0.99]))
def test_interval_of_one_quiet_arm_is_scipys_t_interval_of_its_logs(values: list[float], confidence: float) -> None:
    interval = estimate_all({"arm": paired(values)})["arm"].interval(QUIET, confidence)

    error = float(stats.sem(values))
    if error > 1e-9:
        low, high = stats.t.interval(confidence, len(values) - 1, loc=fmean(values), scale=error)
        assert (math.log(interval.ci_low), math.log(interval.ci_high)) == pytest.approx((low, high), abs=1e-9)
    assert math.log(interval.mean) == pytest.approx(fmean(values), abs=1e-9)


@pytest.mark.parametrize("values", [[], [0.3]])
def test_fewer_than_two_blocks_have_no_estimate(values: list[float]) -> None:
    assert estimate_all({"arm": paired(values)}) == {}


def test_scatter_is_moderated_by_that_of_the_other_arms_but_no_more_than_their_weight() -> None:
    still, wild = [0.0, 0.0, 0.0, 0.0], [0.1, -0.1, 0.1, -0.1]  # sums of squares 0 and 0.04
    arms = {"still": paired(still)} | {f"wild{index}": paired(wild) for index in range(3)}

    found = estimate_all(arms)

    freedom = 3 + NEIGHBOURS_WEIGHT
    assert found["still"].block_freedom == freedom
    neighbours = 0.04 / stats.chi2.median(3)  # the median of their sums of squares, as a variance
    assert found["still"].block_variance == pytest.approx(NEIGHBOURS_WEIGHT * neighbours / freedom / 4)


def test_calm_arms_do_not_narrow_the_interval_of_an_erratic_one() -> None:
    calm, wild = [0.01, -0.01, 0.01, -0.01, 0.0], [0.5, -0.5, 0.5, -0.5, 0.0]

    beside, alone = (
        estimate_all({"wild": paired(wild)} | {name: paired(calm) for name in calm_ones})["wild"]
        for calm_ones in (("a", "b"), ())
    )

    assert beside == alone


def test_one_erratic_arm_does_not_widen_the_others() -> None:
    quiet, erratic = [0.01, -0.01, 0.01, -0.01], [1.0, -1.0, 1.0, -1.0]
    arms = {f"quiet{index}": paired(quiet) for index in range(3)}

    alike, beside = estimate_all(arms), estimate_all(arms | {"erratic": paired(erratic)})

    assert beside["quiet0"].block_variance == pytest.approx(alike["quiet0"].block_variance)


def test_visit_that_all_blocks_share_is_not_reduced_by_their_number() -> None:
    noise = VisitNoise(variance=0.02**2, degrees_of_freedom=8)
    errors = [
        estimate_all({"arm": paired([0.1] * number, {"arm": 1.0, "opening": -1.0})})["arm"].standard_error(noise)
        for number in (2, 200)
    ]

    assert errors == pytest.approx([0.02 * math.sqrt(2)] * 2)


def test_shares_of_one_visit_add_up_before_they_are_squared() -> None:
    noise = VisitNoise(variance=1.0, degrees_of_freedom=8)
    same = combine([(0.5, estimate(arm=1.0)), (0.5, estimate(arm=1.0))])
    different = combine([(0.5, estimate(arm=1.0)), (0.5, estimate(other=1.0))])

    assert same.standard_error(noise) == pytest.approx(1.0)
    assert different.standard_error(noise) == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize(
    ("block_variance", "visit_variance", "freedom"), [(4e-4, 0.0, 3.0), (0.0, 4e-4, 9.0), (4e-4, 4e-4, 4.5)]
)
def test_degrees_of_freedom_are_those_of_the_noise_that_rules(
    block_variance: float, visit_variance: float, freedom: float
) -> None:
    """Welch and Satterthwaite: either part alone has its own; of equal parts, 2^2 / (1/3 + 1/9)."""
    freedom = freedom if freedom != 4.5 else 4 / (1 / 3 + 1 / 9)
    noise = VisitNoise(visit_variance, degrees_of_freedom=9)
    found = estimate(0.3, block_variance, 3.0, arm=1.0)

    error = math.sqrt(block_variance + visit_variance)
    low, high = stats.t.interval(0.95, freedom, loc=0.3, scale=error)
    interval = found.interval(noise, 0.95)
    assert (math.log(interval.ci_low), math.log(interval.ci_high)) == pytest.approx((low, high))
    assert found.lower(noise, 0.95) == pytest.approx(0.3 - stats.t.ppf(0.95, freedom) * error)


def test_two_equal_parts_have_the_degrees_of_freedom_of_welchs_test() -> None:
    left, right = [1.0, 2.0, 4.0, 3.5], [0.5, 0.1, 0.9, 0.2]
    parts = estimate_all({"left": paired(left)})["left"], estimate_all({"right": paired(right)})["right"]

    together = combine([(1.0, parts[0]), (-1.0, parts[1])])

    expected = stats.ttest_ind(left, right, equal_var=False).confidence_interval(0.95)
    half = together.half_width(QUIET, 0.95)
    assert (together.mean - half, together.mean + half) == pytest.approx((expected.low, expected.high))


def test_parts_of_the_same_prompts_are_as_unsure_together_as_each_is_alone() -> None:
    part = Estimate(0.0, 0.01, 4, {})

    same = combine([(0.5, part), (0.5, part)], [[1, 1], [1, 1]])
    half = combine([(0.5, part), (0.5, part)], [[1, 0.5], [0.5, 1]])

    assert (same.block_variance, same.block_freedom) == pytest.approx((0.01, 4))
    assert half.block_variance == pytest.approx(0.0075)
    assert 4 < half.block_freedom < 8


def test_combined_estimates_without_scatter_keep_the_fewest_degrees_of_freedom() -> None:
    together = combine([(0.5, estimate(0.2, freedom=7)), (0.5, estimate(0.4, freedom=3))])

    assert together.mean == pytest.approx(0.3)
    assert (together.block_variance, together.block_freedom) == (0.0, 3)


def test_intervals_that_hold_together_are_each_surer() -> None:
    assert simultaneous(0.95, 0) == simultaneous(0.95, 1) == 0.95
    assert simultaneous(0.95, 10) ** 10 == pytest.approx(0.95)


# --- noise between visits


def both_visits(changes: Sequence[float], node: str = "a") -> list[Score]:
    """Baselines of which each block's closing visit differs so much from its opening one."""
    opening = [0.1 * index for index in range(len(changes))]
    closing = [start + change for start, change in zip(opening, changes, strict=True)]
    return scores(opening, "opening", node=node) + scores(closing, "closing", at_s=1000, node=node)


def test_visit_noise_is_the_supposed_one_until_a_node_has_closed() -> None:
    assert visit_noise([scores([0.0, 0.1], "opening")], 0.015) == VisitNoise(0.015**2, PRIOR_WEIGHT)


def test_visit_noise_joins_what_was_supposed_with_what_each_node_shows() -> None:
    noise = visit_noise([both_visits([0.04] * 4, "a") + both_visits([0.0] * 4, "b")], 0.01)

    assert noise.degrees_of_freedom == PRIOR_WEIGHT + 2
    assert noise.variance == pytest.approx((PRIOR_WEIGHT * 0.01**2 + 0.04**2 / 2) / (PRIOR_WEIGHT + 2))


def test_scatter_between_blocks_is_not_taken_for_noise_between_visits() -> None:
    noise = visit_noise([both_visits([0.06, -0.04, 0.06, -0.04])], 0.0)

    assert noise == VisitNoise(0.0, PRIOR_WEIGHT + 1)


def test_workloads_of_one_node_saw_the_same_two_visits_and_count_once() -> None:
    assert visit_noise([both_visits([0.04] * 4)] * 6, 0.0) == visit_noise([both_visits([0.04] * 4)], 0.0)


def test_visit_noise_finds_the_truth_on_many_nodes() -> None:
    rng, truth = np.random.default_rng(3), 0.02
    nodes = [
        both_visits(list(rng.normal(0, truth * math.sqrt(2)) + rng.normal(0, 0.01, 8)), f"n{index}")
        for index in range(2000)
    ]

    noise = visit_noise([[score for node in nodes for score in node]], 0.5 * truth)

    assert math.sqrt(noise.variance) == pytest.approx(truth, rel=0.05)


def test_clock_that_was_set_back_between_the_baselines_takes_their_middle() -> None:
    baseline = scores([0.2], "opening", at_s=1000) + scores([0.4], "closing", at_s=10)

    found = pair_blocks(scores([1.0], at_s=20), baseline)["b0"]

    assert found.log_ratio == pytest.approx(0.7)
    assert found.visits == {"arm-a": 1.0, "opening-a": -0.5, "closing-a": -0.5}
