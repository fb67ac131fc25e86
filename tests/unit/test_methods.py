"""One entry per method, sweeps that mix them, and what is refused before an engine starts."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.compose import compose, load_yaml, to_yaml
from orchestrator.config import Speculation, SweepConfig
from orchestrator.engine_build import EngineBuild
from orchestrator.errors import ConfigError
from orchestrator.methods import METHODS
from orchestrator.plan import Plan
from orchestrator.records import Arm
from orchestrator.runnable import refuse_beyond_block, refuse_checkpoints, refuse_unrunnable
from tests.unit.builders import plan_of

PYPI = EngineBuild("0.32.0+cpu", packages={"arctic-inference": "0.1.1"}, plugins=frozenset({"sampling_expand"}))
IMAGE = EngineBuild("0.32.0", triton_backends=frozenset({"cpu"}))


def mixed(*overrides: str, methods: str = "ngram,dflash") -> SweepConfig:
    return compose([f"speculation=[{methods}]", *overrides])


def planned(*overrides: str, methods: str = "ngram,dflash") -> Plan:
    return plan_of(mixed(*overrides, methods=methods))


def arm_of(method: str, *overrides: str) -> Arm:
    """An arm of the smallest k, with a drafter where the method needs one."""
    drafter = f"model.drafters.{method}.model=org/drafter"
    return plan_of(compose([f"speculation={method}", drafter, *overrides])).arms[1]


# --- a sweep of several methods


def test_methods_are_chosen_as_a_list_and_compared_with_one_baseline() -> None:
    names = [arm.name for arm in planned("speculation.num_speculative_tokens=[5,3]").arms]

    assert names == ["none", "ngram-k3", "dflash-k3", "ngram-k5", "dflash-k5"]


def test_each_method_keeps_its_own_grid_unless_one_is_given_for_all() -> None:
    alone = {name: compose([f"speculation={name}"]).speculation for name in ("ngram", "dflash")}

    assert mixed().speculation == (*alone["ngram"], *alone["dflash"])


def test_value_under_a_methods_name_is_that_methods_alone() -> None:
    ngram, dflash = mixed(
        "speculation.ngram.prompt_lookup_max=7", "speculation.dflash.num_speculative_tokens=[2]"
    ).speculation

    assert (ngram.prompt_lookup_max, dflash.prompt_lookup_max) == (7, None)
    assert dflash.num_speculative_tokens == (2,) != ngram.num_speculative_tokens


def test_value_for_a_method_that_is_not_chosen_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"speculation\.suffix: method suffix is not chosen \(chosen: ngram, dflash\)"
    ):
        mixed("speculation.suffix.suffix_decoding_max_spec_factor=2")


def test_same_method_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"speculation: names method 'dflash' twice"):
        mixed(methods="dflash,dflash_fine")


def test_preset_may_choose_several_methods(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /speculation: [dflash, ngram]\nname: mine\n"
    )

    assert [each.method for each in compose(["sweep=mine"], tmp_path).speculation] == ["dflash", "ngram"]
    assert [each.method for each in compose(["sweep=mine", "speculation=none"], tmp_path).speculation] == ["none"]


def test_configuration_of_several_methods_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    for config in (mixed(), compose(["speculation=dflash"])):
        (tmp_path / "config.yaml").write_text(to_yaml(config))
        assert load_yaml(tmp_path / "config.yaml") == config


def test_arm_of_a_mixed_sweep_is_the_same_as_of_a_sweep_of_its_method() -> None:
    alone = {arm.id for name in ("ngram", "dflash") for arm in plan_of(compose([f"speculation={name}"])).arms}

    assert {arm.id for arm in planned().arms} == alone


def test_none_beside_other_methods_adds_nothing() -> None:
    assert planned(methods="none,dflash") == plan_of(compose(["speculation=dflash"]))


# --- one entry per method


def test_every_shipped_choice_is_a_method_and_every_method_has_one() -> None:
    names = {path.stem for path in (Path(__file__).parents[2] / "conf" / "speculation").glob("*.yaml")}

    assert METHODS.keys() <= names


def test_parameters_carry_vllms_names_into_the_servers_command() -> None:
    arm = plan_of(compose(["speculation=ngram", "speculation.num_speculative_tokens=5"])).arms[1]

    assert arm.server.speculative_config == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }


def test_dflash2_is_dflash_to_the_engine() -> None:
    config = arm_of("dflash2").server.speculative_config

    assert config == {"method": "dflash", "model": "org/drafter", "num_speculative_tokens": 1}


def test_parameter_of_another_method_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt_lookup_max: only method 'ngram' reads it, but method is 'dflash'"):
        Speculation(method="dflash", num_speculative_tokens=(3,), prompt_lookup_max=4)


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if entry.drafter == "needed"])
def test_missing_drafter_is_named_with_what_to_set(method: str) -> None:
    config = compose([f"speculation={method}", "model=qwen3_8b"])
    without = config.model_copy(update={"model": config.model.model_copy(update={"drafters": {}})})
    reason = f"has no drafter for method '{method}' (it has: none); set model.drafters.{method}.model"

    with pytest.raises(ConfigError, match=re.escape(reason)):
        plan_of(without)


@pytest.mark.parametrize(("method", "largest"), [("dflash", 7), ("dflash2", 7), ("dspark", 8)])
def test_block_limits_k(method: str, largest: int) -> None:
    block = f"model.drafters.{method}.block_size=8"

    assert arm_of(method, block, f"speculation.num_speculative_tokens={largest}")
    with pytest.raises(ConfigError, match=rf"{method} drafts at most .* = {largest} tokens .* but got {largest + 1}"):
        arm_of(method, block, f"speculation.num_speculative_tokens={largest + 1}")


def test_block_that_the_drafters_own_config_states_limits_k() -> None:
    arm = arm_of("dflash", "speculation.num_speculative_tokens=15", "model.drafters.dflash.block_size=null")

    refuse_beyond_block(arm, {"block_size": 16})
    refuse_beyond_block(arm, None)
    with pytest.raises(ConfigError, match="block_size - 1 = 9 tokens with org/drafter, but got 15"):
        refuse_beyond_block(arm, {"block_size": 10})


# --- what the engine refuses


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("dflash2", "Model Runner V1 does not support: DFlash candidate-head drafts"),
        ("dspark", "Model Runner V1 does not support: dspark speculative decoding"),
    ],
)
def test_method_of_the_v2_runner_is_refused_in_the_engines_words_without_triton_for_cpus(
    method: str, words: str
) -> None:
    refuse_unrunnable(arm_of(method), IMAGE, [0.0])
    refuse_unrunnable(arm_of(method), EngineBuild("0.40.0"), [0.0])
    with pytest.raises(
        ConfigError, match=f"{method}-k1: vLLM 0.32.0.cpu refuses speculation method '{method}': {words}"
    ):
        refuse_unrunnable(arm_of(method), PYPI, [0.0])


def test_suffix_needs_its_package_in_the_engines_environment() -> None:
    arm = plan_of(compose(["speculation=suffix"])).arms[1]

    refuse_unrunnable(arm, PYPI, [0.0])
    with pytest.raises(
        ConfigError, match=r"Arctic Inference is required for suffix decoding.*arctic-inference==0\.1\.1"
    ):
        refuse_unrunnable(arm, IMAGE, [0.0])
    with pytest.raises(ConfigError, match=r"arctic-inference==0\.1\.1 is what vLLM asks for, but .* has 0\.2\.0"):
        refuse_unrunnable(arm, EngineBuild("0.32.0", packages={"arctic-inference": "0.2.0"}), [0.0])


def test_sampling_with_speculation_needs_its_patch_on_an_engine_with_the_defect() -> None:
    refuse_unrunnable(arm_of("dflash"), IMAGE, [0.7])
    refuse_unrunnable(arm_of("dflash", "server.patches=[sampling_expand]"), PYPI, [0.7])
    with pytest.raises(ConfigError, match=r"emits garbage.*server\.patches=\[sampling_expand\]"):
        refuse_unrunnable(arm_of("dflash"), PYPI, [0.0, 0.7])


@pytest.mark.parametrize(
    ("patch", "engine", "reason"),
    [
        ("sampling", PYPI, "no patch is named 'sampling'; known: sampling_expand"),
        ("sampling_expand", EngineBuild("0.33.0"), "repairs vLLM ==0.32.*, but the engine is 0.33.0"),
        ("sampling_expand", EngineBuild("0.32.0"), "has no plugin 'sampling_expand'; install it there"),
    ],
)
def test_patch_that_cannot_be_applied_is_refused(patch: str, engine: EngineBuild, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_unrunnable(arm_of("dflash", f"server.patches=[{patch}]"), engine, [0.0])
    assert reason in str(refused.value)


def test_patch_is_part_of_the_arm() -> None:
    assert arm_of("dflash", "server.patches=[sampling_expand]").id != arm_of("dflash").id


@pytest.mark.parametrize(
    "target",
    [{"model_type": "qwen2", "num_nextn_predict_layers": 1}, {"text_config": {"mtp_num_hidden_layers": 1}}, None],
)
def test_mtp_runs_on_targets_that_have_it_or_may_have_it(target: Mapping[str, object] | None) -> None:
    refuse_checkpoints(plan_of(compose(["speculation=mtp"])).arms[1], PYPI, target, None)


def test_mtp_is_refused_on_a_target_without_it() -> None:
    with pytest.raises(ConfigError, match="Unsupported speculative method: 'mtp'; demo://target has no layers"):
        refuse_checkpoints(plan_of(compose(["speculation=mtp"])).arms[1], PYPI, {"model_type": "qwen3"}, None)


def test_drafter_of_the_other_dflash_is_refused() -> None:
    dflash2 = {"architectures": ["DFlash2DraftModel"]}

    refuse_checkpoints(arm_of("dflash2"), PYPI, None, dflash2)
    with pytest.raises(ConfigError, match=r"org/drafter is a DFlash 2 drafter.* choose speculation=dflash2"):
        refuse_checkpoints(arm_of("dflash"), PYPI, None, dflash2)


def test_draft_model_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"should have the same vocabulary size\. Target model vocab_size=1536"):
        refuse_checkpoints(arm_of("draft_model"), PYPI, {"vocab_size": 1536}, {"vocab_size": 32000})
