"""From verdicts to settings: the safer choice wherever nothing was measured."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import SelectionRules
from orchestrator.plan import Plan
from orchestrator.recommend import batch_size_schedules, best_static_arm
from orchestrator.selection import ArmResult, Choice, Interval, Verdict, WorkloadResult
from tests.unit.builders import make_plan

RULES = SelectionRules()
GRID = (1, 3, 7)


def arm(k: int, speedup: float | None, half_width: float = 0.02) -> ArmResult:
    """`half_width` of the interval, as a share of the mean. For the baseline `speedup` only says: measured or not."""
    rate = None if speedup is None else Interval(mean=100 * speedup, ci_low=99 * speedup, ci_high=101 * speedup)
    interval = speedup and Interval(mean=speedup, ci_low=speedup / (1 + half_width), ci_high=speedup * (1 + half_width))
    return ArmResult(
        method="dflash" if k else "none",
        num_speculative_tokens=k,
        num_blocks=4,
        num_requests=8,
        output_tokens_per_s=rate,
        speedup=interval if k and interval else None,
        acceptance_length=None,
        acceptance_rate=None,
        survival=None,
        ttft_s=None,
        tpot_s=None,
        usd_per_million_output_tokens=None,
        outputs_match_baseline=None,
    )


def workload(
    *speedups: float | None, dataset: str = "code", concurrency: int = 1, best: int | None = None, wide: float = 0.02
) -> WorkloadResult:
    """`speedups` of GRID; `best` None is undecided."""
    verdict: Verdict = "undecided" if best is None else "speculate" if best else "baseline"
    return WorkloadResult(
        dataset=dataset,
        max_concurrency=concurrency,
        output_len=128,
        verdict=verdict,
        reason="",
        best=None if best is None else Choice(method="dflash" if best else "none", num_speculative_tokens=best),
        arms=(arm(0, 1.0), *(arm(k, speedup, wide) for k, speedup in zip(GRID, speedups, strict=False))),
    )


def static_k(*workloads: WorkloadResult) -> int | None:
    chosen = best_static_arm(make_plan(GRID), workloads, RULES)
    return None if chosen is None else chosen.num_speculative_tokens


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


def test_static_choice_is_best_over_all_workloads_not_best_on_one() -> None:
    assert static_k(workload(1.2, 1.5, 3.0), workload(1.2, 1.5, 0.5)) == 3


def test_static_tie_goes_to_the_smaller_k() -> None:
    assert static_k(workload(1.0, 1.495, 1.5)) == 3


def test_static_choice_is_the_baseline_where_nothing_gains() -> None:
    assert static_k(workload(0.9, 0.8, 0.7)) == 0
    assert static_k(workload(1.005, 1.002, 0.9)) == 0


def test_gain_that_may_be_noise_is_not_recommended() -> None:
    assert static_k(workload(1.05, 1.1, 1.15, wide=0.3)) == 0


def test_gain_too_noisy_on_each_workload_may_be_sure_over_many() -> None:
    noisy = workload(1.05, 1.1, 1.25, wide=0.3)

    assert static_k(noisy) == 0
    assert static_k(*[noisy] * 9) == 7


def test_arm_without_a_figure_on_some_workload_is_not_recommended() -> None:
    assert static_k(workload(1.2, 1.5, 3.0), workload(1.2, 1.3, None)) == 3


def test_nothing_is_recommended_without_figures() -> None:
    unmeasured = workload(1.2, 1.5, 3.0)
    unmeasured = unmeasured.model_copy(update={"arms": (arm(0, None), *unmeasured.arms[1:])})

    assert static_k(unmeasured) is None
    assert static_k(workload(None, None, None)) is None


def test_plan_of_the_baseline_alone_recommends_it() -> None:
    chosen = best_static_arm(make_plan([]), [workload(best=0)], RULES)

    assert chosen is not None
    assert chosen.is_baseline


# --- the schedule


@given(
    st.dictionaries(st.integers(1, 80), st.sampled_from([None, 0, 1, 3, 7]), min_size=1, max_size=5),
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
        ({1: 7}, [[1, 1, 7], [2, 64, 0]]),
    ],
)
def test_schedule_in_vllms_form(best: dict[int, int | None], expected: list[list[int]]) -> None:
    assert levels(best) == expected


def test_dataset_where_no_level_speculates_has_no_schedule() -> None:
    assert levels({1: 0, 4: None}) == []


def test_each_dataset_has_its_own_schedule() -> None:
    results = [workload(dataset="code", best=7), workload(dataset="math", best=3), workload(dataset="chat", best=0)]

    schedules = batch_size_schedules(make_plan(GRID), results)

    assert [(s.dataset, s.num_speculative_tokens_per_batch_size[0]) for s in schedules] == [
        ("code", (1, 1, 7)),
        ("math", (1, 1, 3)),
    ]
