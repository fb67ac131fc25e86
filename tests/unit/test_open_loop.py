"""Whether a server kept up with an open loop, and the client with its own times."""

import pytest

from orchestrator.open_loop import OpenLoop, late_client, open_loop_of

DUE = [0.5 * index for index in range(24)]


def served(rate_share: float) -> OpenLoop:
    """By a queue of one server that serves that share of what arrives; a lone request takes 1 s less than a gap."""
    service_s, free_s, ends = 0.5 / rate_share, 0.0, []
    for due in DUE:
        free_s = max(free_s, due) + service_s
        ends.append(free_s)
    return open_loop_of(DUE, DUE, ends)


def test_offered_rate_is_by_the_times_requests_were_due() -> None:
    assert served(2).offered_requests_per_s == pytest.approx(2)
    assert open_loop_of([0], [0], [1]).offered_requests_per_s is None


def test_server_that_is_faster_than_requests_come_is_not_saturated() -> None:
    facts = served(1.2)

    assert facts.latency_growth == pytest.approx(0)
    assert facts.is_saturated is False


def test_server_that_serves_less_than_comes_is_saturated_and_growth_says_by_how_much() -> None:
    facts = served(0.8)

    assert facts.latency_growth == pytest.approx(1 / 0.8 - 1)
    assert facts.is_saturated


def test_filling_up_is_no_saturation() -> None:
    ends = [due + min(2.0, 0.5 + 0.25 * index) for index, due in enumerate(DUE)]

    assert open_loop_of(DUE, DUE, ends).is_saturated is False


def test_few_requests_and_requests_at_once_tell_nothing() -> None:
    assert open_loop_of(DUE[:7], DUE[:7], [due + 1 for due in DUE[:7]]).is_saturated is None
    at_once = open_loop_of([0.0] * 24, [0.0] * 24, [1.0] * 24)
    assert (at_once.is_saturated, at_once.offered_requests_per_s) == (None, None)


@pytest.mark.parametrize(("late_s", "gap_s", "is_void"), [(0.004, 0.1, False), (0.006, 0.1, True), (0.006, 1, False)])
def test_client_may_be_late_by_a_share_of_the_gap_or_by_what_any_machine_is(
    late_s: float, gap_s: float, is_void: bool
) -> None:
    due = [gap_s * index for index in range(10)]
    facts = open_loop_of(due, [time + late_s for time in due], [time + 1 for time in due])

    assert (late_client(facts) is not None) == is_void


def test_one_late_request_of_many_is_recorded_and_does_no_harm() -> None:
    facts = open_loop_of(DUE, [*DUE[:-1], DUE[-1] + 0.3], [due + 1 for due in DUE])

    assert facts.max_lateness_s == pytest.approx(0.3)
    assert late_client(facts) is None


def test_long_block_is_judged_by_some_of_its_requests() -> None:
    due = [0.1 * index for index in range(30_000)]

    assert open_loop_of(due, due, [1.5 * time + 1 for time in due]).latency_growth == pytest.approx(0.5)


def test_burst_that_ends_together_does_not_say_that_the_server_keeps_up() -> None:
    due = [0.025 * index for index in range(24)]

    facts = open_loop_of(due, due, [3.0] * 24)

    assert facts.latency_growth == pytest.approx(-1)
    assert facts.is_saturated is None
