"""What of the blocks selecting keeps, and what each objective asks for."""

import math

import pytest

from orchestrator.config import SelectionRules, Slo
from orchestrator.measured import fold, objective_value
from orchestrator.records import BlockRecord, PrefixCache, SpecCounters
from tests.unit.builders import NUM_PROMPTS, OUTPUT_TOKENS, QUIET, block_record, make_plan, measured

PLAN = make_plan([1])
ARM = PLAN.arms[1].id
CELL = PLAN.workloads[0].id


def block(**changes: object) -> BlockRecord:
    """100 tokens/s; two requests with a TTFT of 0.1 and 0.2 s, a TPOT of 0.01 and 0.02 s."""
    return block_record(PLAN, PLAN.arms[1], PLAN.blocks[0], 100.0).model_copy(update=changes)


def value(found: BlockRecord, objective: str, **slo: float) -> float:
    """Turned back from the logarithm."""
    limits = Slo.model_validate(slo) if slo else None
    logged = objective_value(found, SelectionRules.model_validate({"objective": objective, "slo": limits}))
    assert logged is not None
    return math.exp(logged)


def test_void_blocks_are_left_out_and_confirmations_kept_apart() -> None:
    void = [block.model_copy(update={"void_reason": "failed"}) for block in measured(PLAN, {1: [1.0] * 4})]
    again = measured(PLAN, {1: [300.0] * 4}, phase="confirm")

    folded = fold([*void, *measured(PLAN, {0: [100.0] * 4, 1: [200.0] * 2}), *again], QUIET)

    assert folded.cells.keys() == {(PLAN.baseline.id, CELL), (ARM, CELL)}
    assert [math.exp(score.value) for score in folded.cells[ARM, CELL].scores] == pytest.approx([200] * 2)
    assert folded.confirmed.keys() == {(ARM, CELL)}
    assert [score.phase for score in folded.confirmed[ARM, CELL].scores] == ["confirm"] * 4


def test_score_says_where_and_when_it_was_measured() -> None:
    [score] = fold([block(started_utc="2026-08-01T00:00:10Z")], QUIET).cells[ARM, CELL].scores

    assert (score.block_id, score.node, score.visit_id) == (PLAN.blocks[0].id, "a", "dflash-k1-arm-a")
    assert score.started_s % 60 == 10


def test_hit_rate_of_the_prefix_cache_is_over_all_tokens_that_were_looked_for() -> None:
    cached = [block(prefix_cache=PrefixCache(queries=queries, hits=hits)) for queries, hits in ((300, 0), (100, 100))]

    assert fold(cached, QUIET).cells[ARM, CELL].prefix_cache_hit_rate == 0.25
    assert fold([block()], QUIET).cells[ARM, CELL].prefix_cache_hit_rate is None


def test_throughput_and_cost_are_tokens_per_second() -> None:
    assert value(block(), "throughput") == value(block(), "cost") == pytest.approx(100)


def test_tpot_counts_by_its_inverse_and_passes_over_requests_without_one() -> None:
    assert value(block(), "tpot") == pytest.approx(1 / 0.015)
    assert value(block(tpot_s=(None, 0.02)), "tpot") == pytest.approx(1 / 0.02)


@pytest.mark.parametrize("times", [(None, None), (0.0, 0.0)])
def test_a_block_without_a_tpot_has_no_figure_to_compare(times: tuple[float | None, ...]) -> None:
    """All tokens in one chunk leave no time between them; throughput in its place would compare with others' TPOT."""
    rules = SelectionRules(objective="tpot")
    cell = fold([block(tpot_s=times)], rules).cells[ARM, CELL]
    assert cell.scores == []
    assert len(cell.throughputs) == 1


@pytest.mark.parametrize(
    ("slo", "good"), [({"ttft_s": 0.2}, 2), ({"ttft_s": 0.1}, 1), ({"ttft_s": 0.2, "tpot_s": 0.01}, 1)]
)
def test_goodput_counts_requests_that_keep_every_limit_per_second(slo: dict[str, float], good: int) -> None:
    assert value(block(), "goodput", **slo) == pytest.approx((good + 0.5) / block().wall_s)


def test_block_without_a_good_request_has_a_logarithm_too() -> None:
    assert value(block(), "goodput", ttft_s=0.01) == pytest.approx(0.5 / block().wall_s)


def test_cell_scores_by_the_objective_and_keeps_the_throughput_beside_it() -> None:
    cell = fold([block()], SelectionRules(objective="tpot")).cells[ARM, CELL]

    assert math.exp(cell.scores[0].value) == pytest.approx(1 / 0.015)
    assert math.exp(cell.throughputs[0].value) == pytest.approx(100)


def test_cell_adds_up_requests_time_and_good_ones() -> None:
    rules = SelectionRules(slo=Slo(ttft_s=0.1))

    cell = fold(measured(PLAN, {1: [100.0, 50.0]}), rules).cells[ARM, CELL]

    assert (cell.num_requests, cell.num_good) == (2 * NUM_PROMPTS, 2)
    assert cell.wall_s == pytest.approx(OUTPUT_TOKENS / 100 + OUTPUT_TOKENS / 50)
    assert sorted(cell.ttft_s) == [0.1, 0.1, 0.2, 0.2]


def test_counters_add_up_position_by_position_however_many_each_block_has() -> None:
    short = SpecCounters(num_drafts=2, num_draft_tokens=2, num_accepted_tokens=1, num_accepted_tokens_per_pos=(1,))
    long = SpecCounters(num_drafts=3, num_draft_tokens=6, num_accepted_tokens=5, num_accepted_tokens_per_pos=(3, 2))

    cell = fold([block(counters=each) for each in (short, long, None)], QUIET).cells[ARM, CELL]

    assert cell.counters == SpecCounters(
        num_drafts=5, num_draft_tokens=8, num_accepted_tokens=6, num_accepted_tokens_per_pos=(4, 2)
    )
    assert fold([block()], QUIET).cells[ARM, CELL].counters is None
