"""Which CPUs a server gets: arithmetic on made-up machines, and real threads on this one's."""

import os
import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from orchestrator.errors import NodeUnavailable
from orchestrator.records import CpuBinding, ServerSpec
from tasks.cpu_binding import bound, cpu_binding, format_cpus, parse_cpus, process_on, thread_on
from tests.unit.builders import make_plan

SPEC = make_plan([7]).arms[1].server


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    """Two NUMA nodes of 4 cores with two threads each, numbered as on Xeons: the second threads after all first ones;
    and a third node that has memory only."""
    for node, cpus in (("node0", "0-3,8-11"), ("node1", "4-7,12-15"), ("node2", "")):
        write(tmp_path / f"sys/devices/system/node/{node}/cpulist", cpus)
    for cpu in range(16):
        siblings = f"{cpu % 8},{cpu % 8 + 8}"
        write(tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def spec(**changes: object) -> ServerSpec:
    return SPEC.model_copy(update=changes)


def on(root: Path, numa_index: int | None, cpus: int = 16, **changes: object) -> CpuBinding:
    found = cpu_binding(spec(**changes), numa_index, allowed=range(cpus), root=root)
    assert found is not None
    return found


def test_whole_node_with_nothing_kept_aside_is_left_to_vllm(two_sockets: Path) -> None:
    assert cpu_binding(spec(), None, allowed=range(16), root=two_sockets) is None


def test_server_on_a_numa_node_has_one_thread_a_core_of_it_and_nothing_of_the_other(two_sockets: Path) -> None:
    first, second = (on(two_sockets, index) for index in (0, 1))

    assert (first.cpus, first.omp_threads_bind, first.num_cores) == ("0-3,8-11", "8-11", 4)
    assert (second.cpus, second.omp_threads_bind, second.load_cpus) == ("4-7,12-15", "12-15", "4-7,12-15")


def test_last_cores_are_kept_aside_with_both_their_threads(two_sockets: Path) -> None:
    found = on(two_sockets, 1, reserved_cores=1)

    assert (found.omp_threads_bind, found.load_cpus, found.cpus) == ("12-14", "7,15", "4-7,12-15")


def test_tensor_parallel_server_has_a_rank_on_each_numa_node_and_gives_cores_last_rank_first(two_sockets: Path) -> None:
    found = on(two_sockets, None, tensor_parallel_size=2, reserved_cores=3)

    assert (found.omp_threads_bind, found.load_cpus) == ("8-10|12-13", "3,6-7,11,14-15")
    assert (found.cpus, found.num_cores) == ("0-15", 8)


def test_ranks_share_a_numa_node_in_equal_parts(two_sockets: Path) -> None:
    assert on(two_sockets, 0, tensor_parallel_size=2, reserved_cores=2).omp_threads_bind == "8|10"
    assert on(two_sockets, None, tensor_parallel_size=4, reserved_cores=1).omp_threads_bind == "8-9|10-11|12-13|14"


def test_cpus_that_the_container_does_not_have_are_nobodys(two_sockets: Path) -> None:
    assert on(two_sockets, 0, cpus=10, reserved_cores=1).omp_threads_bind == "2-3,8"


def test_machine_without_numa_or_topology_is_one_node_of_single_threaded_cores(tmp_path: Path) -> None:
    found = on(tmp_path, None, cpus=4, reserved_cores=1)

    assert (found.omp_threads_bind, found.load_cpus, found.num_cores) == ("0-2", "3", 4)


@pytest.mark.parametrize(
    ("numa_index", "changes", "message"),
    [
        (2, {}, "has 2 NUMA nodes with CPUs, so there is no numa2; start its Ray with 2 of hardware.node_resource"),
        (0, {"reserved_cores": 4}, "hardware.reserved_cores=4 leaves the engine no core where .* has 4 for"),
        (None, {"reserved_cores": 1}, "tensor_parallel_size=1 cannot be bound to the 2 NUMA nodes of .*; set it to 2"),
    ],
)
def test_what_the_machine_cannot_give_is_refused(
    two_sockets: Path, numa_index: int | None, changes: dict[str, int], message: str
) -> None:
    with pytest.raises(NodeUnavailable, match=message):
        on(two_sockets, numa_index, **changes)


def test_binding_given_with_the_server_wins(two_sockets: Path) -> None:
    found = on(two_sockets, 0)

    assert bound(spec(), found).omp_threads_bind == "8-11"
    assert bound(spec(omp_threads_bind="nobind"), found).omp_threads_bind == "nobind"
    assert bound(SPEC, None) is SPEC


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", {0}), ("0-2,8", {0, 1, 2, 8}), ("1,3,5-6", {1, 3, 5, 6}), ("", set())]
)
def test_cpu_lists_are_the_kernels(text: str, cpus: Collection[int]) -> None:
    assert parse_cpus(text) == set(cpus)
    assert format_cpus(cpus) == text


def test_only_what_this_thread_starts_meanwhile_runs_elsewhere() -> None:
    before = os.sched_getaffinity(0)
    cpu = str(max(before))
    with thread_on(cpu):
        show = "import os; print(*os.sched_getaffinity(0))"
        shown = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout
    assert shown.split() == [cpu]
    assert os.sched_getaffinity(0) == before


def test_every_thread_of_the_process_moves_and_comes_back() -> None:
    before, cpu, wake = os.sched_getaffinity(0), max(os.sched_getaffinity(0)), threading.Event()
    other = threading.Thread(target=wake.wait)
    other.start()
    try:
        with process_on(str(cpu)):
            assert os.sched_getaffinity(other.native_id or 0) == os.sched_getaffinity(0) == {cpu}
        assert os.sched_getaffinity(other.native_id or 0) == before
    finally:
        wake.set()
        other.join()
