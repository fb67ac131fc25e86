"""From measured blocks to what is recommended, and why."""

from collections.abc import Mapping, Sequence

import pytest

from orchestrator.config import Constraints, SelectionRules, SweepConfig
from orchestrator.decide import Decided, decide
from orchestrator.plan import Plan
from orchestrator.records import SCHEDULE_KEY, Arm, BlockRecord, Phase
from tests.unit.builders import block_record, make_config, plan_of

LEVELS = (1, 4)
WOBBLE = (1.0, 1.01, 0.99, 1.0)
Speedups = Mapping[int, Sequence[float | None]]
"""k -> at each level; None was not measured."""


class Sweep:
    """k=3 and k=7 at two levels, and what is decided of them."""

    def __init__(self, speedups: Speedups, *, again: Mapping[str, float] | None = None, **rules: object) -> None:
        """`again`: arm name -> speedup of its confirmation at every level."""
        config: SweepConfig = make_config([3, 7], concurrencies=LEVELS)
        selection = SelectionRules.model_validate({"visit_noise": 0, **rules})
        self.config = config.model_copy(update={"selection": selection})
        self.plan: Plan = plan_of(self.config)
        self.blocks = self._measured(self.plan.baseline, (1, 1), "opening")
        self.blocks += self._measured(self.plan.baseline, (1, 1), "closing")
        for arm in self.plan.arms[1:]:
            self.blocks += self._measured(arm, speedups.get(arm.num_speculative_tokens, ()), "arm")
        for setting in self.decided.settings if again else ():
            if again and setting.arm.name in again:
                self.blocks += self._measured(setting.arm, [again[setting.arm.name]] * 2, "confirm")

    def _measured(self, arm: Arm, speedups: Sequence[float | None], phase: Phase) -> list[BlockRecord]:
        return [
            block_record(self.plan, arm, block, 100 * speedup * WOBBLE[block.index], phase=phase)
            for cell, speedup in zip(self.plan.workloads, speedups, strict=False)
            if speedup is not None
            for block in self.plan.blocks_of(cell.id)
        ]

    @property
    def decided(self) -> Decided:
        return decide(self.config, self.plan, self.blocks)

    @property
    def recommended(self) -> str | None:
        arm = self.decided.recommended
        return arm.name if arm else None


CROSSING: Speedups = {3: (1.5, 1.3), 7: (2.0, 0.9)}
"""k=7 is best over the mix, yet a schedule of both gains more."""


def test_static_setting_is_recommended_before_it_was_measured_again_and_says_so() -> None:
    sweep = Sweep({3: (1.5, 1.4), 7: (2.0, 1.8)})

    assert sweep.recommended == "dflash-k7"
    assert sweep.decided.reason == "chosen on the mix; not measured again yet"
    assert [found.verdict for found in sweep.decided.confirmations] == ["open"]


def test_setting_that_held_is_recommended_with_the_figure_of_its_confirmation() -> None:
    sweep = Sweep({3: (1.5, 1.4), 7: (2.0, 1.8)}, again={"dflash-k7": 1.7})

    assert sweep.recommended == "dflash-k7"
    assert sweep.decided.reason.startswith("measured again at the mix: 1.70x [")


def test_setting_whose_gain_does_not_show_again_is_withdrawn_for_the_baseline() -> None:
    sweep = Sweep({3: (1.5, 1.4), 7: (2.0, 1.8)}, again={"dflash-k7": 0.97})

    assert sweep.recommended == "none"
    assert sweep.decided.reason.startswith("dflash-k7 was withdrawn: measured again at the mix: 0.97x [")


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        ({"dflash-k7": 1.45, "dflash-schedule": 1.6}, "dflash-schedule"),
        ({"dflash-k7": 1.45, "dflash-schedule": 1.455}, "dflash-k7"),  # a tie: the simpler one
        ({"dflash-k7": 0.9, "dflash-schedule": 1.6}, "dflash-schedule"),
        ({"dflash-k7": 1.45, "dflash-schedule": 0.9}, "dflash-k7"),
        ({"dflash-k7": 0.9, "dflash-schedule": 0.9}, "none"),
        ({}, "dflash-k7"),  # a schedule is never recommended unmeasured
    ],
)
def test_schedule_is_recommended_only_where_it_was_measured_and_beats_the_static_setting(
    again: dict[str, float], expected: str
) -> None:
    assert Sweep(CROSSING, again=again).recommended == expected


def test_baseline_is_recommended_where_nothing_gains_on_the_mix() -> None:
    sweep = Sweep({3: (1.2, 0.5), 7: (1.1, 0.4)})

    assert sweep.recommended == "none"
    assert sweep.decided.reason == "no setting is proven to gain on the mix as a whole"


def test_nothing_is_recommended_without_figures_on_the_whole_mix() -> None:
    sweep = Sweep({3: (1.5, None), 7: (2.0, None)})

    assert sweep.recommended is None
    assert sweep.decided.reason == "no setting has figures on the whole mix"


def test_traffic_decides_between_settings() -> None:
    sweep = Sweep({3: (1.2, 1.5), 7: (2.0, 0.5)})
    chosen = []
    for traffic in ({1: 0.9, 4: 0.1}, {1: 0.1, 4: 0.9}, {1: 0.0, 4: 1.0}):
        workload = sweep.config.workload.model_copy(update={"traffic": traffic})
        sweep.config = sweep.config.model_copy(update={"workload": workload})
        chosen.append(sweep.recommended)

    assert chosen == ["dflash-k7", "dflash-k3", "dflash-k3"]


def test_arm_that_breaks_a_constraint_at_one_level_is_no_setting_for_the_mix_but_is_scheduled_at_the_others() -> None:
    sweep = Sweep({3: (1.5, 1.4), 7: (2.0, 1.8)}, constraints=Constraints(ttft_p95_s=0.3))
    busy = sweep.plan.workloads[1].id
    sweep.blocks = [
        block.model_copy(update={"ttft_s": (0.4, 0.4)})
        if (block.arm_id, block.workload_id) == (sweep.plan.arms[2].id, busy)
        else block
        for block in sweep.blocks
    ]

    found = sweep.decided

    assert [each.best and each.best.arm for each in found.workloads] == ["dflash-k7", "dflash-k3"]
    assert sweep.recommended == "dflash-k3"
    static, schedule = found.settings
    assert static.arm.name == "dflash-k3"
    assert (schedule.arm.server.speculative_config or {})[SCHEDULE_KEY] == [[1, 1, 7], [2, 4, 3], [5, 16, 0]]


def test_slower_arm_is_recommended_where_the_baseline_breaks_a_constraint_that_it_keeps() -> None:
    sweep = Sweep({3: (0.95, 0.95)}, constraints=Constraints(ttft_p95_s=0.3))
    late = [
        block.model_copy(update={"ttft_s": (0.4, 0.4)}) if block.arm_id == sweep.plan.baseline.id else block
        for block in sweep.blocks
    ]
    sweep.blocks = late

    found = sweep.decided

    assert [each.best and each.best.arm for each in found.workloads] == ["dflash-k3", "dflash-k3"]
    assert "the baseline breaks ttft_p95_s=0.3" in found.workloads[0].reason
    assert sweep.recommended == "dflash-k3"


def test_baseline_that_is_recommended_for_want_of_better_says_that_it_breaks_a_constraint() -> None:
    sweep = Sweep({3: (1.5, 1.5)}, constraints=Constraints(ttft_p95_s=0.01))

    assert sweep.recommended == "none"
    assert "it breaks a constraint itself" in sweep.decided.reason


def test_all_that_is_reported_comes_from_one_decision() -> None:
    found = Sweep(CROSSING).decided

    assert [each.verdict for each in found.workloads] == ["speculate"] * 2
    assert [(each.pays_up_to, each.stops_at) for each in found.crossovers] == [(4, None)]
    assert [each.num_speculative_tokens_per_batch_size[0] for each in found.schedules] == [(1, 1, 7)]
    assert [(each.dataset, each.best and each.best.arm) for each in found.mixes] == [("code", "dflash-k7")]
    assert [setting.kind for setting in found.settings] == ["static", "schedule"]
