"""One visit against the stand-in, without Ray: what it finds out about the engine and the node on its way."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from orchestrator.config import Hardware
from orchestrator.records import BlockRecord, PrefixCache, VisitRecord
from tests.integration.visiting import run, visit_task
from tests.standin import COMMAND
from tests.unit.builders import make_plan

pytestmark = pytest.mark.timeout(120)

DRAFTER = {"model": "demo://dflash"}
REPAIRED = ("--standin-version", "0.99.0")
"""A version that is not known to break under sampling."""


@pytest.fixture(autouse=True)
def _keeps_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the tests' own."""
    monkeypatch.setattr("tasks.visit.take_normal_priority", lambda: None)


@pytest.fixture
def two_hogs() -> Iterator[None]:
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for hog in hogs:
        hog.kill()
        hog.wait()


def visit(
    *flags: str, temperature: float = 0.0, max_other_cpu_share: float | None = None, **server: object
) -> tuple[list[BlockRecord], VisitRecord]:
    """One block of one workload on dflash-k7."""
    plan = make_plan([7], num_blocks=2, temperature=temperature)
    arm = plan.arms[1]
    local = {"target": "demo://target", "speculative_config": {**(arm.server.speculative_config or {}), **DRAFTER}}
    spec = arm.server.model_copy(update={"command": COMMAND, "extra_args": flags, **local, **server})
    hardware = Hardware(name="local", max_other_cpu_share=max_other_cpu_share)
    return run(visit_task(plan, spec, hardware=hardware))


def test_engine_that_accepts_only_at_temperature_0_is_refused() -> None:
    blocks, finished = visit(*REPAIRED, "--standin-collapse", temperature=0.7)

    assert not blocks
    assert finished.error is not None
    assert finished.error.startswith("ArmMismatch: v: code@c1: acceptance length is 1.00 when sampling, but ")
    assert "on the same prompts at temperature 0" in finished.error


def test_engine_that_tells_its_version_only_once_it_runs_is_refused_where_it_is_known_to_break() -> None:
    blocks, finished = visit(temperature=0.7)

    assert not blocks
    assert (finished.error or "").startswith("ConfigError: workload.temperature=0.7 with speculation method 'dflash'")


def test_engine_that_accepts_when_sampling_too_is_measured() -> None:
    blocks, finished = visit(*REPAIRED, temperature=0.7)

    assert finished.error is None
    assert [block.void_reason for block in blocks] == [None]


def test_visit_records_node_threads_versions_and_what_else_ran() -> None:
    (block,), finished = visit()

    assert finished.thread_binding == "VLLM_CPU_OMP_THREADS_BIND='auto'; local_rank=0, core ids=[0]"
    assert "python" in (finished.versions or {})
    assert finished.node_info is not None
    assert finished.node_info.memory_bandwidth_gb_per_s is not None
    assert finished.node_info.memory_bandwidth_gb_per_s > 0
    assert block.host is not None
    assert 0 <= block.host.other_cpu_cores <= block.host.num_cpus


def test_block_records_what_the_prefix_cache_had_where_it_is_on() -> None:
    (block,), _ = visit("--standin-prefix-hits", "1", enable_prefix_caching=True)

    assert block.void_reason is None
    assert block.prefix_cache == PrefixCache(queries=block.prompt_tokens, hits=block.num_requests)


@pytest.mark.usefixtures("two_hogs")
def test_block_is_void_while_other_processes_take_the_cpus() -> None:
    (block,), finished = visit("--standin-step-ms", "20", max_other_cpu_share=0.1)

    assert finished.error is None
    assert block.void_reason is not None
    assert block.void_reason.startswith("other processes used ")
    assert block.void_reason.endswith("CPUs; end them, or allow it with hardware.max_other_cpu_share (now 0.1)")
