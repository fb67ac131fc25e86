"""The roofline's step: weights over bandwidth, and what more tokens and a drafter add."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import Drafter, Model
from orchestrator.token_time import Range, Roofline, read_gb, tokens_per_step, total

DENSE = Model(name="dense", target="org/m", max_model_len=4096, parameters_billion=10)
EXPERTS = DENSE.model_copy(update={"parameters_billion": 30.0, "active_parameters_billion": 3.0})


def roofline(**changes: Any) -> Roofline:
    usual = Roofline(DENSE, Drafter(model="org/d", weight_gb=2), "dflash", Range(100, 400))
    return replace(usual, **changes)


def test_ranges_add_up_end_by_end() -> None:
    assert total([Range(1, 2), Range(3, 5)]) == Range(4, 7)
    assert total([]) == Range(0, 0)


def test_dense_model_is_read_whole_for_any_number_of_tokens() -> None:
    assert read_gb(DENSE, 1) == read_gb(DENSE, 100) == 20


def test_experts_are_read_one_share_for_a_token_and_nearly_all_for_many() -> None:
    assert read_gb(EXPERTS, 1) == pytest.approx(6)
    assert read_gb(EXPERTS, 2) == pytest.approx(6 + 0.9 * 6)
    assert 59 < read_gb(EXPERTS, 64) < 60


def test_model_of_unknown_size_has_no_roofline() -> None:
    with pytest.raises(ValueError, match="not known"):
        read_gb(DENSE.model_copy(update={"parameters_billion": None}), 1)


def test_acceptance_length_lies_between_one_and_all_drafted() -> None:
    assert tokens_per_step(0, 0.5) == 1
    assert tokens_per_step(3, 1.0) == 4
    assert tokens_per_step(3, 0.5) == pytest.approx(1 + 0.5 + 0.25 + 0.125)


def test_baseline_at_one_stream_takes_a_reading_of_the_weights_a_token() -> None:
    found = roofline().token_s(0, 1, output_len=128, prompt_len=0)

    assert found.low == pytest.approx(20 / 400 + 0.001)
    assert found.high == pytest.approx(20 / 100 + 0.004)


def test_streams_share_the_reading_of_the_weights() -> None:
    alone, shared = (roofline().token_s(0, streams, 128, 0) for streams in (1, 4))

    assert shared.low < alone.low / 3
    assert shared.high < alone.high / 2


def test_drafter_that_runs_once_a_token_costs_more_than_one_that_runs_once_a_step() -> None:
    block, sequential, free = (roofline(method=m).token_s(7, 1, 128, 0) for m in ("dflash", "eagle3", "ngram"))

    assert free.low < block.low < sequential.low
    assert free.high < block.high < sequential.high


def test_drafter_of_unknown_size_is_supposed_to_be_a_share_of_its_target() -> None:
    unknown = roofline(drafter=Drafter(model="org/d")).token_s(7, 1, 128, 0)
    small, large = (roofline(drafter=Drafter(model="org/d", weight_gb=gb)).token_s(7, 1, 128, 0) for gb in (1, 4))

    assert unknown.low == pytest.approx(small.low)
    assert unknown.high == pytest.approx(large.high)


def test_longer_prompts_cost_time() -> None:
    short, long = (roofline().token_s(0, 1, 128, prompt_len) for prompt_len in (10, 1000))

    assert short.low < long.low
    assert short.high < long.high


@given(k=st.integers(0, 15), streams=st.integers(1, 64), is_dense=st.booleans())
def test_fastest_is_never_above_slowest(k: int, streams: int, is_dense: bool) -> None:
    found = roofline(model=DENSE if is_dense else EXPERTS).token_s(k, streams, 128, 150)

    assert 0 < found.low <= found.high
