"""The commands to deploy are the flags that were measured, as a shell takes them."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.deploy import IMAGE, recommend_commands
from orchestrator.measured_server import measured_servers
from orchestrator.records import Arm, CpuBinding, VisitRecord
from orchestrator.selection import Recommendation
from tasks.demo import resolve_model
from tasks.server_command import located
from tests.unit.builders import make_plan, visit_of


def make_arm(k: int = 7, **server: object) -> Arm:
    arm = next(arm for arm in make_plan([7]).arms if arm.num_speculative_tokens == k)
    return arm.model_copy(update={"server": arm.server.model_copy(update=server)})


def commands_for(arm: Arm, engine_version: str | None, visits: Sequence[VisitRecord] = ()) -> Recommendation:
    servers = [replace(server, engine_version=engine_version) for server in measured_servers(arm, (), visits)]
    return recommend_commands(servers, "measured again")


def test_commands_hold_the_speculative_config_as_json() -> None:
    commands = commands_for(make_arm(), "0.32.0")

    expected = {"method": "dflash", "model": "org/drafter", "num_speculative_tokens": 7}
    assert commands.speculative_config == expected
    for command in (commands.vllm_serve, commands.docker_run):
        words = shlex.split(command)
        assert json.loads(words[words.index("--speculative-config") + 1]) == expected


def test_baseline_has_no_speculative_config() -> None:
    commands = commands_for(make_arm(0), "0.32.0")

    assert commands.speculative_config is None
    assert "speculative" not in commands.vllm_serve + commands.docker_run


def test_serve_command_has_the_measured_flags_and_environment() -> None:
    arm = make_arm(
        kv_cache_gib=4.5, omp_threads_bind="0-31|32-63", enforce_eager=True, extra_args=("--block-size", "32")
    )

    preload, _, rest = commands_for(arm, None).vllm_serve.partition(" VLLM_CPU")
    words = shlex.split("VLLM_CPU" + rest)

    assert preload == 'LD_PRELOAD="$(dirname "$(command -v vllm)")/../lib/libiomp5.so"'
    assert {"VLLM_CPU_KVCACHE_SPACE=4.5", "VLLM_CPU_OMP_THREADS_BIND=0-31|32-63"} <= set(words[:3])
    assert words[3:6] == ["vllm", "serve", "org/target"]
    assert {"--enforce-eager", "--no-enable-prefix-caching", "--max-num-seqs", "--max-model-len"} <= set(words)
    assert words[-4:] == ["--block-size", "32", "--port", "8000"]


def bound_visit(arm: Arm, node: str, cpus: str, bind: str) -> VisitRecord:
    binding = CpuBinding(cpus=cpus, num_cores=4, omp_threads_bind=bind, load_cpus=cpus)
    return visit_of(arm, node, cpu_binding=binding)


def test_each_numa_node_gets_a_command_with_its_own_cpus_and_port() -> None:
    arm = make_arm(server_per="numa_node")
    visits = [
        bound_visit(arm, "b/numa0", "90-91", "90"),
        bound_visit(arm, "a/numa1", "4-7,12-15", "12-14"),
        bound_visit(arm, "a/numa0", "0-3,8-11", "8-10"),
    ]

    commands = commands_for(arm, "0.32.0", visits)

    first, second = commands.vllm_serve.splitlines()
    assert " VLLM_CPU_OMP_THREADS_BIND=8-10 taskset --cpu-list 0-3,8-11 vllm serve " in first
    assert " VLLM_CPU_OMP_THREADS_BIND=12-14 taskset --cpu-list 4-7,12-15 vllm serve " in second
    assert (first.endswith("--port 8000"), second.endswith("--port 8001")) == (True, True)
    container = commands.docker_run.splitlines()[1]
    assert "-p 127.0.0.1:8001:8000 --cpuset-cpus=4-7,12-15 -e" in container


def test_whole_node_with_cores_kept_aside_has_its_binding_and_no_other_limit() -> None:
    arm = make_arm(reserved_cores=1)
    commands = commands_for(arm, None, [bound_visit(arm, "a", "0-3", "0-2")])

    assert "VLLM_CPU_OMP_THREADS_BIND=0-2 vllm serve" in commands.vllm_serve
    assert "cpuset" not in commands.docker_run


def test_container_has_what_vllms_cpu_guide_asks_for() -> None:
    command = commands_for(make_arm(env={"LABEL": "a b"}), "0.32.0").docker_run
    words = shlex.split(command)

    assert {"--ipc=host", "--cap-add=SYS_NICE", "seccomp=unconfined"} <= set(words)
    assert {"VLLM_CPU_KVCACHE_SPACE=1", "LABEL=a b"} <= set(words)
    assert '-v "$HOME/.cache/huggingface:/root/.cache/huggingface"' in command
    assert words[words.index(f"{IMAGE}:v0.32.0") + 1] == "org/target"


@pytest.mark.parametrize(("version", "tag"), [("0.32.0", "v0.32.0"), ("0.32.0+cpu", "v0.32.0"), (None, "latest")])
def test_image_is_the_measured_version_by_a_valid_tag(version: str | None, tag: str) -> None:
    assert f" {IMAGE}:{tag} " in commands_for(make_arm(), version).docker_run


def test_demo_models_appear_as_folders_of_this_machine_and_are_mounted() -> None:
    demo = {"method": "dflash", "model": "demo://dflash", "num_speculative_tokens": 7}
    arm = make_arm(target="demo://target", speculative_config=demo)

    commands = commands_for(arm, None)

    assert "demo://" not in commands.model_dump_json()
    for folder in (resolve_model("demo://target"), resolve_model("demo://dflash")):
        assert f"-v {folder}:{folder}:ro" in commands.docker_run
    assert located(arm.server).speculative_config == commands.speculative_config


def test_relative_model_folder_is_mounted_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    commands = commands_for(make_arm(target="models/mine"), None)

    folder = tmp_path / "models" / "mine"
    assert f"-v {folder}:{folder}:ro" in commands.docker_run
    assert f"vllm serve {folder} " in commands.vllm_serve


@pytest.mark.parametrize("k", [0, 7])
def test_model_of_the_hub_is_not_mounted(k: int) -> None:
    assert shlex.split(commands_for(make_arm(k), None).docker_run).count("-v") == 1
