"""The catalogue: every model on every hardware profile has a verdict or a clear refusal, without a network."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.plan_catalogue import combinations, verdict
from orchestrator.catalogue import Catalogue, catalogue_json, catalogue_table, read_catalogue
from orchestrator.compose import compose, names_in
from orchestrator.config import Model
from orchestrator.errors import ConfigError

CONF = Path(__file__).parents[2] / "conf"
Z_LAB = (
    *("qwen3_5_4b", "qwen3_5_9b", "qwen3_5_27b", "qwen3_5_35b_a3b", "qwen3_5_122b_a10b", "qwen3_6_27b"),
    *("qwen3_6_35b_a3b", "qwen3_4b", "qwen3_8b", "qwen3_coder_30b_a3b", "qwen3_coder_next", "gpt_oss_20b"),
    *("gpt_oss_120b", "llama3_1_8b", "kimi_k2_5"),
)
MODELS = names_in("model")


FIVE_LINES = """\
name: mine
target: org/mine
max_model_len: 4096
parameters_billion: 3
drafters: {dflash: {model: org/mine-dflash, block_size: 16}}
"""


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """With a model of the user's own."""
    folder = tmp_path_factory.mktemp("conf")
    (folder / "model").mkdir()
    (folder / "model" / "mine.yaml").write_text(FIVE_LINES)
    return read_catalogue(["server=xeon"], folder)


@pytest.fixture(scope="module")
def models(catalogue: Catalogue) -> dict[str, Model]:
    return {entry.model.name: entry.model for entry in catalogue.entries}


def test_every_model_on_every_profile_has_a_verdict_or_a_clear_refusal() -> None:
    found = {(c.model.name, c.hardware.name, c.speculation[0].method): verdict(c) for c in combinations()}

    assert {name for name, _, _ in found} == set(MODELS)
    for refusal in (each for each in found.values() if isinstance(each, ConfigError)):
        assert re.search(r"does not fit into the memory .* GB; the node has|is not given", str(refusal))
    planned = [each for each in found.values() if not isinstance(each, ConfigError)]
    assert len(planned) > 2 * len(found) / 3
    assert all(0 < expected.typical(1).wall_h.low <= expected.at_most(1).wall_h.high for _, expected in planned)


@pytest.mark.parametrize("name", Z_LAB)
def test_published_dflash_pair_names_drafter_block_size_and_weights(name: str, models: dict[str, Model]) -> None:
    model = models[name]

    drafter = model.drafters["dflash"]
    assert drafter.model.startswith("z-lab/")
    assert drafter.block_size in (8, 10, 16)
    assert drafter.weight_gb is not None
    assert model.parameters_billion is not None
    assert model.context_len is not None
    assert model.max_model_len <= model.context_len


@pytest.mark.parametrize("name", MODELS)
def test_model_says_whether_it_thinks(name: str, models: dict[str, Model]) -> None:
    text = (CONF / "model" / f"{name}.yaml").read_text()

    keys = models[name].chat_template_kwargs.keys()
    assert keys & {"enable_thinking", "thinking", "reasoning_effort"} or "no thinking mode" in text


@pytest.mark.parametrize("name", MODELS)
def test_model_says_where_its_figures_are_from(name: str) -> None:
    lines = (CONF / "model" / f"{name}.yaml").read_text().splitlines()

    assert any(
        line.startswith(("# Parameters:", "# Its size was not found", "# Counted", "# tasks/")) for line in lines
    )
    assert all("#" in line for line in lines if "block_size" in line or "    model: RedHatAI" in line)


def test_published_pair_fits_the_published_machine(catalogue: Catalogue) -> None:
    [pair] = [entry for entry in catalogue.entries if entry.model.name == "qwen3_5_9b"]

    need = pair.needs["r8i_16xlarge"]
    assert need.fit == "fits"
    assert need.least_gb == pytest.approx(19.3 + 2.6 + 42.9 + 6, abs=0.1)


def test_what_is_larger_than_the_machine_does_not_fit(catalogue: Catalogue) -> None:
    fits = {entry.model.name: entry.needs["r8i_16xlarge"].fit for entry in catalogue.entries}

    assert fits["kimi_k2_5"] == "does not fit"
    assert fits["glm_5_2"] == "unknown"
    assert fits["llama3_3_70b"] == "fits"


def shown(catalogue: Catalogue, width: int) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as captured:
        console.print(catalogue_table(catalogue, console))
    return captured.get()


@pytest.mark.parametrize("width", [60, 80])
def test_table_is_whole_where_a_column_a_profile_has_no_room(catalogue: Catalogue, width: int) -> None:
    text = shown(catalogue, width)

    assert "…" not in text
    assert all(name in text for name in (*MODELS, *names_in("hardware")))
    [row] = [line for line in text.splitlines() if line.startswith(" kimi_k2_5")]
    assert row.split()[-1] == "-" * len(names_in("hardware"))
    [entry] = [entry for entry in catalogue.entries if entry.model.name == "gpt_oss_120b"]
    [row] = [line for line in text.splitlines() if line.startswith(" gpt_oss_120b")]
    fits = dict(zip(entry.needs, row.split()[-1], strict=True))
    assert {name for name, mark in fits.items() if mark not in "-?"} == {
        name for name, need in entry.needs.items() if need.fit == "fits"
    }


def test_table_has_a_row_a_model_and_a_column_a_profile(catalogue: Catalogue) -> None:
    text = shown(catalogue, 200)
    assert all(name in text for name in MODELS)
    assert all(name in text for name in names_in("hardware"))
    assert "KV cache of 40 GiB" in text


def test_json_holds_the_models_with_the_parts_of_each_sum(catalogue: Catalogue) -> None:
    found = {entry["name"]: entry for entry in json.loads(catalogue_json(catalogue))}

    assert sorted(found) == sorted([*MODELS, "mine"])
    assert found["gpt_oss_20b"]["weights_gb"] == 13.76
    assert found["glm_5_2"]["weights_gb"] is None
    assert found["qwen3_8b"]["hardware"]["r8i_16xlarge"]["fit"] == "fits"


def test_users_own_model_of_five_lines_is_listed(catalogue: Catalogue) -> None:
    [mine] = [entry for entry in catalogue.entries if entry.model.name == "mine"]

    assert mine.needs["r8i_16xlarge"].fit == "fits"


def test_active_parameters_are_some_of_all() -> None:
    with pytest.raises(ConfigError, match=r"active_parameters_billion must be at most parameters_billion=9\.653"):
        compose(["model=qwen3_5_9b", "model.active_parameters_billion=10"])
    with pytest.raises(ConfigError, match="needs parameters_billion"):
        compose(["model=glm_5_2", "model.active_parameters_billion=10"])
