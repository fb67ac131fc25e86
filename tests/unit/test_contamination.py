"""What the engine's own counters say against a block, without an engine."""

import pytest

from orchestrator.records import SCHEDULE_KEY, Arm, SpecCounters
from tasks.contamination import contamination, speculation_mismatch
from tasks.counters import EngineCounters
from tests.unit.builders import make_plan

CLEAN = EngineCounters(
    spec=None, prefix_cache_hits=0, prefix_cache_queries=0, num_preemptions=0, generation_tokens=1000
)
CELL = make_plan([7]).workloads[0]


@pytest.fixture
def baseline() -> Arm:
    return make_plan([7]).arms[0]


@pytest.fixture
def dflash_k7() -> Arm:
    return make_plan([7]).arms[1]


def spec(num_drafts: int, num_draft_tokens: int) -> SpecCounters:
    return SpecCounters(
        num_drafts=num_drafts, num_draft_tokens=num_draft_tokens, num_accepted_tokens=0, num_accepted_tokens_per_pos=()
    )


def test_clean_baseline_block_counts(baseline: Arm) -> None:
    assert contamination(baseline, CELL, CLEAN, 1000) is None


def test_clean_speculating_block_counts(dflash_k7: Arm) -> None:
    assert contamination(dflash_k7, CELL, CLEAN.model_copy(update={"spec": spec(100, 700)}), 1000) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prefix_cache_hits": 16}, "16 prefix cache hits although prefix caching is off"),
        ({"num_preemptions": 2}, "2 requests were preempted (KV cache full); raise server.kv_cache_gib"),
        ({"generation_tokens": 990}, "the engine generated 990 tokens, but the client was sent 1000"),
        ({"generation_tokens": 1128}, "the engine generated 1128 tokens, but the client was sent 1000"),
        ({"spec": spec(10, 70)}, "the baseline drafted 7.00 tokens a step"),
    ],
)
def test_contaminated_block_is_void_with_its_reason(baseline: Arm, changes: dict[str, object], reason: str) -> None:
    assert contamination(baseline, CELL, CLEAN.model_copy(update=changes), 1000) == reason


def test_prefix_cache_hits_are_fine_where_prefix_caching_is_the_arm() -> None:
    arm = make_plan([7]).arms[0]
    caching = arm.model_copy(update={"server": arm.server.model_copy(update={"enable_prefix_caching": True})})

    assert contamination(caching, CELL, CLEAN.model_copy(update={"prefix_cache_hits": 16}), 1000) is None


def test_counter_that_the_engine_does_not_have_says_nothing(baseline: Arm) -> None:
    unknown = EngineCounters(
        spec=None, prefix_cache_hits=None, prefix_cache_queries=None, num_preemptions=None, generation_tokens=None
    )

    assert contamination(baseline, CELL, unknown, 1000) is None


@pytest.mark.parametrize("counters", [None, spec(0, 0)])
def test_arm_that_drafts_nothing_does_not_speculate(dflash_k7: Arm, counters: SpecCounters | None) -> None:
    assert speculation_mismatch(dflash_k7, CELL, counters) == "dflash-k7 drafted nothing: the engine does not speculate"


def test_other_number_of_draft_tokens_than_the_arms_is_a_mismatch(dflash_k7: Arm) -> None:
    reason = "dflash-k7 should draft 7 tokens a step, but the engine drafted 5.00"

    assert speculation_mismatch(dflash_k7, CELL, spec(100, 500)) == reason
    assert contamination(dflash_k7, CELL, CLEAN.model_copy(update={"spec": spec(100, 500)}), 1000) == reason


@pytest.mark.parametrize(("drafted", "matches"), [(700, True), (690, True), (710, True), (680, False), (720, False)])
def test_draft_length_may_be_off_by_two_percent(dflash_k7: Arm, drafted: int, matches: bool) -> None:
    assert (speculation_mismatch(dflash_k7, CELL, spec(100, drafted)) is None) == matches


@pytest.mark.parametrize(("drafted", "matches"), [(None, True), (100, True), (700, True), (800, False)])
def test_method_that_drafts_what_it_finds_drafts_at_most_k(drafted: int | None, matches: bool) -> None:
    ngram = make_plan([7]).arms[1].model_copy(update={"method": "ngram", "name": "ngram-k7"})
    counters = spec(100, drafted) if drafted else None

    assert (speculation_mismatch(ngram, CELL, counters) is None) == matches


def test_baseline_without_counters_matches(baseline: Arm) -> None:
    assert speculation_mismatch(baseline, CELL, None) is None


def test_arm_with_a_schedule_may_draft_any_number_of_it_up_to_the_concurrency() -> None:
    arm = make_plan([7]).arms[1]
    config = {**(arm.server.speculative_config or {}), SCHEDULE_KEY: [[1, 1, 7], [2, 3, 3], [4, 16, 0]]}
    server = arm.server.model_copy(update={"speculative_config": config})
    scheduled = arm.model_copy(update={"name": "dflash-schedule", "server": server})

    assert speculation_mismatch(scheduled, CELL.model_copy(update={"max_concurrency": 3}), spec(100, 400)) is None
    assert speculation_mismatch(scheduled, CELL.model_copy(update={"max_concurrency": 4}), None) is None
    assert (
        speculation_mismatch(scheduled, CELL, None) == "dflash-schedule drafted nothing: the engine does not speculate"
    )
    assert (
        speculation_mismatch(scheduled, CELL.model_copy(update={"max_concurrency": 2}), spec(100, 200))
        == "dflash-schedule should draft 3 to 7 tokens a step, but the engine drafted 2.00"
    )
