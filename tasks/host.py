"""What the node is, and whether it is what the hardware profile says."""

import json
import os
import platform
import re
import socket
import subprocess
from pathlib import Path
from statistics import fmean

import psutil

from orchestrator.config import Hardware
from orchestrator.errors import NodeUnavailable
from orchestrator.records import NodeInfo

MEMORY_TOLERANCE = 0.1
"""Vendors' GB are often GiB (7 % more), and firmware and kernel keep some (3 to 5 % less)."""


def probe_node(root: Path = Path("/")) -> NodeInfo:
    """Read this machine; None where a value is not readable here. `root` is where proc/ and sys/ are mounted.

    `memory_gb` is in units of 10^9 bytes; `isa` holds every CPU flag of /proc/cpuinfo, sorted.
    """
    cpuinfo = _read(root / "proc/cpuinfo") or ""
    return NodeInfo(
        hostname=socket.gethostname(),
        cpu_model=_lscpu_fields().get("Model name") or _cpuinfo_value(cpuinfo, "model name"),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(logical=True),
        numa_nodes=sum(1 for _ in (root / "sys/devices/system/node").glob("node[0-9]*")) or None,
        memory_gb=round(psutil.virtual_memory().total / 1e9, 2),
        isa=tuple(sorted(set((_cpuinfo_value(cpuinfo, "flags|Features") or "").split()))),
        governor=_read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        load_average_1m=os.getloadavg()[0],
        transparent_hugepage=_chosen(_read(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        kernel=platform.release(),
        clock_mhz=_mean_mhz(cpuinfo),
        numa_cpus=_numa_cpus(root),
    )


def clock_mhz() -> float | None:
    """Mean clock of all CPUs now, as /proc/cpuinfo tells; None where it does not (Arm). A virtual machine may show a
    constant."""
    return _mean_mhz(_read(Path("/proc/cpuinfo")) or "")


def take_normal_priority() -> None:
    """Undo the niceness that Ray gives its workers (15), which the engine would inherit.

    Raises:
        NodeUnavailable: this user may not.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) <= 0:
        return
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    except PermissionError as error:
        raise NodeUnavailable(
            "Ray runs its workers here with a raised niceness, so that any other process comes before the engine; "
            "start this node's Ray with RAY_worker_niceness=0 in its environment"
        ) from error


def profile_mismatch(hardware: Hardware, node: NodeInfo) -> str | None:
    """One sentence where the profile contradicts the node; None where they agree or one of them does not know."""
    contradiction = (
        _count_contradiction(hardware.physical_cores, node.physical_cores, "physical cores")
        or _count_contradiction(hardware.numa_nodes, node.numa_nodes, "NUMA nodes")
        or _memory_contradiction(hardware.memory_gb, node.memory_gb)
        or _isa_contradiction(hardware.isa, node.isa)
    )
    if contradiction is None:
        return None
    says, has = contradiction
    return (
        f"hardware profile {hardware.name!r} says {says}, but node {node.hostname} {has}; "
        "choose hardware=local or correct the profile"
    )


Contradiction = tuple[str, str]
"""What the profile says, and what the node has instead."""


def _count_contradiction(profile: int | None, node: int | None, what: str) -> Contradiction | None:
    if profile is None or node is None or profile == node:
        return None
    return f"{profile} {what}", f"has {node}"


def _memory_contradiction(profile_gb: float | None, node_gb: float) -> Contradiction | None:
    if profile_gb is None or abs(node_gb - profile_gb) <= MEMORY_TOLERANCE * profile_gb:
        return None
    return f"{profile_gb:g} GB of memory", f"has {node_gb:g} GB"


def _isa_contradiction(profile: tuple[str, ...], node: tuple[str, ...]) -> Contradiction | None:
    missing = [flag for flag in profile if flag not in node]
    if not missing or not node:  # no flags at all: /proc/cpuinfo was not readable
        return None
    return f"the CPU has {', '.join(profile)}", f"lacks {', '.join(missing)}"


def _lscpu_fields() -> dict[str, str]:
    """Fields of `lscpu --json`, which names CPUs that /proc/cpuinfo does not (Arm); empty without lscpu."""
    try:
        output = subprocess.run(
            ["lscpu", "--json"], capture_output=True, check=True, timeout=10, env=os.environ | {"LC_ALL": "C"}
        ).stdout
        return parse_lscpu(output.decode())
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}


def parse_lscpu(text: str) -> dict[str, str]:
    """Field -> value of `lscpu --json`, flat: newer versions nest fields in `children`.

    Raises:
        ValueError: not JSON.
    """
    fields: dict[str, str] = {}
    entries = list(json.loads(text).get("lscpu", []))
    while entries:
        entry = entries.pop(0)
        fields.setdefault(entry["field"].rstrip(":"), entry.get("data") or "")
        entries += entry.get("children", [])
    return fields


def _cpuinfo_value(cpuinfo: str, key: str) -> str | None:
    match = re.search(rf"^(?:{key})\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else None


def _mean_mhz(cpuinfo: str) -> float | None:
    clocks = [float(value) for value in re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", cpuinfo, re.MULTILINE)]
    return round(fmean(clocks), 1) if clocks else None


def _numa_cpus(root: Path) -> dict[str, str] | None:
    lists = sorted((root / "sys/devices/system/node").glob("node[0-9]*/cpulist"))
    return {path.parent.name.removeprefix("node"): _read(path) or "" for path in lists} or None


def _chosen(setting: str | None) -> str | None:
    """`madvise` of `always [madvise] never`."""
    match = re.search(r"\[(\w+)\]", setting or "")
    return match[1] if match else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
