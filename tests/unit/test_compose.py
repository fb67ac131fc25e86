"""The command line: who beats whom, and one clear line for everything that is wrong."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.compose import compose, compose_all, load_yaml, names_in, to_yaml
from orchestrator.errors import ConfigError

MODELS = len(names_in("model"))
PUBLISHED = ["model=qwen3_5_9b", "hardware=r8i_16xlarge", "dataset@datasets=[humaneval,gsm8k,mt_bench]"]


def refusal(*overrides: str, config_dir: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(overrides, config_dir)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's own folder of groups."""
    for group in ("model", "sweep", "speculation"):
        (tmp_path / group).mkdir()
    return tmp_path


def test_demo_is_what_runs_when_nothing_is_said() -> None:
    config = compose([])

    assert config == compose(["sweep=demo"])
    assert (config.name, config.model.target, list(config.datasets)) == (
        "demo",
        "demo://target",
        ["code", "math", "chat"],
    )
    assert config.speculation[0].num_speculative_tokens == (1, 3, 7, 15)
    assert (config.workload.max_concurrency, config.workload.output_len) == ((1, 4), 128)
    assert (config.workload.num_blocks, config.workload.prompts_per_block) == (5, 4)


@pytest.mark.parametrize("preset_first", [True, False])
def test_choice_on_the_command_line_beats_the_preset(preset_first: bool) -> None:
    choices = [*PUBLISHED, "speculation.num_speculative_tokens=[4,8,15]"]
    config = compose(["sweep=demo", *choices] if preset_first else [*choices, "sweep=demo"])

    assert (config.name, config.model.name, config.hardware.name) == ("demo", "qwen3_5_9b", "r8i_16xlarge")
    assert list(config.datasets) == ["humaneval", "gsm8k", "mt_bench"]
    assert config.speculation[0].num_speculative_tokens == (4, 8, 15)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("speculation=none", ()), ("speculation=dflash_coarse", (3, 7, 15))],
)
def test_no_value_of_a_preset_outlives_the_group_it_was_chosen_with(choice: str, expected: tuple[int, ...]) -> None:
    assert compose(["sweep=xeon_dflash", choice]).speculation[0].num_speculative_tokens == expected


def test_several_kinds_of_hardware_are_a_sweep_each_that_differ_in_nothing_else() -> None:
    local, r8i = compose_all(["hardware=[local,r8i_16xlarge]", "name=mine", "hardware.node_tolerance=null"])

    assert (local.name, r8i.name) == ("mine-local", "mine-r8i_16xlarge")
    assert (local.hardware.name, r8i.hardware.name) == ("local", "r8i_16xlarge")
    assert local.hardware.node_tolerance is r8i.hardware.node_tolerance is None
    assert local.model_copy(update={"name": r8i.name, "hardware": r8i.hardware}) == r8i


@pytest.mark.parametrize("choice", [[], ["hardware=r8i_16xlarge"], ["hardware=[r8i_16xlarge]"]])
def test_single_kind_of_hardware_is_the_sweep_it_always_was(choice: list[str]) -> None:
    assert compose_all(choice) == (compose([word.replace("[", "").replace("]", "") for word in choice]),)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("hardware=[local,local]", "local is named twice"),
        ("hardware=[]", "names no hardware"),
        ("hardware=[local,r9i_16xlarge]", "no hardware named r9i_16xlarge; known: .*did you mean"),
    ],
)
def test_wrong_list_of_hardware_is_refused(choice: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose_all([choice])


@pytest.mark.parametrize("group", ["model", "hardware"])
def test_several_choices_are_never_mixed_into_one(group: str, folder: Path) -> None:
    names = {"model": "demo,demo_deep", "hardware": "local,r8i_16xlarge"}[group]
    (folder / "sweep/mixed.yaml").write_text(f"# @package _global_\ndefaults:\n  - override /{group}: [{names}]\n")

    assert f"{group}: choose one, for several would be mixed into one" in refusal("sweep=mixed", config_dir=folder)


def test_key_that_no_yaml_mentions_is_set_plainly() -> None:
    config = compose(["server.max_num_seqs=8", "server.env.OMP_NUM_THREADS=4", "datasets.code.num_prompts=20"])

    assert config.server.max_num_seqs == 8
    assert config.server.env["OMP_NUM_THREADS"] == "4"
    assert config.datasets["code"].num_prompts == 20


def test_local_file_stands_for_a_dataset_of_the_hub() -> None:
    config = compose(["dataset@datasets=[mt_bench]", "datasets.mt_bench.data_files=/data/mt_bench_question.jsonl"])

    assert config.datasets["mt_bench"].data_files == "/data/mt_bench_question.jsonl"
    assert config.datasets["mt_bench"].prompt_field == "turns"


def test_dataset_of_ones_own_is_added_beside_the_chosen_ones() -> None:
    config = compose(["+datasets.mine.data_files=mine.jsonl", "datasets.mine.prompt_field=text"])

    assert list(config.datasets) == ["code", "math", "chat", "mine"]
    assert config.datasets["mine"].prompt_field == "text"


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_unknown_key_is_refused_with_the_near_one(prefix: str) -> None:
    message = refusal(f"{prefix}speculation.num_speculative_token=4")

    assert message == "speculation.num_speculative_token: unknown key, did you mean num_speculative_tokens?"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("temperature=0.5", "temperature: unknown key, did you mean workload.temperature?"),
        ("modle=demo", "modle: unknown key, did you mean model?"),
        ("model.drafters.dflash.blocksize=3", "model.drafters.dflash.blocksize: unknown key, did you mean block_size?"),
        ("datasets.code.promt_field=x", "datasets.code.promt_field: unknown key, did you mean prompt_field?"),
    ],
)
def test_misplaced_or_misspelt_key_is_pointed_to_the_right_place(override: str, expected: str) -> None:
    assert refusal(override) == expected


@pytest.mark.parametrize("prefix", ["+", "++"])
def test_key_like_no_other_is_refused_with_what_is_known(prefix: str) -> None:
    assert refusal(f"{prefix}new=1").startswith("new: unknown key, known here: name, seed, results_dir, hardware,")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["model=qwen9"],
            f"no model named qwen9; known: {MODELS}, which `orchestrator models` lists; did you mean qwen3_5_9b?",
        ),
        (
            ["dataset@datasets=[gsm8k,humanevl]"],
            "no dataset named humanevl; known: alpaca, demo_chat, demo_code, demo_math, gsm8k, humaneval, jsonl, "
            "math_500, mbpp, mt_bench, request_log, sharegpt; "
            "did you mean humaneval?",
        ),
        (["dataset=[gsm8k]"], "'dataset=[gsm8k]': several may be chosen, so write 'dataset@datasets=[NAME,NAME]'"),
        (
            ["datset@datasets=[gsm8k]"],
            "no group named datset; known: cluster, dataset, hardware, model, search, selection, server, speculation, "
            "sweep, tracking, workload; did you mean dataset?",
        ),
        (
            ["search={strategy: grid}"],
            "'search={strategy: grid}': search is chosen by name (known: adaptive, grid, optuna); a single key of it "
            "is set as search.KEY=VALUE",
        ),
    ],
)
def test_unknown_choice_is_refused_with_what_is_known(overrides: Sequence[str], expected: str) -> None:
    assert refusal(*overrides) == expected


def test_key_of_a_dataset_that_is_not_chosen_does_not_make_a_new_one() -> None:
    message = refusal("datasets.cod.num_prompts=3")

    assert message.startswith("datasets.cod.num_prompts: no dataset named cod is chosen (chosen: code, math, chat)")
    assert message.endswith("did you mean code?")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("workload.output_len=many", "workload.output_len: must be a valid integer, but got 'many'"),
        ("workload.output_len=1.5", "workload.output_len: must be a valid integer, but got 1.5"),
        ("workload.temperature=-1", "workload.temperature: must be greater than or equal to 0, but got -1"),
        ("workload.max_concurrency=[]", "workload: arrival=closed needs at least one value in max_concurrency"),
        (
            "workload.max_concurrency=[1,0]",
            "workload.max_concurrency[1]: must be greater than or equal to 1, but got 0",
        ),
        (
            "speculation.method=dflsh",
            "speculation.method: must be 'none', 'dflash', 'dflash2', 'dspark', 'eagle3', 'mtp', 'draft_model', "
            "'ngram' or 'suffix', but got 'dflsh'",
        ),
        ("model.drafters=3", "model.drafters: must be a mapping, but got 3"),
        ("seed.x=1", "seed: must be a valid integer, but got {'x': 1}"),
        (
            "cluster.address=auto",
            "cluster.address: address must be HOST:PORT (never 'auto', which may join a stranger's cluster), "
            "but got 'auto'",
        ),
    ],
)
def test_wrong_value_is_refused_with_its_path_the_rule_and_what_was_got(override: str, expected: str) -> None:
    assert refusal(override) == expected


def test_several_faults_are_several_lines_without_an_address_on_the_web() -> None:
    message = refusal("workload.output_len=0", "workload.temperature=hot", "+new=1")

    assert len(message.splitlines()) == 3
    assert "http" not in message


def test_every_value_that_must_be_given_is_named() -> None:
    message = refusal("dataset@datasets=[jsonl]", "cluster=address", "tracking=server")

    assert message.splitlines() == [
        "cluster.address: needs a value; give cluster.address=VALUE",
        "datasets.custom.data_files: needs a value; give datasets.custom.data_files=VALUE",
        "tracking.uri: needs a value; give tracking.uri=VALUE",
    ]


@pytest.mark.parametrize("text", ["", "a b", "=3", "workload.max_concurrency=[1", "model"])
def test_what_is_no_override_is_quoted_and_explained(text: str) -> None:
    assert refusal(text).startswith(f"{text!r} is not an override; write KEY=VALUE")


def test_comma_list_of_hydras_multirun_is_refused_with_the_form_to_use() -> None:
    assert "written as a list, [A,B]" in refusal("speculation.num_speculative_tokens=1,3")


def test_value_of_an_unset_environment_variable_is_refused() -> None:
    assert "SPECSWEEP_NO_SUCH" in refusal("model.revision=${oc.env:SPECSWEEP_NO_SUCH}")


def test_composing_twice_in_a_process_gives_equal_objects() -> None:
    assert compose(PUBLISHED) == compose(PUBLISHED)
    refusal("model=qwen9")
    assert compose([]).model.name == "demo"


def test_own_folder_adds_to_the_shipped_groups(folder: Path) -> None:
    (folder / "model" / "own.yaml").write_text("name: own\ntarget: org/own\nmax_model_len: 512\n")

    assert compose(["model=own"], folder).model.target == "org/own"
    assert compose(["model=demo_deep"], folder).model.target == "demo://deep"


def test_own_file_shadows_the_shipped_one_of_the_same_name(folder: Path) -> None:
    (folder / "model" / "demo.yaml").write_text("name: demo\ntarget: org/own\nmax_model_len: 512\n")

    assert compose([], folder).model.target == "org/own"
    assert compose([]).model.target == "demo://target"


def test_own_preset_chooses_from_own_and_shipped_groups(folder: Path) -> None:
    (folder / "speculation" / "k9.yaml").write_text("method: dflash\nnum_speculative_tokens: 9\n")
    (folder / "sweep" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /speculation: k9\n  - override /model: qwen3_8b\n"
        "name: mine\nseed: 7\n"
    )

    config = compose(["sweep=mine"], folder)

    assert (config.name, config.seed, config.model.name) == ("mine", 7, "qwen3_8b")
    assert config.speculation[0].num_speculative_tokens == (9,)


def test_unknown_key_in_an_own_file_is_refused_with_the_near_one(folder: Path) -> None:
    (folder / "speculation" / "mine.yaml").write_text("method: dflash\nnum_speculative_token: [4]\n")

    message = refusal("speculation=mine", config_dir=folder)

    assert "speculation.num_speculative_token: unknown key, did you mean num_speculative_tokens?" in message


def test_own_preset_with_an_unknown_choice_is_refused_with_what_is_known(folder: Path) -> None:
    (folder / "sweep" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /model: qwen9\nname: mine\n"
    )

    message = refusal("sweep=mine", config_dir=folder)

    assert "model/qwen9" in message
    assert message.endswith(f"known: {MODELS}, which `orchestrator models` lists")


def test_own_file_that_is_no_yaml_is_refused_with_its_place(folder: Path) -> None:
    (folder / "model" / "own.yaml").write_text("name: [own\n")

    assert "own.yaml" in refusal("model=own", config_dir=folder)


def test_own_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    assert refusal(config_dir=tmp_path / "no") == f"{tmp_path / 'no'}: no such folder of configuration files"


def test_written_configuration_reads_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    config = compose(["sweep=xeon_dflash", "server.env.X='1e3'", "model.revision='0123'", "workload.temperature=1e-7"])

    path.write_text(to_yaml(config))

    assert load_yaml(path) == config


@pytest.mark.parametrize("text", ["name: [", "name: demo\n", "- 1\n", "", "\x00"])
def test_file_that_is_no_configuration_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=r"config\.yaml: "):
        load_yaml(path)


def test_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        load_yaml(tmp_path / "none.yaml")
