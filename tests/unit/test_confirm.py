"""Recommended settings measured again: what has to be, and what becomes of it."""

from collections.abc import Mapping, Sequence

import pytest

from orchestrator.compare import compare_cells
from orchestrator.config import Level, SelectionRules
from orchestrator.confirm import Setting, confirm, settings_to_confirm
from orchestrator.measured import Folded, fold
from orchestrator.mix import Traffic
from orchestrator.plan import Plan
from orchestrator.records import SCHEDULE_KEY, Arm, BlockRecord, Phase
from orchestrator.selection import Confirmation
from tests.unit.builders import QUIET, block_record, compare, make_plan

TRAFFIC: Traffic = {1: 0.5, 4: 0.5}
WOBBLE = (1.0, 1.01, 0.99, 1.0)


@pytest.fixture
def plan() -> Plan:
    return make_plan([3, 7], concurrencies=(1, 4))


def blocks_of(plan: Plan, arm: Arm, speedups: Sequence[float], phase: Phase, wobble: float = 1.0) -> list[BlockRecord]:
    """One speedup for each workload of the plan."""
    return [
        block_record(plan, arm, block, 100 * speedup * (WOBBLE[block.index] ** wobble), phase=phase)
        for cell, speedup in zip(plan.workloads, speedups, strict=True)
        for block in plan.blocks_of(cell.id)
    ]


def searched(plan: Plan, speedups: Mapping[int, Sequence[float]]) -> list[BlockRecord]:
    """k -> speedup at each level; the baseline gives 100 tokens/s everywhere, before and after."""
    found = [block_record(plan, plan.baseline, block, phase=phase) for phase in BASELINES for block in plan.blocks]
    for arm in plan.arms[1:]:
        found += blocks_of(plan, arm, speedups[arm.num_speculative_tokens], "arm")
    return found


BASELINES: tuple[Phase, ...] = ("opening", "closing")


def to_confirm(plan: Plan, speedups: Mapping[int, Sequence[float]], static_k: int) -> list[Setting]:
    static = next(arm for arm in plan.arms if arm.num_speculative_tokens == static_k)
    return settings_to_confirm(compare(plan, searched(plan, speedups)), TRAFFIC, static, every_arm(plan))


def every_arm(plan: Plan) -> dict[Level, Sequence[Arm]]:
    return dict.fromkeys(TRAFFIC, plan.arms[1:])


def confirmed(plan: Plan, again: Sequence[BlockRecord], rules: SelectionRules = QUIET) -> Confirmation:
    """k=3, which the search found twice as fast as the baseline, after `again` was measured."""
    folded: Folded = fold([*searched(plan, {3: (2, 2), 7: (1, 1)}), *again], rules)
    found = compare_cells(plan, folded.cells, rules)
    [result] = confirm(
        found, folded.confirmed, TRAFFIC, settings_to_confirm(found, TRAFFIC, plan.arms[1], every_arm(plan))
    )
    return result


# --- what has to be measured again


def test_same_k_at_every_level_leaves_only_the_static_setting(plan: Plan) -> None:
    [setting] = to_confirm(plan, {3: (2, 2), 7: (1, 1)}, static_k=3)

    assert (setting.kind, setting.arm) == ("static", plan.arms[1])


def test_schedule_is_confirmed_beside_the_static_setting_as_a_server_of_its_own(plan: Plan) -> None:
    static, schedule = to_confirm(plan, {3: (1.5, 1.2), 7: (2, 0.8)}, static_k=7)

    assert (static.kind, schedule.kind) == ("static", "schedule")
    assert schedule.arm.name == "dflash-schedule"
    assert schedule.arm.id not in {arm.id for arm in plan.arms}
    config = schedule.arm.server.speculative_config
    assert config is not None
    assert config[SCHEDULE_KEY] == [[1, 1, 7], [2, 4, 3], [5, 16, 0]]
    assert config["num_speculative_tokens"] == 7


def test_schedule_is_predicted_to_gain_what_its_arms_did_at_their_levels(plan: Plan) -> None:
    _, schedule = to_confirm(plan, {3: (1.5, 1.2), 7: (2, 0.8)}, static_k=7)

    assert schedule.predicted is not None
    assert schedule.predicted.interval(compare(plan, []).noise, 0.95).mean == pytest.approx((2 + 1.2) / 2, rel=1e-3)


def test_level_where_nothing_gains_is_scheduled_without_speculation(plan: Plan) -> None:
    [schedule] = to_confirm(plan, {3: (1.5, 0.5), 7: (1.2, 0.5)}, static_k=0)

    config = schedule.arm.server.speculative_config
    assert config is not None
    assert config[SCHEDULE_KEY] == [[1, 1, 3], [2, 16, 0]]
    assert schedule.predicted is not None
    assert schedule.predicted.mean == pytest.approx(0.2231, abs=1e-3)  # (1.5 + 1) / 2


def test_nothing_is_confirmed_where_nothing_speculates(plan: Plan) -> None:
    assert to_confirm(plan, {3: (0.9, 0.5), 7: (0.8, 0.5)}, static_k=0) == []


# --- what becomes of it


def test_setting_is_open_until_it_was_measured_on_the_whole_mix(plan: Plan) -> None:
    half = [b for b in blocks_of(plan, plan.arms[1], (2, 2), "confirm") if b.workload_id == plan.workloads[0].id]

    for again in ([], half):
        result = confirmed(plan, again)
        assert (result.verdict, result.confirmed, result.reason) == ("open", None, "not measured again yet")
        assert result.predicted is not None


def test_setting_is_open_until_enough_blocks_were_measured_again(plan: Plan) -> None:
    few = [b for b in blocks_of(plan, plan.arms[1], (2, 2), "confirm") if b.block_index < QUIET.min_blocks - 1]

    result = confirmed(plan, few)

    assert (result.verdict, result.reason) == ("open", "measured again on 2 of at least 3 blocks so far")
    assert result.confirmed is not None


def test_gain_that_shows_again_holds_with_both_figures(plan: Plan) -> None:
    result = confirmed(plan, blocks_of(plan, plan.arms[1], (1.9, 2.1), "confirm"))

    assert (result.setting, result.arm, result.verdict) == ("static", "dflash-k3", "holds")
    assert result.predicted is not None
    assert result.confirmed is not None
    assert (result.predicted.mean, result.confirmed.mean) == pytest.approx((2, 2), rel=1e-3)
    assert result.reason.startswith("measured again at the mix: 2.00x [")


@pytest.mark.parametrize(("speedup", "wobble"), [(0.9, 1.0), (1.005, 0.0), (1.05, 10.0)])
def test_gain_that_does_not_show_again_is_withdrawn(plan: Plan, speedup: float, wobble: float) -> None:
    """Slower than the baseline, no faster than a tie, or too noisy to tell."""
    result = confirmed(plan, blocks_of(plan, plan.arms[1], (speedup, speedup), "confirm", wobble))

    assert result.verdict == "withdrawn"
    assert "no proven gain" in result.reason


def test_gain_that_holds_but_is_far_from_the_predicted_one_says_so(plan: Plan) -> None:
    near, far = (
        confirmed(plan, blocks_of(plan, plan.arms[1], (again, again), "confirm"), SelectionRules())
        for again in (1.95, 1.4)
    )

    assert near.verdict == far.verdict == "holds"
    assert "was predicted" not in near.reason
    assert "2.00x was predicted, which is more than noise apart" in far.reason


def test_measuring_again_changes_nothing_of_what_was_compared_before(plan: Plan) -> None:
    blocks = searched(plan, {3: (2, 2), 7: (1, 1)})

    again = blocks_of(plan, plan.arms[1], (9, 9), "confirm")

    assert compare(plan, [*blocks, *again]).estimates == compare(plan, blocks).estimates
