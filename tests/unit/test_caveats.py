"""What the head of a report warns of: loosened guards, mixed engines, blocks without a baseline."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.caveats import caveats
from orchestrator.config import SweepConfig
from orchestrator.ledger import Ledger
from orchestrator.records import HostUse, Visit
from tests.unit.builders import block_record, finished, make_config, plan_of, write_all


@pytest.fixture
def config() -> SweepConfig:
    return make_config([1, 3])


@pytest.fixture
def ledger(config: SweepConfig, tmp_path: Path) -> Ledger:
    found = Ledger(tmp_path / "ledger.jsonl")
    write_all(found, plan_of(config))
    return found


def visited(ledger: Ledger, config: SweepConfig, at: int, **changes: object) -> None:
    plan = plan_of(config)
    ids = tuple(block.id for block in plan.blocks)
    visit = Visit(id=f"v{at}", arm=plan.arms[at], phase="arm", node="a", attempt=1, block_ids=ids)
    ledger.append(finished(visit).record.model_copy(update=changes))


def test_sweep_as_it_should_be_has_none(config: SweepConfig, ledger: Ledger) -> None:
    visited(ledger, config, 0, engine_version="0.32.0+cpu", local_models={"demo://target": "1"})
    visited(ledger, config, 1, engine_version="0.32.0", local_models={"demo://target": "1"})

    assert caveats(config, plan_of(config), ledger) == ()


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("hardware", {"max_other_cpu_share": 0.5}, "hardware.max_other_cpu_share=0.5 (default 0.1): blocks count"),
        ("hardware", {"max_other_cpu_share": None}, "hardware.max_other_cpu_share=null (default 0.1)"),
        ("hardware", {"node_tolerance": 0.3}, "hardware.node_tolerance=0.3 (default 0.15): nodes count"),
        ("selection", {"confidence": 0.8}, "selection.confidence=0.8 (default 0.95)"),
        ("selection", {"min_blocks": 2}, "selection.min_blocks=2 (default 3)"),
        ("selection", {"visit_noise": 0.0}, "selection.visit_noise=0 (default 0.015)"),
    ],
)
def test_loosened_guard_is_named_with_its_default(
    config: SweepConfig, ledger: Ledger, part: str, changes: Mapping[str, object], said: str
) -> None:
    loose = config.model_copy(update={part: getattr(config, part).model_copy(update=changes)})

    [found] = caveats(loose, plan_of(config), ledger)

    assert found.startswith("A guard is loosened, ")
    assert said in found


@pytest.mark.parametrize(
    ("part", "changes"),
    [("hardware", {"max_other_cpu_share": 0.05}), ("selection", {"confidence": 0.99, "min_blocks": 4})],
)
def test_tightened_guard_is_no_caveat(
    config: SweepConfig, ledger: Ledger, part: str, changes: Mapping[str, object]
) -> None:
    tight = config.model_copy(update={part: getattr(config, part).model_copy(update=changes)})

    assert caveats(tight, plan_of(config), ledger) == ()


def test_blocks_that_an_earlier_session_let_in_though_others_were_busy_are_told(
    config: SweepConfig, tmp_path: Path
) -> None:
    plan, ledger = plan_of(config), Ledger(tmp_path / "busy.jsonl")
    host = HostUse(num_cpus=2, other_cpu_cores=0.8)
    ledger.append(block_record(plan, plan.baseline, plan.blocks[0], host=host))
    ledger.append(block_record(plan, plan.baseline, plan.blocks[1], host=host.model_copy(update={"num_cpus": 16})))

    [found] = caveats(config, plan, ledger)

    assert found.startswith("1 measured blocks count though other processes used up to 40 % of the CPUs")


def test_two_engine_versions_are_named_with_their_arms(config: SweepConfig, ledger: Ledger) -> None:
    visited(ledger, config, 0, engine_version="0.31.0")
    visited(ledger, config, 1, engine_version="0.32.0+cpu")
    visited(ledger, config, 2, engine_version="0.33.0", num_blocks=0, error="crashed")  # measured nothing

    [found] = caveats(config, plan_of(config), ledger)

    assert found.startswith("Several versions of the engine measured: 0.31.0 (baseline); 0.32.0 (dflash-k1). ")


def test_local_model_that_was_replaced_under_way_is_named(config: SweepConfig, ledger: Ledger) -> None:
    visited(ledger, config, 0, local_models={"/models/target": "aa"})
    visited(ledger, config, 1, local_models={"/models/target": "bb"})

    [found] = caveats(config, plan_of(config), ledger)

    assert found.startswith("The files of /models/target changed under way: aa (baseline); bb (dflash-k1). ")


def test_block_whose_baseline_stayed_void_is_told_with_the_reason(config: SweepConfig, tmp_path: Path) -> None:
    plan, ledger = plan_of(config), Ledger(tmp_path / "void.jsonl")
    for block in plan.blocks:
        reason = "a request ended short" if block.index == 1 else None
        for attempt in (1, 2):
            ledger.append(block_record(plan, plan.baseline, block, attempt=attempt, void_reason=reason))
        if not reason:
            ledger.append(block_record(plan, plan.arms[1], block))

    assert caveats(config, plan, ledger) == (
        "code@c1: the baseline has no valid figure for 1 of 4 blocks on node a (a request ended short), so no arm is "
        "compared on it there.",
    )
