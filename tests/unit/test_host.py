import json
from pathlib import Path

import pytest

from orchestrator.config import Hardware
from orchestrator.records import NodeInfo
from tasks.host import parse_lscpu, probe_node, profile_mismatch

XEON = Hardware(name="r8i_16xlarge", physical_cores=32, numa_nodes=1, memory_gb=512, isa=("avx512_bf16", "amx_bf16"))


def node(**changes: object) -> NodeInfo:
    """A node that is what XEON says; 512 GiB of which the kernel shows 96 %."""
    info: dict[str, object] = {
        "hostname": "ip-10-0-0-7",
        "cpu_model": "Intel(R) Xeon(R) 6975P-C",
        "physical_cores": 32,
        "logical_cores": 64,
        "numa_nodes": 1,
        "memory_gb": 528.0,
        "isa": ("amx_bf16", "avx2", "avx512_bf16"),
        "governor": None,
        "load_average_1m": 0.1,
        "transparent_hugepage": "madvise",
        "kernel": "6.8.0",
    }
    return NodeInfo.model_validate(info | changes)


def test_node_that_fits_the_profile_has_no_mismatch() -> None:
    assert profile_mismatch(XEON, node()) is None


def test_profile_without_figures_fits_every_node() -> None:
    assert profile_mismatch(Hardware(name="local"), node(physical_cores=2, memory_gb=4.0)) is None


def test_mismatch_names_profile_node_both_figures_and_the_cure() -> None:
    assert profile_mismatch(XEON, node(physical_cores=2)) == (
        "hardware profile 'r8i_16xlarge' says 32 physical cores, but node ip-10-0-0-7 has 2; "
        "choose hardware=local or correct the profile"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"numa_nodes": 2}, "says 1 NUMA nodes, but node ip-10-0-0-7 has 2"),
        ({"memory_gb": 450.0}, "says 512 GB of memory, but node ip-10-0-0-7 has 450 GB"),
        ({"memory_gb": 580.0}, "has 580 GB"),
        ({"isa": ("avx512_bf16",)}, "lacks amx_bf16;"),
    ],
)
def test_each_kind_of_contradiction_is_found(changes: dict[str, object], message: str) -> None:
    assert message in (profile_mismatch(XEON, node(**changes)) or "")


@pytest.mark.parametrize("memory_gb", [461.0, 512.0, 549.8, 563.0])
def test_memory_within_ten_percent_is_no_mismatch(memory_gb: float) -> None:
    assert profile_mismatch(XEON, node(memory_gb=memory_gb)) is None


@pytest.mark.parametrize("changes", [{"physical_cores": None}, {"numa_nodes": None}, {"isa": ()}])
def test_what_the_node_cannot_tell_is_no_mismatch(changes: dict[str, object]) -> None:
    assert profile_mismatch(XEON, node(**changes)) is None


def test_probe_reads_this_machine() -> None:
    info = probe_node()
    assert info.hostname
    assert info.logical_cores is not None
    assert info.logical_cores >= (info.physical_cores or 1) >= 1
    assert info.memory_gb > 0.1


def test_probe_reads_sys_and_proc(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": (
            "processor\t: 0\ncpu MHz\t\t: 2000.000\nflags\t\t: fpu amx_bf16 avx2\n\n"
            "processor\t: 1\ncpu MHz\t\t: 3000.500\nflags\t\t: fpu\n"
        ),
        "sys/devices/system/node/node0/cpulist": "0\n",
        "sys/devices/system/node/node1/cpulist": "1",
        "sys/devices/system/node/possible": "0-1",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    info = probe_node(tmp_path)
    assert info.isa == ("amx_bf16", "avx2", "fpu")
    assert (info.numa_nodes, info.governor, info.transparent_hugepage) == (2, "performance", "madvise")
    assert info.clock_mhz == 2500.2
    assert info.numa_cpus == {"0": "0", "1": "1"}


def test_what_probe_cannot_read_is_none(tmp_path: Path) -> None:
    info = probe_node(tmp_path)
    assert (info.numa_nodes, info.governor, info.transparent_hugepage, info.isa) == (None, None, None, ())
    assert (info.clock_mhz, info.numa_cpus) == (None, None)


def test_ledger_of_before_the_newer_fields_still_reads() -> None:
    known = node().model_dump(exclude={"memory_bandwidth_gb_per_s", "clock_mhz", "numa_cpus"})
    assert NodeInfo.model_validate(known) == node()


def test_lscpu_fields_are_found_flat_and_nested() -> None:
    nested = {"lscpu": [{"field": "Vendor ID:", "data": "Intel", "children": [{"field": "Model name:", "data": "X"}]}]}
    assert parse_lscpu(json.dumps(nested))["Model name"] == "X"
    assert parse_lscpu('{"lscpu": [{"field": "Model name:", "data": "Y"}]}') == {"Model name": "Y"}
