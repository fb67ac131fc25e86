"""Two sweeps against each other: what became slower is named, what is noise is not."""

import io
import random
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.compare_sweeps import Measured, Row, SweepComparison, compare_sweeps, config_differences
from orchestrator.compare_text import compare_folders, print_comparison
from orchestrator.config import SelectionRules
from orchestrator.errors import ConfigError
from orchestrator.plan import Plan
from orchestrator.selection import Interval
from orchestrator.sweep_dir import SweepDir, open_sweep
from tests.unit.builders import block_record, make_config, make_plan, plan_of, write_all

RULES = SelectionRules(visit_noise=0.005)
RATES = {0: 100.0, 1: 120.0, 3: 150.0}
"""k -> tokens/s."""


def sweep(plan: Plan, seed: int, factors: dict[int, float] | None = None, noise: float = 0.01) -> Measured:
    """Blocks of their own difficulty, the same in every sweep, and noise of its own; `factors` slow an arm."""
    rng = random.Random(seed)
    blocks = [
        block_record(
            plan,
            arm,
            block,
            RATES[arm.num_speculative_tokens]
            * (1 + 0.5 * (block.index % 3))
            * (factors or {}).get(arm.num_speculative_tokens, 1.0)
            * rng.lognormvariate(0, noise),
        )
        for arm in plan.arms
        for block in plan.blocks
    ]
    return Measured.of(plan, blocks, RULES)


def compared(a: Measured, b: Measured) -> SweepComparison:
    return compare_sweeps(a, b, RULES, {})


def by_arm(found: SweepComparison) -> dict[str, Row]:
    return {row.arm: row for row in found.rows}


def test_an_arm_that_became_slower_is_named_with_its_interval() -> None:
    plan = make_plan((1, 3), num_blocks=6)
    rows = by_arm(compared(sweep(plan, 1), sweep(plan, 2, {3: 0.8})))
    assert rows["dflash-k3"].change == "slower"
    assert rows["dflash-k3"].ratio.ci_low < 0.8 < rows["dflash-k3"].ratio.ci_high
    assert rows["dflash-k1"].change in ("same", "open")


def test_an_arm_that_became_faster_is_named() -> None:
    plan = make_plan((1, 3), num_blocks=6)
    assert by_arm(compared(sweep(plan, 1), sweep(plan, 2, {1: 1.2})))["dflash-k1"].change == "faster"


def test_equal_sweeps_differ_in_nothing() -> None:
    plan = make_plan((1, 3), num_blocks=6)
    assert {row.change for row in compared(sweep(plan, 1), sweep(plan, 2)).rows} <= {"same", "open"}


def test_blocks_of_the_same_prompts_are_compared_in_pairs() -> None:
    """Their difficulty differs threefold, which only pairs take out."""
    plan = make_plan((1, 3), num_blocks=6)
    row = compared(sweep(plan, 1), sweep(plan, 2)).rows[0]
    assert row.is_paired
    assert row.num_blocks == 6
    assert row.ratio.ci_high / row.ratio.ci_low < 1.1


def test_other_prompts_are_compared_by_their_means() -> None:
    a = plan_of(make_config((1, 3), num_blocks=6))
    b = plan_of(make_config((1, 3), num_blocks=6, seed=1))
    row = by_arm(compared(sweep(a, 1), sweep(b, 2, {3: 0.2})))["dflash-k3"]
    assert not row.is_paired
    assert row.change == "slower"


def test_what_only_one_sweep_measured_is_listed() -> None:
    found = compared(sweep(make_plan((1, 3)), 1), sweep(make_plan((1,)), 2))
    assert found.only_in_a == ("dflash-k3 on code@c1",)
    assert found.only_in_b == ()


def test_another_output_length_is_another_workload() -> None:
    config = make_config((1,))
    longer = config.model_copy(update={"workload": config.workload.model_copy(update={"output_len": 256})})
    assert compared(sweep(plan_of(config), 1), sweep(plan_of(longer), 2)).rows == ()


def test_differences_of_the_configurations_are_named_by_their_keys() -> None:
    a, b = make_config((1, 3)), make_config((1,))
    b = b.model_copy(update={"model": b.model.model_copy(update={"dtype": "float32"}), "name": "other"})
    assert config_differences(a, b) == {
        "model.dtype": ("bfloat16", "float32"),
        "speculation.num_speculative_tokens": ("[1, 3]", "[1]"),
    }


def test_sweeps_are_compared_in_the_objective() -> None:
    """An open loop gives the tokens/s that it asks for, however long requests take."""
    plan, rules = make_plan((1,), num_blocks=6), SelectionRules(objective="e2e", visit_noise=0.005)

    def sweep_at(e2e_s: float) -> Measured:
        blocks = [
            block_record(plan, arm, block, 100.0 + block.index, e2e_s=(e2e_s, e2e_s * (1 + 0.001 * block.index)))
            for arm in plan.arms
            for block in plan.blocks
        ]
        return Measured.of(plan, blocks, rules)

    found = compare_sweeps(sweep_at(1.0), sweep_at(1.5), rules, {})
    assert {row.change for row in found.rows} == {"slower"}
    assert found.rows[0].ratio.mean == pytest.approx(1 / 1.5)


def measured_folder(results: Path, name: str, output_len: int = 128) -> SweepDir:
    config = make_config((1,), results_dir=results)
    workload = config.workload.model_copy(update={"output_len": output_len})
    config = config.model_copy(update={"name": name, "workload": workload})
    plan = plan_of(config)
    with open_sweep(config, plan) as (folder, _):
        write_all(folder.open_ledger(), plan)
    return folder


def test_two_folders_are_compared(tmp_path: Path) -> None:
    found = compare_folders(measured_folder(tmp_path, "a"), measured_folder(tmp_path, "b"))
    assert [row.arm for row in found.rows] == ["none", "dflash-k1"]


def test_comparison_is_whole_at_80_columns(tmp_path: Path) -> None:
    found = compare_folders(measured_folder(tmp_path, "a"), measured_folder(tmp_path, "b"))
    wide = Interval(mean=0.7904, ci_low=0.6556, ci_high=0.9512)
    row = found.rows[1].model_copy(
        update={"workload": "code@c16", "arm": "dflash-k15", "tokens_per_s_a": 1310.0, "tokens_per_s_b": 1020.0}
    )
    rows = (row.model_copy(update={"ratio": wide, "speedup_a": 2.7834, "speedup_b": 0.2834, "is_paired": False}),)
    out = Console(file=io.StringIO(), width=80)

    print_comparison(found.model_copy(update={"rows": rows}), "a", "b", out)

    assert isinstance(out.file, io.StringIO)
    text = out.file.getvalue()
    assert "1,310→1,020  0.790 [0.656, 0.951]*  2.78→0.283" in text
    assert "…" not in text


def test_sweeps_with_nothing_in_common_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no arm of the same name on the same workload"):
        compare_folders(measured_folder(tmp_path, "a"), measured_folder(tmp_path, "b", output_len=64))
