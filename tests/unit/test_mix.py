"""What an arm gains on the traffic mix, against the formula worked out by hand."""

import math
from collections.abc import Iterator, Mapping, Sequence

import pytest

from orchestrator.compare import Comparisons
from orchestrator.config import SelectionRules, Workload
from orchestrator.mix import Traffic, gains_of, mix_levels, mixes, traffic_of
from orchestrator.plan import Plan
from orchestrator.records import BlockRecord
from orchestrator.selection import Mix
from tests.unit.builders import QUIET, block_record, compare, make_plan

Rates = Mapping[tuple[str, int], Sequence[float]]
"""(dataset, concurrency) -> tokens/s by the place of the arm in the plan, the baseline first."""

TWO_LEVELS: Rates = {("code", 1): (100, 200), ("code", 4): (300, 270)}


def found_for(rates: Rates, rules: SelectionRules = QUIET, wobble: float = 0.0) -> Comparisons:
    """Every arm and level, the same on all blocks but for `wobble` up and down in the arms."""
    datasets, levels = dict.fromkeys(d for d, _ in rates), dict.fromkeys(c for _, c in rates)
    grid = range(1, max(len(each) for each in rates.values()))
    plan = make_plan(list(grid), datasets=list(datasets), concurrencies=list(levels))
    return compare(plan, [*_blocks(plan, rates, wobble)], rules)


def _blocks(plan: Plan, rates: Rates, wobble: float) -> Iterator[BlockRecord]:
    for cell in plan.workloads:
        for arm, rate in zip(plan.arms, rates.get((cell.dataset, int(cell.level)), ()), strict=False):
            for block in plan.blocks_of(cell.id):
                scatter = 0.0 if arm.is_baseline else wobble * (-1) ** block.index
                yield block_record(plan, arm, block, rate * math.exp(scatter))


def gain(found: Comparisons, traffic: Traffic, dataset: str | None = None) -> float | None:
    mixed = mix_levels(found, traffic, gains_of(found.plan.arms[1], found), dataset)
    return math.exp(mixed.mean) if mixed else None


def overall(found: Comparisons, traffic: Traffic) -> Mix:
    return mixes(found, traffic, found.plan.arms[1:])[-1]


@pytest.mark.parametrize(
    ("traffic", "expected"),
    [
        ({1: 0.5, 4: 0.5}, (200 + 270) / (100 + 300)),
        ({1: 0.9, 4: 0.1}, (0.9 * 200 + 0.1 * 270) / (0.9 * 100 + 0.1 * 300)),
        ({1: 1.0}, 2.0),
        ({4: 1.0}, 0.9),
    ],
)
def test_gain_is_the_ratio_of_tokens_in_the_same_time(traffic: Traffic, expected: float) -> None:
    assert gain(found_for(TWO_LEVELS), traffic) == pytest.approx(expected)


def test_datasets_weigh_the_same_by_the_geometric_mean() -> None:
    found = found_for({("code", 1): (100, 200), ("chat", 1): (1000, 900)})

    assert gain(found, {1: 1.0}) == pytest.approx(math.sqrt(2.0 * 0.9))
    assert gain(found, {1: 1.0}, "chat") == pytest.approx(0.9)


def test_uncertainty_of_a_level_counts_by_its_share_of_the_tokens() -> None:
    found = found_for(TWO_LEVELS, wobble=0.1)
    arm = found.plan.arms[1]
    alone = [found.estimates[arm.id, cell.id].block_variance for cell in found.plan.workloads]

    mixed = mix_levels(found, {1: 0.5, 4: 0.5}, gains_of(arm, found))

    shares = [200 / 470, 270 / 470]
    assert mixed is not None
    assert mixed.block_variance == pytest.approx(sum(s**2 * v for s, v in zip(shares, alone, strict=True)), rel=1e-3)


def test_noise_of_one_visit_that_all_levels_share_is_not_averaged_out() -> None:
    found = found_for(TWO_LEVELS)

    mixed = mix_levels(found, {1: 0.5, 4: 0.5}, gains_of(found.plan.arms[1], found))

    assert mixed is not None
    assert mixed.visits == pytest.approx({"dflash-k1-arm-a": 1.0, "none-opening-a": -1.0})


@pytest.mark.parametrize("lacking", [(300,), ()])
def test_level_without_a_figure_of_the_arm_or_the_baseline_leaves_the_mix_without_one(
    lacking: tuple[float, ...],
) -> None:
    found = found_for({("code", 1): (100, 200), ("code", 4): lacking})

    assert gain(found, {1: 0.5, 4: 0.5}) is None
    assert gain(found, {1: 1.0}) == pytest.approx(2.0)
    assert overall(found, {1: 0.5, 4: 0.5}).verdict == "undecided"


def test_dataset_without_a_figure_leaves_the_mix_over_all_without_one() -> None:
    found = found_for({("code", 1): (100, 200), ("chat", 1): (100,)})

    assert gain(found, {1: 1.0}) is None
    assert gain(found, {1: 1.0}, "code") == pytest.approx(2.0)


def test_traffic_is_even_over_the_measured_levels_unless_it_is_given() -> None:
    assert traffic_of(Workload(max_concurrency=(4, 1))) == {1: 0.5, 4: 0.5}
    given = Workload(max_concurrency=(1, 4, 8), traffic={8: 0.3, 1: 0.7, 4: 0})
    assert traffic_of(given) == {1: 0.7, 8: 0.3}


def test_best_of_the_mix_need_not_be_the_best_of_any_level() -> None:
    found = found_for({("code", 1): (100, 300, 250, 100), ("code", 4): (300, 200, 420, 450)})

    mix = overall(found, {1: 0.5, 4: 0.5})

    assert mix.verdict == "speculate"
    assert mix.best is not None
    assert mix.best.num_speculative_tokens == 2
    assert [round(arm.gain.mean, 3) for arm in mix.arms if arm.gain] == [1.25, 1.675, 1.375]


def test_gain_at_one_level_that_the_mix_loses_elsewhere_keeps_the_baseline() -> None:
    mix = overall(found_for({("code", 1): (100, 200), ("code", 4): (300, 150)}), {1: 0.5, 4: 0.5})

    assert (mix.verdict, mix.best and mix.best.method) == ("baseline", "none")


def test_gain_too_noisy_on_one_dataset_may_be_sure_over_many() -> None:
    names = [f"d{index}" for index in range(9)]
    found = found_for({(name, 1): (100, 120) for name in names}, wobble=0.15)

    *each, together = mixes(found, {1: 1.0}, found.plan.arms[1:])

    assert {mix.verdict for mix in each} == {"undecided"}
    assert (together.dataset, together.verdict) == (None, "speculate")


def test_arm_that_is_not_allowed_shows_its_gain_but_is_not_chosen() -> None:
    found = found_for({("code", 1): (100, 150, 200)})

    [mix] = mixes(found, {1: 1.0}, [found.plan.arms[1]])

    assert mix.best is not None
    assert mix.best.num_speculative_tokens == 1
    assert [arm.gain.mean for arm in mix.arms if arm.gain] == pytest.approx([1.5, 2.0])


def test_plan_of_the_baseline_alone_mixes_to_the_baseline() -> None:
    [mix] = mixes(found_for({("code", 1): (100,)}), {1: 1.0}, [])

    assert (mix.verdict, mix.best and mix.best.arm) == ("baseline", "none")
