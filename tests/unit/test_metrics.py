"""Formulas against the figures published for Qwen3.5-9B with DFlash on HumanEval (381 drafts, k=15)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.metrics import (
    acceptance_length,
    acceptance_rate,
    add_counters,
    saving,
    survival,
    tokens_per_draft,
    tpot_s,
    usd_per_million_output_tokens,
)
from orchestrator.records import SpecCounters

# Only the ends of the survival curve are published: 327 of 381 at position 0, 45 at 14. Between them is what is left.
PUBLISHED = SpecCounters(
    num_drafts=381,
    num_draft_tokens=5715,
    num_accepted_tokens=2261,
    num_accepted_tokens_per_pos=(327, 149, *([145] * 12), 45),
)
NOTHING = SpecCounters(num_drafts=0, num_draft_tokens=0, num_accepted_tokens=0, num_accepted_tokens_per_pos=(0, 0))


@st.composite
def drafts(draw: st.DrawFn, k: int = 4) -> SpecCounters:
    """Counters as the engine would have counted them, from the accepted tokens of each draft."""
    accepted = draw(st.lists(st.integers(0, k), min_size=1, max_size=30))
    return SpecCounters(
        num_drafts=len(accepted),
        num_draft_tokens=k * len(accepted),
        num_accepted_tokens=sum(accepted),
        num_accepted_tokens_per_pos=tuple(sum(a > i for a in accepted) for i in range(k)),
    )


def test_published_counters_give_the_published_acceptance_rate() -> None:
    assert acceptance_rate(PUBLISHED) == pytest.approx(0.3956, abs=5e-5)


def test_published_counters_give_the_published_acceptance_length() -> None:
    assert acceptance_length(PUBLISHED) == pytest.approx(6.93, abs=5e-3)


def test_published_counters_give_the_published_ends_of_the_survival_curve() -> None:
    curve = survival(PUBLISHED)
    assert curve is not None
    assert len(curve) == 15
    assert curve[0] == pytest.approx(0.8583, abs=5e-5)
    assert curve[14] == pytest.approx(0.1181, abs=5e-5)


def test_tokens_per_draft_is_the_k_that_really_ran() -> None:
    assert tokens_per_draft(PUBLISHED) == 15


@pytest.mark.parametrize("metric", [acceptance_rate, acceptance_length, survival, tokens_per_draft])
def test_no_draft_is_missing_and_not_zero(metric: object) -> None:
    assert callable(metric)
    assert metric(NOTHING) is None


@given(drafts())
def test_acceptance_length_is_one_plus_the_sum_of_the_survival_curve(counters: SpecCounters) -> None:
    curve = survival(counters)
    assert curve is not None
    assert acceptance_length(counters) == pytest.approx(1 + sum(curve))
    assert list(curve) == sorted(curve, reverse=True)


@given(drafts(), drafts())
def test_counters_of_blocks_add_up(first: SpecCounters, second: SpecCounters) -> None:
    total = add_counters([first, second])
    assert total is not None
    assert total.num_drafts == first.num_drafts + second.num_drafts
    assert sum(total.num_accepted_tokens_per_pos) == total.num_accepted_tokens


def test_blocks_with_fewer_positions_add_to_the_first_positions() -> None:
    short = SpecCounters(num_drafts=1, num_draft_tokens=1, num_accepted_tokens=1, num_accepted_tokens_per_pos=(1,))
    total = add_counters([short, PUBLISHED])
    assert total is not None
    assert total.num_accepted_tokens_per_pos[0] == 328
    assert total.num_accepted_tokens_per_pos[1:] == PUBLISHED.num_accepted_tokens_per_pos[1:]


def test_counters_of_no_block_are_missing() -> None:
    assert add_counters([]) is None


def test_tpot_spreads_the_time_after_the_first_token_over_the_other_tokens() -> None:
    assert tpot_s(e2e_s=1.5, ttft_s=0.5, output_tokens=11) == pytest.approx(0.1)


@pytest.mark.parametrize("output_tokens", [0, 1])
def test_tpot_of_a_single_token_is_missing(output_tokens: int) -> None:
    assert tpot_s(e2e_s=0.5, ttft_s=0.5, output_tokens=output_tokens) is None


def test_saving_of_a_speedup_of_3_92() -> None:
    # The published 74.40 % is the mean of the workloads' savings; the saving at the mean speedup is this.
    assert saving(3.92) == pytest.approx(0.7449, abs=5e-5)


def test_saving_of_a_slowdown_is_negative() -> None:
    assert saving(1) == 0
    assert saving(0.5) == -1


def test_usd_per_million_output_tokens_from_price_per_hour() -> None:
    assert usd_per_million_output_tokens(usd_per_hour=3.6, output_tokens_per_s=100) == pytest.approx(10)


@given(st.floats(0.1, 20))
def test_saving_is_the_share_of_the_price_per_token_that_falls_away(speedup: float) -> None:
    before, after = usd_per_million_output_tokens(5, 100), usd_per_million_output_tokens(5, 100 * speedup)
    assert saving(speedup) == pytest.approx(1 - after / before, abs=1e-9)
