"""Answers whose tokens reached the client all at once: their times to the first token and per token are none."""

from typing import Any

import pytest

from orchestrator.decide import Decided, decide
from orchestrator.display import DASH
from orchestrator.measured import fold
from orchestrator.metrics import came_at_once
from orchestrator.plan import Plan
from orchestrator.records import BlockRecord
from orchestrator.report_tables import latency_table
from tests.unit.builders import QUIET, make_config, measured, plan_of

CONFIG = make_config([3, 7])
PLAN: Plan = plan_of(CONFIG)
AT_ONCE = {"ttft_s": (0.999, 1.999), "tpot_s": (0.00001, 0.00001)}
"""Of answers that take 1 and 2 s."""
RATES = {0: [100.0, 101, 99, 100], 3: [150.0, 151, 149, 150], 7: [120.0, 121, 119, 120]}


def blocks_of(*at_once: int) -> list[BlockRecord]:
    """Every arm's; all answers of those k came at once."""
    arms = {arm.id for arm in PLAN.arms if arm.num_speculative_tokens in at_once}
    return [
        block.model_copy(update=AT_ONCE if block.arm_id in arms else {})
        for block in measured(PLAN, RATES) + measured(PLAN, {0: RATES[0]}, phase="closing")
    ]


def decided(blocks: list[BlockRecord], **rules: Any) -> Decided:
    return decide(
        CONFIG.model_copy(update={"selection": QUIET.model_validate(QUIET.model_dump() | rules)}), PLAN, blocks
    )


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "e2e_s", "at_once"),
    [
        (0.4790, 0.0, 0.4790, True),  # as the demo's baseline on two cores
        (0.0113, 0.0031, 0.4051, False),  # the same server, a moment earlier
        (0.0105, 0.0004, 0.0160, False),  # two steps of 16 tokens
        (30.0, 0.1, 30.1, False),  # a long prompt, and two tokens
        (0.0300, None, 0.0300, False),  # one token has no time after it
    ],
)
def test_only_an_answer_of_several_tokens_without_time_between_them_came_at_once(
    ttft_s: float, tpot_s: float | None, e2e_s: float, at_once: bool
) -> None:
    assert came_at_once(ttft_s, tpot_s, e2e_s) is at_once


def test_times_that_are_no_measurement_are_missing_and_the_table_says_why() -> None:
    [workload] = decided(blocks_of(0)).workloads
    baseline, k3, _ = workload.arms
    assert baseline.ttft_s is baseline.tpot_s is None
    assert (baseline.all_at_once_share, k3.all_at_once_share) == (1.0, 0.0)
    assert k3.ttft_s
    assert baseline.e2e_s
    table = latency_table(workload)
    assert table.rows[0][1:] == (DASH, DASH, DASH, DASH)
    assert "all tokens of an answer at once" in table.caption
    assert "baseline (100 %)" in table.caption


def test_a_few_such_answers_are_left_out_of_the_times_and_change_nothing_else() -> None:
    one = blocks_of()
    rest = [*one[:1] * 15, one[0].model_copy(update={"ttft_s": (0.999, 0.2), "tpot_s": (0.0, 0.02)})]
    cell = fold(rest, QUIET).cells[PLAN.baseline.id, PLAN.workloads[0].id]
    assert cell.at_once_share == pytest.approx(1 / 32)
    assert cell.has_token_times
    assert max(cell.ttft_s) == 0.2
    assert len(cell.e2e_s) == 32


@pytest.mark.parametrize(
    "rules",
    [
        {"objective": "tpot"},
        {"objective": "goodput", "slo": {"ttft_s": 5}},
        {"constraints": {"tpot_p95_s": 5}},
        {"constraints": {"ttft_p95_s": 0.0001}},
    ],
)
@pytest.mark.parametrize("at_once", [(0,), (0, 3, 7), (3, 7)])
def test_rules_on_times_that_were_not_measured_leave_it_undecided_with_that_reason(
    rules: dict[str, Any], at_once: tuple[int, ...]
) -> None:
    found = decided(blocks_of(*at_once), **rules)
    [workload] = found.workloads
    assert workload.verdict == "undecided"
    assert "which were not measured: too many requests got all their tokens at once, of" in workload.reason
    assert found.recommended is None


@pytest.mark.parametrize("rules", [{}, {"constraints": {"e2e_p95_s": 5}}, {"objective": "e2e"}])
def test_rules_that_do_without_those_times_decide_as_ever(rules: dict[str, Any]) -> None:
    with_times, without = (decided(blocks_of(*at_once), **rules).workloads[0] for at_once in ((), (0, 3, 7)))
    assert without.verdict == with_times.verdict
    assert without.reason == with_times.reason


def test_an_arm_without_times_has_no_part_in_a_choice_that_asks_for_them() -> None:
    """k=7 is slower, but of k=3 it is not known whether it keeps the limit."""
    [workload] = decided(blocks_of(3), constraints={"tpot_p95_s": 5}).workloads
    assert workload.best
    assert workload.best.num_speculative_tokens == 7
    assert workload.arms[1].meets_constraints is None
    assert "of dflash-k3 (100 %)" in workload.reason
