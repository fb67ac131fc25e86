"""The rule that chooses between arms, and which others stay in question."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.compare import (
    MOST_TIMES,
    Candidate,
    Choosing,
    blocks_to_settle,
    choose,
    not_told_apart,
    times_to_settle,
)
from orchestrator.config import SelectionRules
from orchestrator.estimate import Estimate, Paired, VisitNoise, simultaneous
from tests.unit.builders import QUIET, compare, make_plan, measured

NO_NOISE = VisitNoise(variance=0.0, degrees_of_freedom=4)
FREEDOM = 1e9
"""So many that the t distribution is the normal one: a half width is 1.96 errors."""


def candidate(k: int, speedup: float, half_width: float = 0.01) -> Candidate:
    """`half_width` of its own 95 % interval, in logs."""
    return Candidate(k, Estimate(math.log(speedup), (half_width / 1.959964) ** 2, FREEDOM, {}))


def chosen(*candidates: Candidate) -> Choosing:
    return choose(candidates, NO_NOISE, QUIET)


def paired(values: Sequence[float]) -> dict[str, Paired]:
    return {f"b{index}": Paired(value, {}) for index, value in enumerate(values)}


# --- choose


def test_highest_mean_wins() -> None:
    assert chosen(candidate(3, 1.5), candidate(1, 1.2)) == Choosing("speculate", 0, 0, ())


def test_tie_goes_to_the_smallest_k_and_the_leader_is_still_known() -> None:
    found = chosen(candidate(7, 2.0), candidate(3, 1.99), candidate(1, 1.9))

    assert (found.verdict, found.chosen, found.leader) == ("speculate", 1, 0)


def test_tie_of_the_same_k_with_other_settings_goes_to_the_first() -> None:
    assert chosen(candidate(3, 1.5), candidate(3, 1.505)).chosen == 0


def test_noisy_smaller_k_does_not_undo_a_proven_gain() -> None:
    assert chosen(candidate(3, 1.295, half_width=0.4), candidate(7, 1.3)) == Choosing("speculate", 1, 1, ())


def test_noisy_leader_does_not_undo_the_proven_gain_of_a_slower_arm() -> None:
    assert chosen(candidate(3, 1.5), candidate(7, 2.0, half_width=0.8), candidate(9, 1.2)) == Choosing(
        "speculate", 0, 0, ()
    )


def test_proof_of_a_gain_is_asked_of_all_arms_together() -> None:
    lucky = candidate(3, math.exp(0.105), half_width=0.1)

    assert chosen(lucky).verdict == "speculate"
    assert chosen(lucky, *[candidate(k, 0.5) for k in range(4, 12)]) == Choosing("undecided", 0, 0, (0,))


def test_gain_within_the_tie_tolerance_is_no_gain() -> None:
    assert chosen(candidate(3, 1.005, half_width=0.002)).verdict == "baseline"


def test_baseline_wins_only_where_no_arm_may_gain_by_its_own_interval() -> None:
    """Were each asked for what holds for all together, many arms would make it ever harder to say no."""
    losers = [candidate(k, 0.9, half_width=0.1) for k in range(1, 30)]
    wide = losers[0].estimate.half_width(NO_NOISE, simultaneous(0.95, len(losers)))

    assert math.log(0.9) + wide > math.log1p(QUIET.tie_tolerance)
    assert chosen(*losers) == Choosing("baseline", 0, 0, ())
    assert chosen(*losers, candidate(30, 0.9, half_width=0.2)) == Choosing("undecided", 0, 0, (29,))


def test_noise_between_starts_counts_against_a_gain() -> None:
    found = Candidate(3, Estimate(math.log(1.05), 0.0, 3, {"arm": 1.0, "opening": -0.5, "closing": -0.5}))

    assert choose([found], VisitNoise(0.01**2, 8), QUIET).verdict == "speculate"
    assert choose([found], VisitNoise(0.03**2, 8), QUIET).verdict == "undecided"


# --- contenders


def test_arm_is_told_apart_on_the_blocks_it_shares_with_the_chosen_one() -> None:
    """Both scatter widely against the baseline, but together."""
    hard = [0.5, -0.4, 0.3, -0.3]
    best = paired([0.50 + each for each in hard])
    worse = paired([0.45 + each + wobble for each, wobble in zip(hard, (0.001, -0.001, 0, 0), strict=True)])
    close = paired([0.49 + each + wobble for each, wobble in zip(hard, (0.03, -0.03, 0.02, -0.02), strict=True)])

    assert not_told_apart(best, [worse, close], NO_NOISE, QUIET) == [1]


def test_arm_that_shares_fewer_than_two_blocks_is_not_told_apart() -> None:
    assert not_told_apart(paired([1.0] * 4), [paired([0.0])], NO_NOISE, QUIET) == [0]


def test_noise_of_two_different_starts_keeps_close_arms_in_question() -> None:
    ahead = {f"b{index}": Paired(0.02, {"this": 1.0}) for index in range(50)}
    behind = {f"b{index}": Paired(0.0, {"other": 1.0}) for index in range(50)}

    assert not_told_apart(ahead, [behind], NO_NOISE, QUIET) == []
    assert not_told_apart(ahead, [behind], VisitNoise(0.015**2, 6), QUIET) == [0]


# --- how much more would settle it


def test_twice_the_half_width_takes_four_times_the_blocks() -> None:
    candidates = [candidate(3, math.exp(0.05), half_width=0.1)]

    assert blocks_to_settle(candidates, chosen(*candidates), 4, NO_NOISE, QUIET) == 4 * 4 + 1


def test_a_gain_is_settled_by_its_own_blocks_whatever_stays_open_beside_it() -> None:
    gains, is_close_to_1 = candidate(3, math.exp(0.4), half_width=0.5), candidate(7, math.exp(0.02), half_width=0.5)
    alone = blocks_to_settle([gains], chosen(gains), 4, NO_NOISE, QUIET)
    beside = blocks_to_settle([gains, is_close_to_1], chosen(gains, is_close_to_1), 4, NO_NOISE, QUIET)

    assert alone is not None
    assert beside is not None
    assert alone <= beside <= 2 * alone  # both hold together, which asks a little more


def test_no_gain_is_settled_once_every_arm_is_excluded() -> None:
    near, far = candidate(3, math.exp(-0.05), half_width=0.1), candidate(7, math.exp(-0.2), half_width=0.25)
    both = chosen(near, far)

    assert both.open_ones == (0, 1)
    needed = [blocks_to_settle([each], chosen(each), 4, NO_NOISE, QUIET) for each in (near, far)]
    assert blocks_to_settle([near, far], both, 4, NO_NOISE, QUIET) == max(n for n in needed if n is not None)


def test_nothing_settles_a_choice_between_equals() -> None:
    candidates = [candidate(3, math.exp(0.012), half_width=0.012 * math.sqrt(MOST_TIMES + 1))]

    assert blocks_to_settle(candidates, chosen(*candidates), 4, NO_NOISE, QUIET) is None


def test_blocks_reduce_only_their_own_part_of_the_noise() -> None:
    """Half widths of 0.08 by the blocks and 0.03 by the visits, 0.05 to go: (0.08 / 0.04)^2 as many blocks."""
    error = 0.03 / 1.959964
    found = candidate(3, math.exp(0.05), half_width=0.08)
    shared = [found._replace(estimate=replace(found.estimate, visits={"arm": 1.0}))]
    few, many = VisitNoise(error**2, FREEDOM), VisitNoise((2 * error) ** 2, FREEDOM)

    assert blocks_to_settle(shared, choose(shared, few, QUIET), 4, few, QUIET) == 4 * 4 + 1
    assert blocks_to_settle(shared, choose(shared, many, QUIET), 4, many, QUIET) is None


def test_more_than_blocks_within_reason_is_told_from_what_no_block_settles() -> None:
    far = [candidate(3, math.exp(0.02), half_width=0.1)]
    visits = VisitNoise(0.05**2, 4)
    same_visit = [Candidate(3, Estimate(math.log(1.02), 0.0, FREEDOM, {"arm": 1.0}))]

    assert times_to_settle(far, chosen(*far), NO_NOISE, QUIET) == pytest.approx(25)
    assert blocks_to_settle(far, chosen(*far), 4, NO_NOISE, QUIET) is None
    assert times_to_settle(same_visit, choose(same_visit, visits, QUIET), visits, QUIET) == math.inf


def test_decided_choice_needs_nothing() -> None:
    candidates = [candidate(3, 1.5)]

    assert blocks_to_settle(candidates, chosen(*candidates), 4, NO_NOISE, QUIET) is None


# --- all arms of a sweep


def test_every_arm_is_compared_where_it_was_measured() -> None:
    plan = make_plan([1, 3], concurrencies=(1, 4))
    arm, cell = plan.arms[1].id, plan.workloads[0].id

    found = compare(plan, measured(plan, {0: [100] * 4, 1: [200] * 3}))

    assert found.num_paired == {(arm, cell): 3}
    assert found.estimates.keys() == {(arm, cell)}
    assert found.estimates[arm, cell].mean == pytest.approx(math.log(2))
    assert found.paired(cell).keys() == {arm}


def test_noise_between_visits_is_learnt_from_the_baselines_of_all_workloads() -> None:
    plan = make_plan([1])
    blocks = measured(plan, {0: [100] * 4}) + measured(plan, {0: [110] * 4}, phase="closing")

    noise = compare(plan, blocks, SelectionRules(visit_noise=0)).noise

    assert noise.variance == pytest.approx(math.log(1.1) ** 2 / 2 / noise.degrees_of_freedom)
