"""Which CPUs of this node a server runs on, and which are kept aside for the load generator."""

import contextlib
import os
import socket
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from orchestrator.errors import NodeUnavailable
from orchestrator.records import CpuBinding, ServerSpec

ROOT = Path("/")

Core = tuple[int, ...]
"""The logical CPUs of a physical core, growing."""


def cpu_binding(
    spec: ServerSpec, numa_index: int | None, *, allowed: Collection[int] | None = None, root: Path = ROOT
) -> CpuBinding | None:
    """Where the server belongs; None where vLLM is left to choose: a whole node with no core kept aside.

    The engine's threads get one logical CPU of each physical core, the highest, as vLLM chooses by itself; the ranks of
    tensor parallelism get a NUMA node each, or equal parts of one; and the last cores of each rank are kept aside, the
    last rank's first. Source: vllm/utils/ompmultiprocessing.py of vLLM 0.32.

    Args:
        numa_index: the NUMA node to stay on, counted from 0 over those that have CPUs; None: the whole node.
        allowed: the CPUs that may be used at all; None: those that this process may.
        root: where sys/ is mounted.

    Raises:
        NodeUnavailable: the node has no such NUMA node, or too few cores.
    """
    if numa_index is None and not spec.reserved_cores:
        return None
    nodes = _numa_nodes(root, os.sched_getaffinity(0) if allowed is None else allowed)
    if numa_index is not None:
        if numa_index >= len(nodes):
            raise NodeUnavailable(
                f"node {socket.gethostname()} has {len(nodes)} NUMA nodes with CPUs, so there is no numa{numa_index}; "
                f"start its Ray with {len(nodes)} of hardware.node_resource, or choose hardware.server_per=node"
            )
        nodes = [nodes[numa_index]]
    ranks = _without_reserved(_ranks(nodes, spec.tensor_parallel_size), spec.reserved_cores)
    cores = [core for node in nodes for core in node]
    engine = {core for rank in ranks for core in rank}
    cpus = [cpu for core in cores for cpu in core]
    kept = [cpu for core in cores if core not in engine for cpu in core] if spec.reserved_cores else cpus
    return CpuBinding(
        cpus=format_cpus(cpus),
        num_cores=len(cores),
        omp_threads_bind="|".join(format_cpus([core[-1] for core in rank]) for rank in ranks),
        load_cpus=format_cpus(kept),
    )


def bound(spec: ServerSpec, binding: CpuBinding | None) -> ServerSpec:
    """`spec` with the binding, unless it has one of its own."""
    if binding is None or spec.omp_threads_bind is not None:
        return spec
    return spec.model_copy(update={"omp_threads_bind": binding.omp_threads_bind})


def num_numa_nodes(root: Path = ROOT) -> int:
    """Those of this machine with CPUs that this process may use."""
    return len(_numa_nodes(root, os.sched_getaffinity(0)))


def online_cpus(number: int) -> list[int]:
    """In the order in which the kernel lists their times; `number` is how many times it lists."""
    try:
        found = sorted(parse_cpus(Path("/sys/devices/system/cpu/online").read_text()))
    except OSError:
        found = []
    return found if len(found) == number else list(range(number))


@contextlib.contextmanager
def thread_on(cpus: str | None) -> Iterator[None]:
    """This thread, and what it starts meanwhile, on `cpus` (None: where it is); then where it was before."""
    before = os.sched_getaffinity(0)
    if cpus is not None:
        os.sched_setaffinity(0, parse_cpus(cpus))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def process_on(cpus: str | None) -> Iterator[None]:
    """All threads of this process on `cpus` (None: where they are); then where this one was before."""
    before = os.sched_getaffinity(0)
    if cpus is not None:
        _move_threads(parse_cpus(cpus))
    try:
        yield
    finally:
        if cpus is not None:
            _move_threads(before)


def parse_cpus(text: str) -> frozenset[int]:
    """`0-2,8` as the kernel writes it, {0, 1, 2, 8}."""
    ends = [part.partition("-") for part in text.split(",") if part.strip()]
    return frozenset(cpu for first, _, last in ends for cpu in range(int(first), int(last or first) + 1))


def format_cpus(cpus: Collection[int]) -> str:
    """The inverse of `parse_cpus`."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1][1:] = [cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)


def _move_threads(cpus: Collection[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread.name), cpus)


def _numa_nodes(root: Path, allowed: Collection[int]) -> list[list[Core]]:
    """The physical cores of each NUMA node, in the order of the CPUs that the engine takes; one node where the kernel
    tells of none."""
    lists = (root / "sys/devices/system/node").glob("node[0-9]*/cpulist")
    by_number = sorted((int(path.parent.name.removeprefix("node")), path) for path in lists)
    found = [parse_cpus(path.read_text()).intersection(allowed) for _, path in by_number]
    return [_cores(root, cpus) for cpus in found if cpus] or [_cores(root, frozenset(allowed))]


def _cores(root: Path, cpus: frozenset[int]) -> list[Core]:
    return sorted({tuple(sorted(cpus & _siblings(root, cpu))) for cpu in cpus}, key=lambda core: core[-1])


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    try:
        # Called core_cpus_list since Linux 5.x, but kept under this name.
        return parse_cpus((root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
    except OSError:
        return frozenset({cpu})


def _ranks(nodes: Sequence[list[Core]], tensor_parallel_size: int) -> list[list[Core]]:
    if tensor_parallel_size % len(nodes):
        raise NodeUnavailable(
            f"a server with server.tensor_parallel_size={tensor_parallel_size} cannot be bound to the {len(nodes)} "
            f"NUMA nodes of {socket.gethostname()}; set it to {len(nodes)}, or hardware.server_per=numa_node"
        )
    parts = tensor_parallel_size // len(nodes)
    return [
        node[part * (len(node) // parts) : (part + 1) * (len(node) // parts)] for node in nodes for part in range(parts)
    ]


def _without_reserved(ranks: list[list[Core]], num_reserved: int) -> list[list[Core]]:
    share, rest = divmod(num_reserved, len(ranks))
    kept = [cores[: len(cores) - share - (index >= len(ranks) - rest)] for index, cores in enumerate(ranks)]
    if not all(kept):
        raise NodeUnavailable(
            f"hardware.reserved_cores={num_reserved} leaves the engine no core where {socket.gethostname()} has "
            f"{sum(map(len, ranks))} for the server's {len(ranks)} ranks; lower it"
        )
    return kept
