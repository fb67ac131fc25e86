"""Every YAML file under conf/ composes, validates, and says in its first line what it is; every preset plans."""

import re
from pathlib import Path

import pytest

from orchestrator.compose import compose
from orchestrator.config import SweepConfig
from orchestrator.errors import ConfigError
from orchestrator.plan import Plan, PromptSet, plan_sweep
from orchestrator.records import Message, Prompt

CONF = Path(__file__).parents[2] / "conf"
FILES = sorted(path.relative_to(CONF) for path in CONF.rglob("*.yaml"))
CHOICES = [path for path in FILES if len(path.parts) == 2]
PRESETS = [path.stem for path in CHOICES if path.parts[0] == "sweep"]

MANDATORY = {
    "dataset/jsonl.yaml": ["datasets.custom.data_files=prompts.jsonl"],
    "dataset/sharegpt.yaml": ["datasets.sharegpt.data_files=conversations.json"],
    "dataset/request_log.yaml": ["datasets.request_log.data_files=log.jsonl"],
    "cluster/address.yaml": ["cluster.address=10.0.0.1:6379"],
    "cluster/aws.yaml": ["cluster.aws.head_image=own/head:1", "cluster.aws.worker_image=own/worker:1"],
    "server/external.yaml": ["server.url=http://127.0.0.1:8000"],
    "tracking/server.yaml": ["tracking.uri=http://127.0.0.1:5000"],
}
"""What a user must give with a file that leaves a value open (`???`)."""
OPEN_LOOP = ["search=grid", "selection=latency"]
BESIDE = {
    "workload/open_loop.yaml": OPEN_LOOP,
    "workload/replay.yaml": [
        *OPEN_LOOP,
        "dataset@datasets=[request_log]",
        "datasets.request_log.data_files=log.jsonl",
    ],
}
"""What a file's first lines say it needs beside it."""


def choose(file: Path) -> str:
    group, name = file.parts[0], file.stem
    return f"dataset@datasets=[{name}]" if group == "dataset" else f"{group}={name}"


def planned(config: SweepConfig, num_prompts: int) -> Plan:
    prompts = tuple(Prompt(messages=(Message(role="user", content=f"prompt {i}"),)) for i in range(num_prompts))
    return plan_sweep(
        config, {name: PromptSet(prompts=prompts, num_read=num_prompts, num_too_long=0) for name in config.datasets}
    )


def test_there_is_something_to_check() -> None:
    assert {path.parts[0] for path in CHOICES} >= {"hardware", "model", "dataset", "speculation", "workload", "sweep"}


@pytest.mark.parametrize("file", CHOICES, ids=str)
def test_file_composes_and_validates(file: Path) -> None:
    assert compose([choose(file), *MANDATORY.get(str(file), []), *BESIDE.get(str(file), [])])


@pytest.mark.parametrize("file", [file for file in CHOICES if str(file) in MANDATORY], ids=str)
def test_file_with_an_open_value_asks_for_it(file: Path) -> None:
    key = MANDATORY[str(file)][0].split("=")[0]

    with pytest.raises(ConfigError, match=re.escape(f"{key}: needs a value")):
        compose([choose(file)])


@pytest.mark.parametrize("file", FILES, ids=str)
def test_file_says_first_what_it_is(file: Path) -> None:
    lines = (CONF / file).read_text().splitlines()

    assert next(line for line in lines if line != "# @package _global_").startswith("# ")


@pytest.mark.parametrize("file", [file for file in CHOICES if file.parts[0] in ("hardware", "model")], ids=str)
def test_file_and_name_agree(file: Path) -> None:
    config = compose([choose(file)])

    assert getattr(config, file.parts[0]).name == file.stem


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_has_its_own_name_and_plans_within_its_prompts(preset: str) -> None:
    config = compose([f"sweep={preset}"])
    # The smallest set of each kind: MT-Bench has 80 questions, the demo 256 prompts a file.
    plan = planned(config, 80 if preset == "xeon_dflash" else 256)

    assert config.name == preset
    assert len(plan.arms) == 1 + len(config.speculation[0].num_speculative_tokens)
    assert len(plan.workloads) == len(config.datasets) * len(config.workload.levels)
    assert config.workload.num_blocks >= config.selection.min_blocks


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_only_chooses_so_that_the_users_choice_of_a_group_is_whole(preset: str) -> None:
    text = (CONF / "sweep" / f"{preset}.yaml").read_text()
    keys = re.findall(r"^(\w+):", text, flags=re.MULTILINE)

    assert keys == ["defaults", "name"]


@pytest.mark.parametrize("model", ["demo", "demo_deep", "qwen3_5_9b", "qwen3_8b"])
def test_default_grid_fits_every_drafter_with_a_block_of_16(model: str) -> None:
    assert planned(compose([f"model={model}"]), 256).arms[-1].num_speculative_tokens == 15


def test_default_grid_is_refused_for_the_drafter_with_a_block_of_10() -> None:
    with pytest.raises(ConfigError, match="at most block_size - 1 = 9"):
        planned(compose(["model=llama3_1_8b"]), 256)


def test_published_benchmark_is_described_in_full() -> None:
    config = compose(["sweep=xeon_dflash"])

    assert (config.model.target, config.model.dtype) == ("Qwen/Qwen3.5-9B", "bfloat16")
    assert config.model.drafters["dflash"].model == "z-lab/Qwen3.5-9B-DFlash"
    assert config.model.chat_template_kwargs == {"enable_thinking": False}
    assert list(config.datasets) == ["humaneval", "gsm8k", "mt_bench"]
    assert (config.workload.max_concurrency, config.workload.output_len, config.workload.temperature) == ((1,), 128, 0)
    assert 15 in config.speculation[0].num_speculative_tokens
    assert (config.hardware.physical_cores, config.hardware.usd_per_hour) == (32, 4.44544)
    assert not config.server.enable_prefix_caching


def test_demo_pair_speaks_of_the_block_its_drafter_has() -> None:
    config = compose(["model=demo"])
    drafter = Path(__file__).parents[2] / "tasks" / "demo" / "dflash" / "config.json"

    assert f'"block_size": {config.model.drafters["dflash"].block_size},' in drafter.read_text()
