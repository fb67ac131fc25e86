"""One engine version and one content of each local model a sweep: what is refused, and what is not taken over."""

import logging
from pathlib import Path

import pytest

from orchestrator.compare_text import compare_folders
from orchestrator.config import SweepConfig
from orchestrator.errors import ConfigError, NodeUnavailable
from orchestrator.ledger import Ledger
from orchestrator.one_engine import measured_with, require_same
from orchestrator.plan import Plan
from orchestrator.records import MeasuredWith, Visit
from orchestrator.sweep_dir import SweepDir, open_sweep
from tasks import local_model
from tasks.local_model import content_of
from tests.unit.builders import block_record, finished, make_config, plan_of

TARGET, DRAFTER = "org/target", "org/drafter"
"""Of builders: stand here for folders."""


@pytest.fixture
def config(tmp_path: Path) -> SweepConfig:
    return make_config(results_dir=tmp_path / "results")


def changed(config: SweepConfig) -> SweepConfig:
    grid = (config.speculation[0].model_copy(update={"num_speculative_tokens": (1, 3, 15)}),)
    return config.model_copy(update={"speculation": grid})


def measure(
    config: SweepConfig, engine: str | None, models: dict[str, str] | None = None, *, without_visit: str = ""
) -> SweepDir:
    """The first block of every arm, each by a visit of its own; `without_visit`: of that arm the driver was killed."""
    plan = plan_of(config)
    with open_sweep(config, plan) as (sweep, _):
        ledger = Ledger(sweep.ledger_path)
        for arm in plan.arms:
            ledger.append(block_record(plan, arm, plan.blocks[0], visit_id=arm.name))
            served = {TARGET} if arm.is_baseline else {TARGET, DRAFTER}
            visit = Visit(id=arm.name, arm=arm, phase="arm", node="a", attempt=1, block_ids=(plan.blocks[0].id,))
            local = {name: content for name, content in (models or {}).items() if name in served}
            record = finished(visit).record.model_copy(update={"engine_version": engine, "local_models": local})
            if arm.name != without_visit:
                ledger.append(record)
    return sweep


def taken_over(config: SweepConfig, here: MeasuredWith) -> set[str]:
    """Names of the arms of which the changed sweep begins with a block."""
    plan: Plan = plan_of(changed(config))
    with open_sweep(changed(config), plan, here) as (sweep, continues):
        assert not continues
        return {plan.arm(block.arm_id).name for block in Ledger(sweep.ledger_path).blocks()}


ALL = {"none", "dflash-k1", "dflash-k3"}


@pytest.mark.parametrize("here", [MeasuredWith(engine_version="0.32.0+cpu"), MeasuredWith()])
def test_blocks_of_the_same_engine_are_taken_over_and_where_it_is_not_known_here(
    config: SweepConfig, here: MeasuredWith
) -> None:
    measure(config, "0.32.0")

    assert taken_over(config, here) == ALL


@pytest.mark.parametrize("engine", ["0.31.0", None])
def test_blocks_of_another_engine_or_of_one_not_known_are_measured_anew_which_is_said(
    config: SweepConfig, engine: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    measure(config, engine)

    with caplog.at_level(logging.WARNING):
        assert taken_over(config, MeasuredWith(engine_version="0.32.0")) == set()
    assert "3 blocks of " in caplog.text
    assert "are measured anew" in caplog.text


def test_blocks_whose_visit_left_no_record_count_as_of_the_engine_of_all_others(config: SweepConfig) -> None:
    measure(config, "0.32.0", without_visit="dflash-k1")

    assert taken_over(config, MeasuredWith(engine_version="0.32.0")) == ALL


def test_blocks_of_a_local_model_that_was_replaced_are_measured_anew(config: SweepConfig) -> None:
    measure(config, "0.32.0", {TARGET: "t", DRAFTER: "old"})

    assert taken_over(config, MeasuredWith(local_models={TARGET: "t", DRAFTER: "new"})) == {"none"}


def test_unfinished_sweep_of_another_engine_is_refused_before_anything_changes(config: SweepConfig) -> None:
    sweep = measure(config, "0.31.0")
    before = {path.name: path.read_bytes() for path in sweep.path.iterdir()}
    here = MeasuredWith(engine_version="0.32.0+cpu")

    refused = r"is unfinished, and this machine has vLLM 0\.32\.0\+cpu in place of 0\.31\.0: .* another name="
    with pytest.raises(ConfigError, match=refused), open_sweep(config, plan_of(config), here):
        pass
    assert {path.name: path.read_bytes() for path in sweep.path.iterdir()} == before
    with open_sweep(config.model_copy(update={"name": "another"}), plan_of(config), here):
        pass


def test_unfinished_sweep_whose_drafter_was_replaced_is_refused(config: SweepConfig) -> None:
    measure(config, None, {DRAFTER: "old"})

    with (
        pytest.raises(ConfigError, match="this machine has other files of org/drafter than before"),
        open_sweep(config, plan_of(config), MeasuredWith(local_models={DRAFTER: "new"})),
    ):
        pass


def test_unfinished_sweep_of_the_same_engine_continues(config: SweepConfig) -> None:
    measure(config, "0.32.0", {TARGET: "t"})

    here = MeasuredWith(engine_version="0.32.0", local_models={TARGET: "t", DRAFTER: "d"})
    with open_sweep(config, plan_of(config), here) as (_, continues):
        assert continues


def test_node_with_another_engine_than_the_sweeps_is_not_measured_on(config: SweepConfig) -> None:
    wanted = measured_with(measure(config, "0.31.0", {TARGET: "t"}).ledger().visits())
    assert wanted == MeasuredWith(engine_version="0.31.0", local_models={TARGET: "t"})

    require_same(MeasuredWith(engine_version="0.31.0+cpu", local_models={TARGET: "t"}), wanted)
    require_same(MeasuredWith(), wanted)
    with pytest.raises(NodeUnavailable, match=r"the node has vLLM 0\.32\.0 in place of 0\.31\.0"):
        require_same(MeasuredWith(engine_version="0.32.0"), wanted)


def test_compare_names_a_local_model_that_differs_between_two_sweeps(config: SweepConfig) -> None:
    sweeps = []
    for name, content in (("before", "old"), ("after", "new")):
        sweeps.append(measure(config.model_copy(update={"name": name}), "0.32.0", {TARGET: "t", DRAFTER: content}))
        plan = sweeps[-1].plan()
        ledger = Ledger(sweeps[-1].ledger_path)
        for arm in plan.arms:
            ledger.append(block_record(plan, arm, plan.blocks[1], visit_id=arm.name))

    assert compare_folders(*sweeps).differences == {f"files of {DRAFTER}": ("old", "new")}


# --- identity of a folder


def test_content_is_that_of_the_files_and_not_of_their_times_or_place(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(bytes(1000))
    one, two = tmp_path / "one", tmp_path / "two"
    (two / "README.md").write_text("notes")
    (two / ".cache").mkdir()
    (two / ".cache" / "x").write_text("x")

    assert content_of(one) == content_of(two)

    (two / "model.safetensors").write_bytes(bytes(999) + b"\x01")
    assert content_of(one) != content_of(two)
    assert content_of(tmp_path / "none") is None


def test_retrained_weights_of_the_same_size_differ_also_where_only_samples_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_model, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(local_model, "SAMPLE_BYTES", 16)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(100_000))
    before = content_of(tmp_path)

    weights.write_bytes(b"\x01" * 100_000)
    assert content_of(tmp_path) != before
    weights.write_bytes(bytes(99_999) + b"\x01")
    assert content_of(tmp_path) != before
