"""Two sweeps against each other: what became slower is named, what is noise is not."""

import io
import random
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from rich.console import Console

from orchestrator.compare_sweeps import Measured, Row, SweepComparison, compare_sweeps, config_differences
from orchestrator.compare_text import compare_folders, print_comparison
from orchestrator.config import SelectionRules
from orchestrator.errors import ConfigError
from orchestrator.plan import Plan
from orchestrator.records import NodeInfo, VisitRecord
from orchestrator.selection import Interval
from orchestrator.sweep_dir import SweepDir, open_sweep
from tests.unit.builders import block_record, make_config, make_plan, plan_of, write_all

RULES = SelectionRules(visit_noise=0.005)
RATES = {0: 100.0, 1: 120.0, 3: 150.0}
"""k -> tokens/s."""


def sweep(
    plan: Plan,
    seed: int,
    factors: dict[int, float] | None = None,
    noise: float = 0.01,
    nodes: Mapping[str, float] = MappingProxyType({"a": 1.0}),
) -> Measured:
    """Blocks of their own difficulty, the same in every sweep, and noise of its own; `factors` slow an arm. Every node
    (name -> its speed) measures all blocks."""
    rng = random.Random(seed)
    blocks = [
        block_record(
            plan,
            arm,
            block,
            RATES[arm.num_speculative_tokens]
            * (1 + 0.5 * (block.index % 3))
            * (factors or {}).get(arm.num_speculative_tokens, 1.0)
            * speed
            * rng.lognormvariate(0, noise),
            node=node,
        )
        for node, speed in nodes.items()
        for arm in plan.arms
        for block in plan.blocks
    ]
    return Measured.of(str(seed), plan, blocks, RULES)


def compared(a: Measured, b: Measured) -> SweepComparison:
    return compare_sweeps(a, b, RULES, {})


def covers(found: Interval | None, value: float) -> bool:
    return found is not None and found.ci_low < value < found.ci_high


def by_arm(found: SweepComparison) -> dict[str, Row]:
    return {row.arm: row for row in found.rows}


def test_an_arm_that_became_slower_is_named_with_its_interval() -> None:
    plan = make_plan((1, 3), num_blocks=6)
    rows = by_arm(compared(sweep(plan, 1), sweep(plan, 2, {3: 0.8})))
    assert rows["dflash-k3"].change == "slower"
    assert covers(rows["dflash-k3"].ratio, 0.8)
    assert covers(rows["dflash-k3"].gain_ratio, 0.8)
    assert rows["dflash-k3"].gain_change == "less"
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
    assert row.ratio is not None
    assert row.ratio.ci_high / row.ratio.ci_low < 1.1


def test_a_slower_node_is_no_slower_arm_and_gains_compare_all_the_same() -> None:
    plan = make_plan((1, 3), num_blocks=6)
    rows = by_arm(compared(sweep(plan, 1), sweep(plan, 2, {3: 0.8}, nodes={"b": 0.7})))
    assert {(row.change, row.ratio, row.on_same_nodes) for row in rows.values()} == {("other nodes", None, False)}
    assert rows["dflash-k3"].gain_change == "less"
    assert covers(rows["dflash-k3"].gain_ratio, 0.8)
    assert rows["dflash-k1"].gain_change in ("same", "open")
    assert rows["none"].gain_change is None


def test_several_nodes_tell_what_nodes_differ_by_and_only_more_than_that_is_a_change() -> None:
    plan = make_plan((1, 3), num_blocks=6)
    before = sweep(plan, 1, nodes={"a": 1.0, "b": 1.03, "c": 0.98, "d": 1.01})
    rows = [
        by_arm(compared(before, sweep(plan, 2, nodes={"e": speed, "f": speed * 1.02, "g": speed * 0.99})))["none"]
        for speed in (0.98, 0.7)
    ]
    assert [row.change for row in rows] == ["open", "slower"]
    assert all(covers(row.ratio, speed) for row, speed in zip(rows, (0.98, 0.7), strict=True))


def test_blocks_on_a_node_that_both_had_are_compared_there() -> None:
    """The node that only B had is half as fast."""
    plan = make_plan((1, 3), num_blocks=6)
    found = compared(sweep(plan, 1), sweep(plan, 2, {3: 0.8}, nodes={"a": 1.0, "b": 0.5}))
    rows = by_arm(found)
    assert (found.nodes_a, found.nodes_b) == (("a",), ("a", "b"))
    assert all(row.on_same_nodes for row in rows.values())
    assert rows["none"].change in ("same", "open")
    assert rows["dflash-k3"].change == "slower"
    assert covers(rows["dflash-k3"].ratio, 0.8)


def test_a_name_that_was_given_to_another_machine_is_another_node() -> None:
    plan = make_plan((1,), num_blocks=4)
    blocks = [block_record(plan, arm, block) for arm in plan.arms for block in plan.blocks]
    sides = [Measured.of(cpu, plan, blocks, RULES, [visit_on("a", cpu)]) for cpu in ("Xeon 6975P", "Xeon 8488C")]
    assert {row.change for row in compared(*sides).rows} == {"other nodes"}
    assert compared(sides[0], sides[0]).rows[0].on_same_nodes


def test_two_sweeps_of_one_plan_share_no_start_of_a_server() -> None:
    """Their visits have the same ids; the noise between starts counts all the same."""
    plan = make_plan((1,), num_blocks=12)
    noisy = SelectionRules(visit_noise=0.05)
    blocks = [block_record(plan, arm, block) for arm in plan.arms for block in plan.blocks]
    a, b = (Measured.of(name, plan, blocks, noisy) for name in "ab")
    row = compare_sweeps(a, b, noisy, {}).rows[0]
    assert row.ratio is not None
    assert row.ratio.ci_high > 1.05


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
        return Measured.of(f"{e2e_s}", plan, blocks, rules)

    found = compare_sweeps(sweep_at(1.0), sweep_at(1.5), rules, {})
    assert {row.change for row in found.rows} == {"slower"}
    assert found.rows[0].ratio is not None
    assert found.rows[0].ratio.mean == pytest.approx(1 / 1.5)


def test_a_key_that_an_older_sweep_did_not_record_is_called_that() -> None:
    a, b = make_config((1,)), make_config((1,))
    b = b.model_copy(update={"server": b.server.model_copy(update={"preload_tcmalloc": True, "max_num_seqs": 32})})
    written = [config.model_dump(mode="json") for config in (a, b)]
    del written[0]["server"]["preload_tcmalloc"]
    assert config_differences(a, b, written) == {
        "server.max_num_seqs": ("null", "32"),
        "server.preload_tcmalloc": ("not recorded (by default False)", "True"),
    }


def visit_on(node: str, cpu_model: str) -> VisitRecord:
    info = NodeInfo(
        hostname=node,
        cpu_model=cpu_model,
        physical_cores=2,
        logical_cores=4,
        numa_nodes=1,
        memory_gb=8,
        isa=(),
        governor=None,
        load_average_1m=0,
        transparent_hugepage=None,
        kernel="6",
    )
    return VisitRecord(
        visit_id="v",
        arm_id="",
        attempt=1,
        phase="opening",
        node=node,
        started_utc="",
        wall_s=1,
        num_blocks=0,
        node_info=info,
    )


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
    lines = [re.sub(" +", " ", line).strip() for line in text.splitlines()]
    for begins in ("1,310→1,020 0.790 [0.656, 0.951]*", "2.78→0.283 "):
        assert any(line.startswith(f"code@c16 dflash-k15 {begins}") for line in lines)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_sweeps_with_nothing_in_common_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no arm of the same name on the same workload"):
        compare_folders(measured_folder(tmp_path, "a"), measured_folder(tmp_path, "b", output_len=64))
