"""What is said of a sweep that has not measured all: how much, which arms, and what continues it."""

from pathlib import Path

import pytest

from orchestrator.config import Search, SweepConfig
from orchestrator.ledger import Ledger
from orchestrator.plan import Plan
from orchestrator.records import Arm, Phase
from orchestrator.unfinished import find_unfinished, unfinished_text
from tests.unit.builders import block_record, make_config, plan_of, write_all

COMMAND = "orchestrator sweep name=small"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.jsonl")


def make(**search: object) -> SweepConfig:
    found = Search.model_validate({"strategy": "grid", "confirm": False, **search})
    return make_config([1, 3]).model_copy(update={"search": found})


def measure(ledger: Ledger, plan: Plan, arm: Arm, phase: Phase, num_blocks: int = 4, rate: float = 100.0) -> None:
    for block in plan.blocks[:num_blocks]:
        ledger.append(block_record(plan, arm, block, rate, phase=phase))


def text(config: SweepConfig, ledger: Ledger, command: str | None = COMMAND) -> str | None:
    found = find_unfinished(config, plan_of(config), ledger, command)
    return unfinished_text(found) if found else None


def test_finished_sweep_says_nothing(ledger: Ledger) -> None:
    write_all(ledger, plan_of(make()))

    assert text(make(), ledger) is None


def test_interrupted_sweep_counts_its_blocks_names_its_arms_and_what_continues(ledger: Ledger) -> None:
    plan = plan_of(make())
    measure(ledger, plan, plan.baseline, "opening")
    measure(ledger, plan, plan.arms[1], "arm", num_blocks=1)

    assert text(make(), ledger) == (
        "Unfinished: 5 of 12 blocks measured; not measured: dflash-k1 (1 of 4 blocks), dflash-k3; no closing baseline "
        "on a. `orchestrator sweep name=small` continues."
    )


def test_closing_baseline_alone_may_be_missing(ledger: Ledger) -> None:
    plan = plan_of(make())
    measure(ledger, plan, plan.baseline, "opening")
    for arm in plan.arms[1:]:
        measure(ledger, plan, arm, "arm")

    assert text(make(), ledger, command=None) == (
        "Unfinished: 12 of 12 blocks measured; no closing baseline on a. The command that it was measured with "
        "continues."
    )


def test_confirmation_alone_may_be_missing(ledger: Ledger) -> None:
    plan = plan_of(make())
    for phase in ("opening", "closing"):
        measure(ledger, plan, plan.baseline, phase)
    for arm, rate in zip(plan.arms[1:], (110.0, 150.0), strict=True):
        measure(ledger, plan, arm, "arm", rate=rate)

    assert text(make(), ledger) is None
    said = text(make(confirm=True), ledger)
    assert said is not None
    assert "12 of 12 blocks measured; what is recommended was not measured again." in said


def test_blocks_that_the_search_dropped_do_not_count_as_missing(ledger: Ledger) -> None:
    """k=1 was settled as worse after its first blocks; only the closing baseline is left."""
    config = make(strategy="adaptive", first_blocks=3)
    plan = plan_of(config)
    measure(ledger, plan, plan.baseline, "opening")
    measure(ledger, plan, plan.arms[1], "arm", num_blocks=3, rate=50.0)
    measure(ledger, plan, plan.arms[2], "arm", rate=150.0)

    found = find_unfinished(config, plan, ledger, COMMAND)

    assert found is not None
    assert (found.num_blocks, found.num_planned_blocks) == (8, 8)
    assert found.arms == {}


def test_arms_that_optuna_may_still_propose_count_as_missing(ledger: Ledger) -> None:
    config = make(strategy="optuna", num_proposals=2)
    plan = plan_of(config)
    measure(ledger, plan, plan.baseline, "opening")
    measure(ledger, plan, plan.arms[1], "arm")

    said = text(config, ledger)

    assert said is not None
    assert "8 of 12 blocks measured; not measured: 1 not proposed yet" in said


def test_sweep_whose_budget_is_spent_says_so(ledger: Ledger) -> None:
    config = make(strategy="optuna", num_proposals=2, max_blocks=12)
    plan = plan_of(config)
    for phase in ("opening", "closing"):
        measure(ledger, plan, plan.baseline, phase)
    measure(ledger, plan, plan.arms[1], "arm")

    said = text(config, ledger)

    assert said is not None
    assert said.startswith("Unfinished: 8 of at most 12 blocks measured; ")
    assert said.endswith(
        "The budget is spent (search.max_blocks=12): `orchestrator sweep name=small` with a larger one continues."
    )
