"""What the engine's own counters say against a block, without an engine."""

from pathlib import Path

import pytest

from orchestrator.config import Hardware, Server
from orchestrator.records import SCHEDULE_KEY, Arm, SpecCounters, Visit, VisitTask
from tasks.counters import EngineCounters
from tasks.visit import _Run
from tests.unit.builders import make_plan

CLEAN = EngineCounters(
    spec=None, prefix_cache_hits=0, prefix_cache_queries=0, num_preemptions=0, generation_tokens=1000
)


def run_of(arm: Arm) -> _Run:
    visit = Visit(id="v", arm=arm, phase="arm", node="a", attempt=1, block_ids=())
    task = VisitTask(visit=visit, hardware=Hardware(name="local"), server=Server(), workloads={}, blocks=())
    return _Run(task, {}, Path("no.log"))


CELL = make_plan([7]).workloads[0]


@pytest.fixture
def baseline() -> _Run:
    return run_of(make_plan([7]).arms[0])


@pytest.fixture
def dflash_k7() -> _Run:
    return run_of(make_plan([7]).arms[1])


def spec(num_drafts: int, num_draft_tokens: int) -> SpecCounters:
    return SpecCounters(
        num_drafts=num_drafts, num_draft_tokens=num_draft_tokens, num_accepted_tokens=0, num_accepted_tokens_per_pos=()
    )


def test_clean_baseline_block_counts(baseline: _Run) -> None:
    assert baseline._contamination(CLEAN, 1000, CELL) is None


def test_clean_speculating_block_counts(dflash_k7: _Run) -> None:
    assert dflash_k7._contamination(CLEAN.model_copy(update={"spec": spec(100, 700)}), 1000, CELL) is None


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
def test_contaminated_block_is_void_with_its_reason(baseline: _Run, changes: dict[str, object], reason: str) -> None:
    assert baseline._contamination(CLEAN.model_copy(update=changes), 1000, CELL) == reason


def test_prefix_cache_hits_are_fine_where_prefix_caching_is_the_arm() -> None:
    arm = make_plan([7]).arms[0]
    caching = arm.model_copy(update={"server": arm.server.model_copy(update={"enable_prefix_caching": True})})

    assert run_of(caching)._contamination(CLEAN.model_copy(update={"prefix_cache_hits": 16}), 1000, CELL) is None


def test_counter_that_the_engine_does_not_have_says_nothing(baseline: _Run) -> None:
    unknown = EngineCounters(
        spec=None, prefix_cache_hits=None, prefix_cache_queries=None, num_preemptions=None, generation_tokens=None
    )

    assert baseline._contamination(unknown, 1000, CELL) is None


@pytest.mark.parametrize("counters", [None, spec(0, 0)])
def test_arm_that_drafts_nothing_does_not_speculate(dflash_k7: _Run, counters: SpecCounters | None) -> None:
    assert dflash_k7._speculation_mismatch(counters, CELL) == "dflash-k7 drafted nothing: the engine does not speculate"


def test_other_number_of_draft_tokens_than_the_arms_is_a_mismatch(dflash_k7: _Run) -> None:
    reason = "dflash-k7 should draft 7 tokens a step, but the engine drafted 5.00"

    assert dflash_k7._speculation_mismatch(spec(100, 500), CELL) == reason
    assert dflash_k7._contamination(CLEAN.model_copy(update={"spec": spec(100, 500)}), 1000, CELL) == reason


@pytest.mark.parametrize(("drafted", "matches"), [(700, True), (690, True), (710, True), (680, False), (720, False)])
def test_draft_length_may_be_off_by_two_percent(dflash_k7: _Run, drafted: int, matches: bool) -> None:
    assert (dflash_k7._speculation_mismatch(spec(100, drafted), CELL) is None) == matches


@pytest.mark.parametrize(("drafted", "matches"), [(None, True), (100, True), (700, True), (800, False)])
def test_method_that_drafts_what_it_finds_drafts_at_most_k(drafted: int | None, matches: bool) -> None:
    ngram = run_of(make_plan([7]).arms[1].model_copy(update={"method": "ngram", "name": "ngram-k7"}))
    counters = spec(100, drafted) if drafted else None

    assert (ngram._speculation_mismatch(counters, CELL) is None) == matches


def test_baseline_without_counters_matches(baseline: _Run) -> None:
    assert baseline._speculation_mismatch(None, CELL) is None


def test_arm_with_a_schedule_may_draft_any_number_of_it_up_to_the_concurrency() -> None:
    arm = make_plan([7]).arms[1]
    config = {**(arm.server.speculative_config or {}), SCHEDULE_KEY: [[1, 1, 7], [2, 3, 3], [4, 16, 0]]}
    server = arm.server.model_copy(update={"speculative_config": config})
    scheduled = run_of(arm.model_copy(update={"name": "dflash-schedule", "server": server}))

    assert scheduled._speculation_mismatch(spec(100, 400), CELL.model_copy(update={"max_concurrency": 3})) is None
    assert scheduled._speculation_mismatch(None, CELL.model_copy(update={"max_concurrency": 4})) is None
    assert (
        scheduled._speculation_mismatch(None, CELL) == "dflash-schedule drafted nothing: the engine does not speculate"
    )
    assert (
        scheduled._speculation_mismatch(spec(100, 200), CELL.model_copy(update={"max_concurrency": 2}))
        == "dflash-schedule should draft 3 to 7 tokens a step, but the engine drafted 2.00"
    )
