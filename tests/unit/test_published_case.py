"""The published benchmark through the whole analysis: its counters, its speedup, and what they mean in dollars."""

import pytest

from benchmarks.published_case import (
    HUMANEVAL,
    MEAN_SPEEDUP,
    SAVING,
    bound_tokens_per_s,
    harmonic_mean_speedup,
    spread,
    steps_per_baseline_step,
)
from orchestrator.compose import compose
from orchestrator.decide import decide
from orchestrator.display import decision_row
from orchestrator.metrics import saving
from orchestrator.plan import Plan, PromptSet, plan_sweep
from orchestrator.records import BlockRecord, Message, Prompt, SpecCounters
from orchestrator.selection import WorkloadResult
from tests.unit.builders import block_record

BASELINE_TOKENS_PER_S = 10.0
PUBLISHED = ["sweep=xeon_dflash", "dataset@datasets=[humaneval]", "speculation.num_speculative_tokens=[15]"]


def in_parts(counters: SpecCounters, number: int) -> list[SpecCounters]:
    """The counters of `number` blocks that add up to `counters`."""

    def cut(count: int) -> list[int]:
        return [count * (i + 1) // number - count * i // number for i in range(number)]

    drafts = cut(counters.num_drafts)
    positions = list(zip(*(cut(count) for count in counters.num_accepted_tokens_per_pos), strict=True))
    return [
        SpecCounters(
            num_drafts=some,
            num_draft_tokens=15 * some,
            num_accepted_tokens=sum(accepted),
            num_accepted_tokens_per_pos=accepted,
        )
        for some, accepted in zip(drafts, positions, strict=True)
    ]


def measured(plan: Plan) -> list[BlockRecord]:
    counters = in_parts(HUMANEVAL, len(plan.blocks))
    baseline = [block_record(plan, plan.baseline, block, BASELINE_TOKENS_PER_S) for block in plan.blocks]
    arm = [
        block_record(plan, plan.arms[1], block, MEAN_SPEEDUP * BASELINE_TOKENS_PER_S, counters=part)
        for block, part in zip(plan.blocks, counters, strict=True)
    ]
    return baseline + arm


@pytest.fixture(scope="module")
def decided() -> WorkloadResult:
    config = compose([*PUBLISHED, "hardware.spot_usd_per_hour=1.5"])
    prompts = tuple(Prompt(messages=(Message(role="user", content=f"{i}"),)) for i in range(80))
    plan = plan_sweep(config, {"humaneval": PromptSet(prompts=prompts, num_read=80, num_too_long=0)})
    return decide(config, plan, measured(plan)).workloads[0]


def test_published_counters_come_out_of_the_analysis_as_published(decided: WorkloadResult) -> None:
    arm = decided.arms[1]

    assert arm.acceptance_rate == pytest.approx(0.3956, abs=5e-5)
    assert arm.acceptance_length == pytest.approx(6.93, abs=5e-3)
    assert arm.survival is not None
    assert arm.survival[0] == pytest.approx(0.8583, abs=5e-5)
    assert arm.survival[14] == pytest.approx(0.1181, abs=5e-5)


def test_published_speedup_is_a_gain_and_comes_out_as_published(decided: WorkloadResult) -> None:
    arm = decided.arms[1]

    assert decided.verdict == "speculate"
    assert arm.speedup is not None
    assert arm.speedup.mean == pytest.approx(3.92)
    assert arm.speedup.ci_low < 3.92 < arm.speedup.ci_high


def test_published_speedup_divides_the_cost_of_a_token(decided: WorkloadResult) -> None:
    before, after = (arm.usd_per_million_output_tokens for arm in decided.arms)

    assert before == pytest.approx(4.44544 / (3600 * BASELINE_TOKENS_PER_S) * 1e6)
    assert after is not None
    assert before is not None
    assert 1 - after / before == pytest.approx(saving(3.92), abs=1e-9)
    assert decision_row(decided).saving_percent == "74.5 [72.9, 75.9]"


def test_spot_price_is_shown_beside_the_one_on_demand(decided: WorkloadResult) -> None:
    arm = decided.arms[1]

    assert arm.spot_usd_per_million_output_tokens == pytest.approx(1.5 / (3600 * 39.2) * 1e6)
    assert decision_row(decided).usd_per_million == "31.5 (10.6 on spot)"


def test_published_saving_is_that_of_nearly_equal_speedups() -> None:
    harmonic = harmonic_mean_speedup(SAVING)

    assert saving(MEAN_SPEEDUP) == pytest.approx(0.7449, abs=5e-5)
    assert harmonic == pytest.approx(3.906, abs=5e-4)
    assert spread(MEAN_SPEEDUP, harmonic) == pytest.approx(0.23, abs=0.005)


def test_spread_of_speedups_follows_from_their_two_means() -> None:
    speedups = (3.7, 3.92, 4.14)
    harmonic = len(speedups) / sum(1 / speedup for speedup in speedups)

    assert spread(3.92, harmonic) == pytest.approx(0.18, abs=0.005)


def test_bound_of_the_baseline_and_the_price_of_a_step() -> None:
    assert bound_tokens_per_s() == pytest.approx(691.2 / 19.306, abs=0.01)
    assert steps_per_baseline_step(3.92) == pytest.approx(1.77, abs=0.005)
