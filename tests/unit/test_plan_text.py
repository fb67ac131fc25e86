"""`plan` shows what would run, starts nothing, and does not need the hub."""

import io
import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator import preview as previewing
from orchestrator.compose import compose
from orchestrator.config import SweepConfig
from orchestrator.errors import ConfigError, HubUnavailable, PromptsUnavailable
from orchestrator.inputs import load_prompts
from orchestrator.plan import PromptSet, plan_sweep
from orchestrator.plan_text import print_preview
from orchestrator.preview import preview, preview_data


def printed(config: SweepConfig, width: int = 80) -> tuple[str, str]:
    out, err = (Console(file=io.StringIO(), width=width, no_color=True) for _ in range(2))
    print_preview(preview(config), out, err)
    assert isinstance(out.file, io.StringIO)
    assert isinstance(err.file, io.StringIO)
    return out.file.getvalue(), err.file.getvalue()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> SweepConfig:
    """Without earlier sweeps, which an estimate would rest on."""
    return compose([f"results_dir={tmp_path_factory.mktemp('results')}"])


@pytest.fixture(scope="module")
def demo_prompts(demo: SweepConfig) -> dict[str, PromptSet]:
    return load_prompts(demo)


@pytest.fixture
def counted(demo_prompts: dict[str, PromptSet], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previewing, "load_prompts", lambda config: demo_prompts)


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("width", [60, 80])
def test_plan_shows_every_arm_workload_and_its_ids_whole(
    demo: SweepConfig, demo_prompts: dict[str, PromptSet], width: int
) -> None:
    priced = demo.hardware.model_copy(update={"usd_per_hour": 4.0, "spot_usd_per_hour": 1.0})
    demo = demo.model_copy(update={"hardware": priced})
    text, warnings = printed(demo, width)

    plan = plan_sweep(demo, demo_prompts)
    for shown in (*(arm.id for arm in plan.arms), *(cell.id for cell in plan.workloads), plan.id):
        assert shown in text
    assert "…" not in text
    assert all(cell.name in text for cell in plan.workloads)
    assert warnings == ""


@pytest.mark.usefixtures("counted")
def test_plan_counts_server_starts_blocks_and_requests(demo: SweepConfig) -> None:
    text = " ".join(printed(demo)[0].split())

    assert (
        "5 arms x 6 workloads; on one node at most 6 server starts (the baseline first and last), 180 blocks, 1080"
        in text
    )
    assert "up to two more starts, to confirm what is recommended" in text


@pytest.mark.usefixtures("counted")
def test_search_of_a_space_shows_its_size_its_proposals_and_every_setting() -> None:
    space = ["space.max_num_seqs=[16,32]", "space.omp_threads_bind=['0-1','0-15|16-31']", "space.enforce_eager=true"]
    config = compose(["search=optuna", "search.num_proposals=6", *space])

    text, _ = printed(config)

    counted = " ".join(text.split())
    assert "17 arms x 6 workloads; at most 6 of 16 besides the baseline are proposed" in counted
    assert "on one node 8 server starts (the baseline first and last), 240 blocks" in counted
    assert "omp_threads_bind=0-15|16-31 max_num_seqs=32 enforce_eager=True" in text
    assert "…" not in text


@pytest.mark.usefixtures("counted")
def test_server_command_of_each_arm_can_be_copied(demo: SweepConfig) -> None:
    text, _ = printed(demo)

    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("vllm serve")]
    configs = [json.loads(c[c.index("--speculative-config") + 1]) for c in commands if "--speculative-config" in c]
    assert len(commands) == 5
    assert [config["num_speculative_tokens"] for config in configs] == [1, 3, 7, 15]


def test_without_the_hub_the_plan_is_shown_with_a_warning(demo: SweepConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(config: SweepConfig) -> dict[str, PromptSet]:
        raise HubUnavailable("the tokenizer [of] x cannot be loaded")

    monkeypatch.setattr(previewing, "load_prompts", offline)
    text, warnings = printed(demo)

    assert "180 blocks" in text
    assert "warning: prompts are not counted: the tokenizer [of] x" in " ".join(warnings.split())


def test_prompts_that_are_wrong_are_an_error_not_a_warning(tmp_path: Path) -> None:
    config = compose(["dataset@datasets=[jsonl]", f"datasets.custom.data_files={tmp_path / 'none.jsonl'}"])

    with pytest.raises(PromptsUnavailable, match="no such file"):
        printed(config)


def test_prompts_have_room_for_the_output(demo: SweepConfig) -> None:
    long_output = demo.model_copy(
        update={
            "workload": demo.workload.model_copy(update={"output_len": 1000}),
            "datasets": {name: data for name, data in demo.datasets.items() if "chat" in name},
        }
    )

    [prompts] = load_prompts(long_output).values()

    assert prompts.num_too_long > 0
    assert all(prompt.num_tokens is not None and prompt.num_tokens <= 24 for prompt in prompts.prompts)


@pytest.mark.usefixtures("counted")
def test_plan_says_whether_it_fits_and_what_it_takes_at_80_columns(demo: SweepConfig) -> None:
    text, warnings = printed(demo)

    counted = " ".join(text.split())
    assert "memory: fits: weights 0.0055 GB + drafter 0.0028 GB + KV cache 1.1 GB" in counted
    assert "wall time, min" in counted
    assert "It rests on the roofline: 5.5 MB of weights at" in counted
    assert "USD" not in counted
    assert warnings == ""


@pytest.mark.usefixtures("counted")
def test_plan_gives_dollars_and_warns_of_the_budget_where_there_is_a_price(demo: SweepConfig) -> None:
    priced = demo.hardware.model_copy(update={"usd_per_hour": 4.0, "spot_usd_per_hour": 1.0})
    cluster = demo.cluster.model_copy(update={"budget_usd": 0.01})

    text, warnings = printed(demo.model_copy(update={"hardware": priced, "cluster": cluster}))

    assert "USD on spot" in text
    assert "`sweep` would refuse to start: cluster.budget_usd=0.01" in " ".join(warnings.split())


@pytest.mark.usefixtures("counted")
def test_model_of_unknown_size_has_a_plan_without_an_estimate(demo: SweepConfig) -> None:
    unknown = demo.model.model_copy(update={"parameters_billion": None})

    text = " ".join(printed(demo.model_copy(update={"model": unknown}))[0].split())

    assert "memory: unknown: weights not known" in text
    assert "no estimate of time and cost: model.parameters_billion is not given" in text


def test_model_that_cannot_fit_is_refused_before_prompts_are_read(demo: SweepConfig) -> None:
    small = demo.hardware.model_copy(update={"memory_gb": 2.0})

    with pytest.raises(ConfigError, match="'demo' does not fit into the memory of hardware 'local'"):
        printed(demo.model_copy(update={"hardware": small}))


@pytest.mark.usefixtures("counted")
def test_plan_for_programs_says_what_the_text_says(demo: SweepConfig) -> None:
    priced = demo.hardware.model_copy(update={"usd_per_hour": 4.0})

    data = json.loads(json.dumps(preview_data(preview(demo.model_copy(update={"hardware": priced})))))

    assert (data["num_server_starts"], data["num_blocks"], data["num_requests"]) == (6, 180, 1080)
    assert [arm["num_speculative_tokens"] for arm in data["arms"]] == [0, 1, 3, 7, 15]
    assert all(arm["command"].startswith("vllm serve") for arm in data["arms"])
    assert data["memory"]["fit"] == "fits"
    low, high = data["expected"]["typical"]["usd"]
    assert 0 < low < high
    assert data["expected"]["typical"]["spot_usd"] is None
    assert data["no_estimate"] is None
