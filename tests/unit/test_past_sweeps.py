"""Earlier sweeps in the results folder tell what the next one takes, where model and hardware are the same."""

from pathlib import Path

import pytest

from orchestrator.config import SweepConfig
from orchestrator.ledger import Ledger
from orchestrator.past_sweeps import MOST_SWEEPS, foresee, read_past
from orchestrator.plan import PromptSet
from orchestrator.records import Message, Prompt, Visit
from orchestrator.sweep_dir import SweepDir, open_sweep
from tests.unit.builders import finished, make_config, plan_of, write_all


def sweep(config: SweepConfig) -> SweepDir:
    plan = plan_of(config)
    with open_sweep(config, plan) as (folder, _):
        ledger = Ledger(folder.ledger_path)
        write_all(ledger, plan)
        visit = Visit(id="v", arm=plan.baseline, phase="opening", node="a", attempt=1, block_ids=("b",))
        ledger.append(finished(visit).record)
    return folder


@pytest.fixture
def config(tmp_path: Path) -> SweepConfig:
    return make_config(results_dir=tmp_path / "results")


def test_sweep_of_another_name_counts(config: SweepConfig) -> None:
    measured = sweep(config)

    found = read_past(config.model_copy(update={"name": "other"}))

    assert found.sweeps == (measured.sweep_id,)
    assert found.overhead_s is not None
    assert set(found.token_s) == {
        *(("dflash", k, "code", "c1") for k in (1, 3, 7)),
        ("none", 0, "code", "c1"),
    }


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("model", "target", "org/other"),
        ("model", "dtype", "float32"),
        ("server", "enforce_eager", True),
        ("hardware", "name", "other"),
    ],
)
def test_other_model_precision_mode_or_hardware_does_not_count(
    config: SweepConfig, part: str, key: str, value: object
) -> None:
    sweep(config)

    changed = getattr(config, part).model_copy(update={key: value})

    assert read_past(config.model_copy(update={part: changed})).sweeps == ()


def test_newest_count_and_unreadable_ones_do_not(config: SweepConfig) -> None:
    names = [f"s{number}" for number in range(MOST_SWEEPS + 2)]
    folders = [sweep(config.model_copy(update={"name": name})) for name in names]
    (folders[-1].path / "config.yaml").write_text("no: configuration\n")

    assert read_past(config).sweeps == tuple(each.sweep_id for each in reversed(folders[1:-1]))


def test_no_results_folder_is_no_past(config: SweepConfig) -> None:
    assert read_past(config).sweeps == ()


def test_counted_prompts_and_the_bandwidth_of_this_machine_serve_the_first_sweep(config: SweepConfig) -> None:
    model = config.model.model_copy(update={"parameters_billion": 0.1})
    prompts = (Prompt(messages=(Message(role="user", content="x"),), num_tokens=50),)
    sets = {"code": PromptSet(prompts=prompts, num_read=1, num_too_long=0)}
    sized = config.model_copy(update={"model": model})

    expected = foresee(sized, plan_of(sized), sets)

    assert "200.0 MB of weights" in expected.basis[0]
    assert expected.typical(1).wall_h.low > 0
