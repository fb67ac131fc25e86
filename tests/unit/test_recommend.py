"""From verdicts to settings: the safer choice wherever nothing was measured."""

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.compare import Comparisons
from orchestrator.plan import Plan
from orchestrator.recommend import (
    batch_size_schedules,
    crossovers,
    overall_levels,
    schedule_arm,
    schedule_gains,
    static_arm,
)
from orchestrator.selection import Choice, Interval, Mix, MixedArm, Verdict, WorkloadResult
from tests.unit.builders import block_record, compare, make_plan

GRID = (1, 3, 7)


def choice(k: int) -> Choice:
    return Choice(arm=f"dflash-k{k}" if k else "none", method="dflash" if k else "none", num_speculative_tokens=k)


def workload(*, dataset: str = "code", concurrency: int = 1, best: int | None = None) -> WorkloadResult:
    """`best` None is undecided."""
    verdict: Verdict = "undecided" if best is None else "speculate" if best else "baseline"
    return WorkloadResult(
        dataset=dataset,
        max_concurrency=concurrency,
        output_len=128,
        verdict=verdict,
        reason="",
        best=None if best is None else choice(best),
        arms=(),
    )


def measured_at(plan: Plan, speedups: Mapping[tuple[str, int], Sequence[float]]) -> Comparisons:
    """(dataset, concurrency) -> speedup of every speculative arm there."""
    blocks = []
    for cell in plan.workloads:
        for arm, speedup in zip(plan.arms, (1.0, *speedups.get((cell.dataset, int(cell.level)), ())), strict=False):
            blocks += [block_record(plan, arm, block, 100 * speedup) for block in plan.blocks_of(cell.id)]
    return compare(plan, blocks)


def levels(best_by_concurrency: dict[int, int | None], max_num_seqs: int = 64) -> list[list[int]]:
    """The schedule's k at every batch size, after checking its form; empty without a schedule."""
    plan = with_max_num_seqs(make_plan(GRID), max_num_seqs)
    schedules = batch_size_schedules(plan, [workload(concurrency=c, best=k) for c, k in best_by_concurrency.items()])
    return [list(entry) for schedule in schedules for entry in schedule.num_speculative_tokens_per_batch_size]


def with_max_num_seqs(plan: Plan, max_num_seqs: int) -> Plan:
    server = plan.baseline.server.model_copy(update={"max_num_seqs": max_num_seqs})
    baseline = plan.baseline.model_copy(update={"server": server})
    return plan.model_copy(update={"arms": (baseline, *plan.arms[1:])})


# --- one static setting


def overall_mix(best: int | None, gain: float | None = 1.5) -> Mix:
    interval = gain and Interval(mean=gain, ci_low=gain, ci_high=gain)
    mixed = MixedArm(arm="dflash-k3", method="dflash", num_speculative_tokens=3, gain=interval or None)
    verdict: Verdict = "undecided" if best is None else "speculate" if best else "baseline"
    chosen = None if best is None else choice(best)
    return Mix(dataset=None, traffic={1: 1.0}, verdict=verdict, best=chosen, arms=(mixed,))


@pytest.mark.parametrize(
    ("mix", "expected"),
    [
        (overall_mix(3), "dflash-k3"),
        (overall_mix(0), "none"),
        (overall_mix(None), "none"),  # measured, and no gain is proven
        (overall_mix(None, gain=None), None),
    ],
)
def test_static_setting_is_the_best_of_the_mix_and_the_baseline_unless_a_gain_is_proven(
    mix: Mix, expected: str | None
) -> None:
    chosen = static_arm(make_plan(GRID), mix)

    assert (chosen and chosen.name) == expected


# --- where speculation stops paying


@pytest.mark.parametrize(
    ("best", "pays_up_to", "stops_at"),
    [
        ({1: 7, 4: 3, 16: 0}, 4, 16),
        ({1: 7, 4: None, 16: 3}, 1, 4),
        ({4: 3, 1: 7}, 4, None),
        ({1: 0, 4: 0}, None, 1),
    ],
)
def test_crossover_is_between_the_last_level_that_pays_and_the_first_that_does_not(
    best: dict[int, int | None], pays_up_to: int | None, stops_at: int | None
) -> None:
    [found] = crossovers([workload(concurrency=level, best=k) for level, k in best.items()])

    assert (found.pays_up_to, found.stops_at) == (pays_up_to, stops_at)


def test_each_dataset_has_its_own_crossover() -> None:
    found = crossovers([workload(dataset="code", best=3), workload(dataset="chat", best=0)])

    assert [(each.dataset, each.pays_up_to, each.stops_at) for each in found] == [("code", 1, None), ("chat", None, 1)]


# --- one schedule over all datasets


def test_level_takes_the_arm_that_gains_most_over_all_datasets_together() -> None:
    plan = make_plan([3, 7], concurrencies=(1, 4), datasets=("code", "chat"))
    speedups = {("code", 1): (1.5, 3.0), ("chat", 1): (1.4, 0.5), ("code", 4): (0.5, 0.4), ("chat", 4): (1.1, 0.9)}

    chosen = overall_levels(measured_at(plan, speedups), {1: plan.arms[1:], 4: plan.arms[1:]})

    assert {level: arm.name for level, arm in chosen.items()} == {1: "dflash-k3", 4: "none"}


def test_level_takes_no_arm_that_lacks_a_figure_on_some_dataset_or_is_not_allowed() -> None:
    plan = make_plan([3, 7], datasets=("code", "chat"))
    found = measured_at(plan, {("code", 1): (1.5, 3.0), ("chat", 1): (1.4,)})

    assert overall_levels(found, {1: plan.arms[1:]})[1].name == "dflash-k3"
    assert overall_levels(found, {1: plan.arms[2:]})[1].name == "none"


def test_schedule_gains_what_its_arm_does_at_each_level_and_nothing_without_one() -> None:
    plan = make_plan([3], concurrencies=(1, 4))
    found = measured_at(plan, {("code", 1): (2.0,), ("code", 4): (0.5,)})

    gains = schedule_gains({1: plan.arms[1], 4: plan.baseline}, found)

    assert [math.exp(gains[cell.id].mean) for cell in plan.workloads] == pytest.approx([2.0, 1.0])


def test_same_arm_at_every_level_needs_no_schedule() -> None:
    plan = make_plan([3, 7], concurrencies=(1, 4))

    assert schedule_arm(plan, dict.fromkeys((1, 4), plan.arms[1])) is None
    assert schedule_arm(plan, dict.fromkeys((1, 4), plan.baseline)) is None


def test_schedule_is_a_server_of_the_largest_k_and_keeps_its_other_settings() -> None:
    plan = make_plan([3, 7], concurrencies=(1, 4))

    arm = schedule_arm(plan, {1: plan.arms[2], 4: plan.arms[1]})

    assert arm is not None
    assert arm.num_speculative_tokens == 7
    assert arm.server.model_copy(update={"speculative_config": None}) == plan.arms[2].server.model_copy(
        update={"speculative_config": None}
    )


def test_methods_that_read_no_schedule_and_sweeps_that_vary_more_than_k_get_none() -> None:
    plan = make_plan([3, 7], concurrencies=(1, 4))
    other = [arm.model_copy(update={"method": "ngram"}) for arm in plan.arms[1:]]
    varied = plan.model_copy(
        update={"arms": (plan.baseline, *(arm.model_copy(update={"settings": {"x": 1}}) for arm in plan.arms[1:]))}
    )

    assert schedule_arm(plan, {1: other[1], 4: other[0]}) is None
    assert schedule_arm(varied, {1: varied.arms[2], 4: varied.arms[1]}) is None
    assert batch_size_schedules(varied, [workload(best=7)]) == ()


# --- the schedule


@settings(deadline=None)
@given(
    st.dictionaries(st.integers(1, 80), st.sampled_from([None, 0, 1, 3, 7]), min_size=2, max_size=5),
    st.integers(1, 70),
)
def test_schedule_is_contiguous_safe_between_levels_and_off_above_the_last(
    best: dict[int, int | None], max_num_seqs: int
) -> None:
    ranges = levels(best, max_num_seqs)
    if not ranges:
        assert not best[min(best)]  # the lowest level's k holds at batch size 1
        return
    assert ranges[0][0] == 1
    assert ranges[-1][1] == max_num_seqs
    assert all(ours[1] + 1 == following[0] for ours, following in itertools.pairwise(ranges))
    assert all(ours[2] != following[2] for ours, following in itertools.pairwise(ranges))
    for first, last, k in ranges:
        for batch in range(first, last + 1):
            below = [level for level in best if level <= batch]
            above = [level for level in best if level >= batch]
            neighbours = [
                best[level] or 0 for level in ([max(below)] if below else []) + ([min(above)] if above else [])
            ]
            assert k <= min(neighbours)
            assert k == 0 or above


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        ({1: 7, 4: 3, 16: 0}, [[1, 1, 7], [2, 4, 3], [5, 64, 0]]),
        ({1: 3, 4: 7}, [[1, 3, 3], [4, 4, 7], [5, 64, 0]]),
        ({2: 7, 8: None, 16: 7}, [[1, 2, 7], [3, 15, 0], [16, 16, 7], [17, 64, 0]]),
        ({1: 7, 2: 0}, [[1, 1, 7], [2, 64, 0]]),
    ],
)
def test_schedule_in_vllms_form(best: dict[int, int | None], expected: list[list[int]]) -> None:
    assert levels(best) == expected


def test_levels_of_different_methods_make_no_schedule_since_a_server_has_one_method() -> None:
    plan = with_max_num_seqs(make_plan(GRID), 16)
    ngram = Choice(arm="ngram-k3", method="ngram", num_speculative_tokens=3)
    other = workload(concurrency=4, best=3).model_copy(update={"best": ngram})

    assert batch_size_schedules(plan, [workload(concurrency=1, best=7), other]) == ()
    assert batch_size_schedules(plan, [workload(concurrency=1, best=7), workload(concurrency=4, best=3)])[0].method


def test_dataset_where_no_level_speculates_has_no_schedule() -> None:
    assert levels({1: 0, 4: None}) == []


def test_each_dataset_has_its_own_schedule() -> None:
    best = {"code": 7, "math": 3, "chat": 0}
    results = [workload(dataset=name, best=k, concurrency=level) for name, k in best.items() for level in (1, 4)]

    schedules = batch_size_schedules(make_plan(GRID), results)

    assert [(s.dataset, s.num_speculative_tokens_per_batch_size[0]) for s in schedules] == [
        ("code", (1, 4, 7)),
        ("math", (1, 4, 3)),
    ]


def test_single_level_makes_no_schedule_since_nothing_was_measured_at_other_batches() -> None:
    assert batch_size_schedules(make_plan(GRID), [workload(best=7)]) == ()


def test_open_loop_has_a_crossover_and_no_schedule_because_a_rate_is_no_batch_size() -> None:
    at_rates = [
        workload(best=7).model_copy(update={"max_concurrency": None, "request_rate": 2.5}),
        workload(best=0).model_copy(update={"max_concurrency": None, "request_rate": 9.0}),
    ]
    plan = make_plan(GRID)

    assert batch_size_schedules(plan, at_rates) == ()
    [found] = crossovers(at_rates)
    assert (found.pays_up_to, found.stops_at) == (2.5, 9)
