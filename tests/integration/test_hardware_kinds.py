"""Two local Ray nodes of different hardware: one driver measures both at the same time and compares them."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.hardware_comparison import HardwareComparison
from orchestrator.sweep_dir import SweepDir, newest_sweep
from tests.integration.sweeping import Sandbox, sandbox, slow, small
from tests.standin import free_port

pytestmark = pytest.mark.timeout(240)

LABEL = "specsweep.io/hardware"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path) as found:
        yield found


def start_nodes(box: Sandbox) -> str:
    """Node a of hardware `quick`, which is the head, and node b of hardware `slow`; the address."""
    port = free_port()
    common = ("--node-ip-address=127.0.0.1", "--num-cpus=1", "--object-store-memory=100000000")
    offered = ("--resources", '{"xeon_node": 1}', "--labels")
    box.start_ray(
        *("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={box.temporary}/r", *common),
        *("--node-name=a", *offered, f"{LABEL}=quick,rack=7"),
        env={"RAY_worker_niceness": "0"},
    )
    box.start_ray(
        *(f"--address=127.0.0.1:{port}", *common, "--node-name=b", *offered, f"{LABEL}=slow"),
        env={"RAY_worker_niceness": "0", "STANDIN_SLOWDOWN": "3"},
    )
    return f"127.0.0.1:{port}"


def write_profile(box: Sandbox, name: str, usd_per_hour: str) -> None:
    folder = box.path / "own/hardware"
    folder.mkdir(parents=True, exist_ok=True)
    text = f"name: {name}\nusd_per_hour: {usd_per_hour}\nnode_labels: {{{LABEL}: {name}}}\n"
    (folder / f"{name}.yaml").write_text(text)


def sweep_of(box: Sandbox, hardware: str) -> SweepDir:
    found = newest_sweep(box.path / "results", f"small-{hardware}")
    assert found is not None
    return found


def test_two_kinds_of_hardware_are_measured_by_one_driver_and_compared(box: Sandbox) -> None:
    address = start_nodes(box)
    write_profile(box, "quick", "4")
    write_profile(box, "slow", "null")

    ended = box.run(
        *small(
            *("cluster=address", f"cluster.address={address}", "cluster.auth_mode=disabled", "hardware=[slow,quick]"),
            *("tracking=sqlite", "speculation.num_speculative_tokens=[7]"),
            extra_args=slow(10),
        ),
        f"--config-dir={box.path / 'own'}",
    )

    assert ended.exit_code == 0, ended
    visits = {}
    for hardware, node in (("quick", "a"), ("slow", "b")):
        sweep = sweep_of(box, hardware)
        assert {block.node for block in sweep.ledger().valid_blocks()} == {node}
        assert len(sweep.ledger().valid_blocks()) == 3 * 2
        assert (sweep.path / "report.html").exists()
        visits[hardware] = [visit.started_utc for visit in sweep.ledger().visits()]
    assert min(visits["slow"]) < max(visits["quick"])
    assert min(visits["quick"]) < max(visits["slow"])
    [workload] = HardwareComparison.model_validate_json(
        (box.path / "results/small/comparison.json").read_text()
    ).workloads
    quick, slowed = workload.figures
    assert (quick.hardware, slowed.hardware) == ("quick", "slow")
    assert quick.output_tokens_per_s is not None
    assert slowed.output_tokens_per_s is not None
    assert quick.output_tokens_per_s.mean > slowed.output_tokens_per_s.mean
    assert quick.usd_per_million_output_tokens is not None
    assert slowed.usd_per_million_output_tokens is None
    assert "Comparison: results/small/comparison.json" in ended.stdout
    with sqlite3.connect(box.path / "mlflow.db") as mlflow:
        tagged = mlflow.execute("SELECT value FROM tags WHERE key = 'specsweep.sweep_id'").fetchall()
    assert {value for (value,) in tagged} == {sweep_of(box, name).sweep_id for name in ("quick", "slow")}
