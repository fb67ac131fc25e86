"""Each check of `orchestrator doctor`: what it calls in order, and the advice where it is not."""

import json
import socket
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator import doctor
from orchestrator.arms import baseline_arm
from orchestrator.check import Check
from orchestrator.cli import app
from orchestrator.config import Cluster, Server, SweepConfig, Tracking
from orchestrator.records import NodeInfo
from tests.unit.builders import make_config


def node(**changes: object) -> NodeInfo:
    quiet = NodeInfo(
        hostname="a",
        cpu_model="Xeon",
        physical_cores=32,
        logical_cores=64,
        numa_nodes=1,
        memory_gb=512,
        isa=("amx_bf16", "amx_tile", "avx512_bf16", "avx512f"),
        governor="performance",
        load_average_1m=0.1,
        transparent_hugepage="always",
        kernel="6.1",
    )
    return quiet.model_copy(update=changes)


def config(**changes: object) -> SweepConfig:
    return make_config().model_copy(update=changes)


def engine(folder: Path, script: str) -> SweepConfig:
    path = folder / "vllm"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return config(server=Server(command=(str(path),)))


def test_a_quiet_xeon_gives_no_warning() -> None:
    found = node()
    checks = [
        doctor.check_instructions(found),
        doctor.check_numa(config(), found),
        doctor.check_huge_pages(found),
        doctor.check_governor(found),
        doctor.check_load(found),
    ]
    assert {check.status for check in checks} == {"ok"}


@pytest.mark.parametrize(
    ("check", "advice"),
    [
        (doctor.check_instructions(node(isa=("avx512_bf16", "avx512f"))), "smaller k will win"),
        (doctor.check_instructions(node(isa=("avx2",))), "say nothing about a Xeon"),
        (doctor.check_numa(config(), node(numa_nodes=2)), "over the interconnect"),
        (doctor.check_huge_pages(node(transparent_hugepage="never")), "page walks"),
        (doctor.check_governor(node(governor="powersave")), "cpupower"),
        (doctor.check_load(node(load_average_1m=32.0)), "do not count"),
    ],
)
def test_what_disturbs_a_measurement_is_a_warning_with_its_consequence(check: Check, advice: str) -> None:
    assert check.status == "warning"
    assert advice in (check.advice or "")


def test_load_generator_that_must_wait_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.sched_setscheduler", refuse)
    found = doctor.check_turn()

    assert (found.status, found.finding) == ("warning", "may not be scheduled before the engine")


def test_threads_bound_by_hand_are_fine_on_several_numa_nodes() -> None:
    bound = config(server=Server(omp_threads_bind="0-31"))
    assert doctor.check_numa(bound, node(numa_nodes=2)).status == "ok"


def test_an_engine_that_starts_is_in_order(tmp_path: Path) -> None:
    check = doctor.check_engine(baseline_arm(engine(tmp_path, "echo 0.32.0+cpu")).server)
    assert (check.status, check.finding) == ("ok", "vLLM 0.32.0+cpu")


def test_an_engine_that_fails_says_its_last_line(tmp_path: Path) -> None:
    check = doctor.check_engine(baseline_arm(engine(tmp_path, "echo 'no torchvision' >&2; exit 1")).server)
    assert check.status == "failure"
    assert "no torchvision" in check.finding


def test_an_engine_that_is_missing_is_a_failure_with_the_fix() -> None:
    missing = config(server=Server(command=("/no/such/vllm",)))
    check = doctor.check_engine(baseline_arm(missing).server)
    assert check.status == "failure"
    assert "make setup" in (check.advice or "")


def test_a_port_in_use_is_a_failure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert doctor.check_port(config(server=Server(port=port))).status == "failure"
    assert doctor.check_port(config(server=Server(port=port))).status == "ok"


def test_servers_that_do_not_answer_are_named() -> None:
    with socket.socket() as closed:  # bound, not listening
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        ray = doctor.check_ray(config(cluster=Cluster(address=address)))
        mlflow = doctor.check_tracking(config(tracking=Tracking(uri=f"http://{address}")))
    assert (ray.status, mlflow.status) == ("failure", "warning")
    assert address in ray.finding
    assert "orchestrator record" in (mlflow.advice or "")


def test_the_hub_is_asked_for_only_where_something_comes_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    check = doctor.check_hub(config())
    assert check.status == "warning"
    assert "org/target, org/drafter" in (check.advice or "")


def test_the_folder_for_results_is_looked_for_above_what_does_not_exist_yet(tmp_path: Path) -> None:
    check = doctor.check_disk(tmp_path / "not" / "yet")
    assert str(tmp_path) in check.finding


def test_the_command_exits_with_2_where_a_check_fails_and_prints_json(tmp_path: Path) -> None:
    port = ["cluster=address", "cluster.address=127.0.0.1:9", f"results_dir={tmp_path}"]
    ended = CliRunner().invoke(app, ["doctor", "--json", *port])
    assert ended.exit_code == 2
    failed = [check["name"] for check in json.loads(ended.stdout) if check["status"] == "failure"]
    assert failed == ["Ray"]
