"""Where a visit puts server and load: real processes on this machine's CPUs, the stand-in for vLLM."""

import os
import uuid
from collections.abc import Generator
from contextlib import closing
from functools import partial
from pathlib import Path

import psutil
import pytest

from orchestrator.config import Hardware
from orchestrator.records import FinishedVisit, MeasuredBlock, VisitEvent
from tasks.cpu_binding import cpu_binding, format_cpus
from tasks.visit import run_visit
from tests.integration.visiting import PROMPTS, visit_task
from tests.standin import COMMAND
from tests.unit.builders import make_plan

CPUS = sorted(os.sched_getaffinity(0))[:2]
MARKER = uuid.uuid4().hex

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(len(CPUS) < 2, reason="needs a CPU for the engine and one for the load"),
]


@pytest.fixture(autouse=True)
def _keeps_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the tests' own."""
    monkeypatch.setattr("tasks.visit.take_normal_priority", lambda: None)


@pytest.fixture
def two_numa_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this machine's first two CPUs were a NUMA node each."""
    for number, cpu in enumerate(CPUS):
        path = tmp_path / f"sys/devices/system/node/node{number}/cpulist"
        path.parent.mkdir(parents=True)
        path.write_text(f"{cpu}\n")
    monkeypatch.setattr("tasks.visit.cpu_binding", partial(cpu_binding, root=tmp_path))


def visit(hardware: Hardware, node: str) -> Generator[VisitEvent]:
    """Two blocks of one workload on dflash-k7."""
    plan = make_plan([7], num_blocks=2)
    arm = plan.arms[1]
    spec = arm.server.model_copy(
        update={
            "command": COMMAND,
            "target": "demo://target",
            "speculative_config": (arm.server.speculative_config or {}) | {"model": "demo://dflash"},
            "server_per": hardware.server_per,
            "reserved_cores": hardware.reserved_cores,
            "env": {"SPECSWEEP_TEST_BINDING": MARKER},
        }
    )
    yield from run_visit(visit_task(plan, spec, node=node, num_blocks=2, hardware=hardware), PROMPTS)


def engine() -> psutil.Process:
    """The stand-in that runs for this test."""
    mine = f"SPECSWEEP_TEST_BINDING={MARKER}".encode()
    return next(
        process
        for process in psutil.process_iter(["cmdline"])
        if "serve" in (process.info["cmdline"] or ()) and mine in Path(f"/proc/{process.pid}/environ").read_bytes()
    )


def bind_of(process: psutil.Process) -> str | None:
    return process.environ().get("VLLM_CPU_OMP_THREADS_BIND")


def test_load_runs_on_the_reserved_core_and_the_engine_is_told_the_others() -> None:
    before = os.sched_getaffinity(0)
    with closing(
        visit(Hardware(name="local", reserved_cores=len(before) - 1, max_other_cpu_share=None), "a")
    ) as events:
        first = next(events)
        assert isinstance(first, MeasuredBlock)
        engine_cpu, *reserved = sorted(before)
        assert bind_of(engine()) == str(engine_cpu)
        assert set(engine().cpu_affinity() or ()) == before
        assert os.sched_getaffinity(0) == set(reserved)
        *_, finished = events
    assert isinstance(finished, FinishedVisit)
    assert finished.record.error is None
    assert finished.record.cpu_binding is not None
    assert finished.record.cpu_binding.load_cpus == format_cpus(reserved)
    assert os.sched_getaffinity(0) == before


@pytest.mark.usefixtures("two_numa_nodes")
def test_slots_of_a_node_share_no_cpu_and_count_only_their_own() -> None:
    hardware = Hardware(name="numa", server_per="numa_node", max_other_cpu_share=None)
    for slot, cpu in zip(("a/numa0", "a/numa1"), CPUS, strict=True):
        with closing(visit(hardware, slot)) as events:
            first = next(events)
            assert isinstance(first, MeasuredBlock)
            assert engine().cpu_affinity() == [cpu]
            assert bind_of(engine()) == str(cpu)
            assert os.sched_getaffinity(0) == {cpu}
            assert first.record.node == slot
            assert first.record.host is not None
            assert first.record.host.num_cpus == 1


@pytest.mark.usefixtures("two_numa_nodes")
def test_slot_that_the_node_does_not_have_ends_the_visit_with_what_to_do() -> None:
    [finished] = visit(Hardware(name="numa", server_per="numa_node"), "a/numa2")

    assert isinstance(finished, FinishedVisit)
    assert "has 2 NUMA nodes with CPUs, so there is no numa2" in (finished.record.error or "")
