"""Two local Ray nodes of which one is slow: it is set aside, and the other one measures everything."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.sweeping import Ended, Sandbox, sandbox, slow, small
from tests.standin import free_port

pytestmark = pytest.mark.timeout(240)

CPUS = sorted(os.sched_getaffinity(0))
NO_ENV: Mapping[str, str] = {}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path) as found:
        yield found


@contextmanager
def hogs_on(cpu: int) -> Iterator[None]:
    """Two endless loops, of the engine's own priority: what else runs there gets a third of it."""
    loop = f"import os; os.setpriority(os.PRIO_PROCESS, 0, 0); os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    hogs = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(2)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def start_two_nodes(box: Sandbox, *, env_of_b: Mapping[str, str] = NO_ENV, on_own_cpus: bool = False) -> str:
    """Nodes a and b; the address."""
    port = free_port()
    box.start_ray(
        *("--head", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=1"),
        *("--include-dashboard=false", f"--temp-dir={box.temporary}/r", "--object-store-memory=100000000"),
    )
    for name, cpu, env in (("a", CPUS[0], NO_ENV), ("b", CPUS[-1], env_of_b)):
        box.start_ray(
            *(f"--address=127.0.0.1:{port}", "--node-ip-address=127.0.0.1", "--num-cpus=1", f"--node-name={name}"),
            *("--resources", '{"xeon_node": 1}', "--object-store-memory=100000000"),
            # As the README says; with Ray's own 15 a worker hardly starts beside the hogs.
            env={"RAY_worker_niceness": "0", **env},
            cpu=cpu if on_own_cpus else None,
        )
    return f"127.0.0.1:{port}"


def sweep(box: Sandbox, address: str, flags: list[str]) -> Ended:
    return box.run(
        *small(
            *("cluster=address", f"cluster.address={address}", "cluster.auth_mode=disabled"),
            *("search=grid", "hardware.node_tolerance=0.15", "workload.num_blocks=4"),
            extra_args=flags,
        )
    )


def reason_for_setting_b_aside(box: Sandbox, ended: Ended) -> str:
    """Once it is sure that all that counts is a's, and that everybody is told."""
    assert ended.exit_code == 0, ended
    ledger = box.sweep.ledger()
    assert list(ledger.set_aside) == ["b"]
    assert len(ledger.valid_blocks()) == 4 * 4
    assert {block.node for block in ledger.valid_blocks()} == {"a"}
    assert any(block.node == "b" for block in ledger.blocks())
    assert "closing" not in {visit.phase for visit in ledger.visits() if visit.node == "b"}
    reason = box.selection().provenance.nodes_set_aside["b"]
    assert "node b is set aside, its blocks are measured elsewhere: its " in ended.stdout
    assert f"Node b was set aside: {reason}" in ended.stdout
    for name in ("report.md", "report.html"):
        assert f"Node b was set aside: {reason}" in (box.sweep.path / name).read_text()
    return reason


def test_node_whose_engine_is_slow_is_set_aside_and_its_blocks_are_measured_on_the_other(box: Sandbox) -> None:
    address = start_two_nodes(box, env_of_b={"STANDIN_SLOWDOWN": "3"})

    reason = reason_for_setting_b_aside(box, sweep(box, address, slow(20)))

    assert re.match(r"its baseline is \d\d % slower than that of a on 4 blocks in common; ", reason)


@pytest.mark.skipif(len(CPUS) < 2, reason="needs a CPU for each node")
def test_node_whose_cpu_others_take_is_set_aside(box: Sandbox) -> None:
    address = start_two_nodes(box, on_own_cpus=True)

    with hogs_on(CPUS[-1]):
        ended = sweep(box, address, ["--standin-busy", *slow(20)])

    reason = reason_for_setting_b_aside(box, ended)

    assert reason.startswith(("its baseline is ", "its memory copies "))
