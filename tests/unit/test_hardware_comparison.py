"""Instance types side by side: the cheapest first, nothing invented where a price is missing."""

import pytest

from orchestrator.hardware_comparison import compare_hardware
from orchestrator.selection import ArmResult, Choice, Interval, Provenance, Selection, Verdict, WorkloadResult


def arm(name: str, tokens_per_s: float | None, usd: float | None, speedup: float | None = None) -> ArmResult:
    return ArmResult(
        arm=name,
        method="none" if name == "none" else "dflash",
        num_speculative_tokens=0 if name == "none" else 7,
        num_blocks=4,
        num_requests=8,
        output_tokens_per_s=around(tokens_per_s),
        speedup=around(speedup),
        acceptance_length=None,
        acceptance_rate=None,
        survival=None,
        ttft_s=None,
        tpot_s=None,
        usd_per_million_output_tokens=usd,
        outputs_match_baseline=None,
    )


def around(mean: float | None) -> Interval | None:
    return None if mean is None else Interval(mean=mean, ci_low=mean, ci_high=mean)


def selection(verdict: Verdict, *arms: ArmResult, best: str | None = None, concurrency: int = 1) -> Selection:
    chosen = next((each for each in arms if each.arm == best), None)
    workload = WorkloadResult(
        dataset="code",
        max_concurrency=concurrency,
        output_len=128,
        verdict=verdict,
        reason="",
        best=Choice(arm=chosen.arm, method=chosen.method, num_speculative_tokens=7) if chosen else None,
        arms=arms,
    )
    return Selection(
        sweep_id=f"s/{verdict}",
        created_utc="2026-08-01T10:00:00Z",
        simulated=False,
        provenance=Provenance(git_commit=None, versions={}, hardware={}, plan_id="p"),
        workloads=(workload,),
        schedules=(),
        recommendation=None,
    )


SPECULATES = selection("speculate", arm("none", 100, 10.0), arm("k7", 300, 3.3, speedup=3), best="k7")
KEEPS = selection("baseline", arm("none", 150, 2.0), arm("k7", 90, 4.0, speedup=0.6), best="none")
OPEN = selection("undecided", arm("none", 50, 20.0), arm("k7", 60, 16.0, speedup=1.2))


def test_each_kind_shows_the_setting_chosen_on_it_and_while_undecided_the_baseline() -> None:
    [workload] = compare_hardware({"a": SPECULATES, "b": KEEPS, "c": OPEN}).workloads

    shown = {figure.hardware: (figure.verdict, figure.output_tokens_per_s) for figure in workload.figures}
    assert shown == {"a": ("speculate", around(300)), "b": ("baseline", around(150)), "c": ("undecided", around(50))}


def test_cheapest_comes_first_and_unknown_prices_last_by_speed() -> None:
    unpriced = selection("baseline", arm("none", 500, None), best="none")
    unmeasured = selection("undecided", arm("none", None, None))
    slow = selection("baseline", arm("none", 400, None), best="none")

    compared = compare_hardware({"x": unmeasured, "w": slow, "u": unpriced, "a": SPECULATES, "b": KEEPS})

    [workload] = compared.workloads
    assert [figure.hardware for figure in workload.figures] == ["b", "a", "u", "w", "x"]
    assert workload.figures[2].usd_per_million_output_tokens is None
    assert compared.sweep_ids["a"] == "s/speculate"


@pytest.mark.parametrize("concurrency", [1, 4])
def test_only_equal_workloads_stand_side_by_side(concurrency: int) -> None:
    other = selection("baseline", arm("none", 150, 2.0), best="none", concurrency=concurrency)

    assert len(compare_hardware({"a": SPECULATES, "b": other}).workloads) == (1 if concurrency == 1 else 2)
