"""Who leads while a sweep runs is who would be chosen, not who is fastest."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.config import Constraints, SweepConfig
from orchestrator.leaders import Leader, leaders
from orchestrator.ledger import Ledger
from tests.unit.builders import QUIET, make_config, measured, plan_of

CONFIG = make_config((1, 3, 7)).model_copy(update={"selection": QUIET})


def leader(folder: Path, rates: Mapping[int, Sequence[float]], config: SweepConfig = CONFIG, **slow: object) -> Leader:
    plan, ledger = plan_of(config), Ledger(folder / "ledger.jsonl")
    for block in measured(plan, rates):
        is_slow = block.arm_id == plan.arms[3].id
        ledger.append(block.model_copy(update=slow if is_slow else {}))
    [found] = leaders(config, plan, ledger, {})
    return found


def test_an_arm_with_too_few_blocks_is_left_out_behind_the_candidate(tmp_path: Path) -> None:
    found = leader(tmp_path, {0: [100] * 4, 1: [110, 111, 112, 110], 3: [150, 151, 150, 152], 7: [300, 300]})
    assert (found.arm, found.verdict, found.num_measured) == ("dflash-k3", "speculate", 3)
    [left_out] = found.left_out
    assert (left_out.arm, round(left_out.speedup.mean)) == ("dflash-k7", 3)
    assert left_out.why == "is left out: 2 of at least 3 valid blocks"


def test_an_arm_that_breaks_a_constraint_is_left_out_with_the_constraint(tmp_path: Path) -> None:
    rules = QUIET.model_copy(update={"constraints": Constraints(ttft_p95_s=0.5)})
    rates = {0: [100] * 4, 3: [150, 151, 150, 152], 7: [300, 300, 301, 300]}
    config = CONFIG.model_copy(update={"selection": rules})
    found = leader(tmp_path, rates, config, ttft_s=(0.7, 0.7))
    assert found.arm == "dflash-k3"
    assert [(each.arm, each.why) for each in found.left_out] == [("dflash-k7", "breaks ttft_p95_s=0.5 with 0.7")]


def test_without_a_candidate_nobody_leads(tmp_path: Path) -> None:
    found = leader(tmp_path, {0: [100] * 4, 7: [300, 300]})
    assert (found.arm, found.speedup, found.verdict) == (None, None, "undecided")
    assert [each.arm for each in found.left_out] == ["dflash-k7"]


def test_of_arms_that_tie_the_one_leads_that_would_be_chosen(tmp_path: Path) -> None:
    found = leader(tmp_path, {0: [100] * 4, 3: [150, 151, 150, 150], 7: [151, 152, 151, 151]})
    assert (found.arm, found.verdict) == ("dflash-k3", "speculate")
