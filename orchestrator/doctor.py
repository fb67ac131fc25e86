"""`orchestrator doctor`: is this machine fit to measure on, and what would make it so.

Every check looks at one thing and says OK, a warning with its consequence, or a failure with its fix. None changes
anything.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from orchestrator.check import Check
from orchestrator.config import SweepConfig
from orchestrator.errors import EngineNotFound
from orchestrator.records import NodeInfo, ServerSpec
from tasks.bandwidth import memory_bandwidth_gb_per_s
from tasks.demo import resolve_model
from tasks.host import probe_node, profile_mismatch
from tasks.real_time import may_be_in_real_time
from tasks.server_command import engine_command, is_local, openmp_library
from tasks.server_http import ask, can_bind

CONNECT_TIMEOUT_S = 3.0
COMMAND_TIMEOUT_S = 120.0
MIN_FREE_GB = 5.0
"""A sweep of the demo takes 5 MB; compiled kernels and caches of one model about 1 GB."""
MAX_LOAD_SHARE = 0.1
AMX, AVX512 = ("amx_bf16", "amx_tile"), ("avx512f", "avx512_bf16")


def diagnose(config: SweepConfig, spec: ServerSpec) -> Iterator[Check]:
    """All checks for that configuration on this machine, as each is done; `spec` is its baseline's server."""
    node = probe_node()
    checks: tuple[Callable[[], Check], ...] = (
        lambda: check_engine(spec),
        lambda: check_profile(config, node),
        lambda: check_instructions(node),
        lambda: check_numa(config, node),
        check_bandwidth,
        lambda: check_huge_pages(node),
        lambda: check_governor(node),
        lambda: check_preload(spec),
        lambda: check_load(node),
        check_turn,
        lambda: check_disk(Path(config.results_dir)),
        lambda: check_port(config),
        lambda: check_hub(config),
        lambda: check_tracking(config),
        lambda: check_ray(config),
        check_terraform,
    )
    for check in checks:
        yield check()


def check_engine(spec: ServerSpec) -> Check:
    """That it starts and is a build for CPUs."""
    name = "engine"
    if spec.launcher == "external":
        answer = ask(f"{spec.url}/health", api_key="", timeout_s=CONNECT_TIMEOUT_S)
        if answer.status == 0:
            return Check(
                name=name, status="failure", finding=f"nothing answers at {spec.url}", advice="start the server"
            )
        return Check(name=name, status="ok", finding=f"{spec.url} answers")
    try:
        command = engine_command(spec)
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except EngineNotFound as error:
        return Check(name=name, status="failure", finding="no vLLM", advice=str(error))
    except subprocess.TimeoutExpired:
        return Check(name=name, status="failure", finding=f"`{command[0]} --version` hangs", advice="install it anew")
    found = (done.stdout.strip().splitlines() or ["no version"])[-1]
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Check(name=name, status="failure", finding=f"`{command[0]} --version`: {last}", advice="`make setup`")
    if spec.command is None and spec.launcher == "process" and "cpu" not in found:
        return Check(
            name=name, status="failure", finding=f"vLLM {found}, not a CPU build", advice="`make setup` installs one"
        )
    return Check(name=name, status="ok", finding=found if spec.launcher == "docker" else f"vLLM {found}")


def check_profile(config: SweepConfig, node: NodeInfo) -> Check:
    if config.cluster.address is not None:
        finding = f"{config.hardware.name}: every node checks itself when its first server starts"
        return Check(name="hardware profile", status="ok", finding=finding)
    mismatch = profile_mismatch(config.hardware, node)
    finding = f"{node.cpu_model}, {node.physical_cores} cores, {node.memory_gb:.0f} GB"
    if mismatch:
        return Check(name="hardware profile", status="failure", finding=finding, advice=mismatch)
    return Check(name="hardware profile", status="ok", finding=f"{config.hardware.name} fits {finding}")


def check_instructions(node: NodeInfo) -> Check:
    has = [flag for flag in (*AMX, *AVX512) if flag in node.isa]
    name = "instructions"
    if all(flag in has for flag in AMX):
        return Check(name=name, status="ok", finding=f"AMX ({' '.join(has)})")
    if all(flag in has for flag in AVX512):
        return Check(
            name=name,
            status="warning",
            finding=f"no AMX ({' '.join(has)})",
            advice="verifying many positions costs more than on an AMX Xeon, so smaller k will win",
        )
    return Check(
        name=name,
        status="warning",
        finding=f"neither AMX nor AVX-512 with bfloat16 ({' '.join(has) or 'none of them'})",
        advice="bfloat16 is emulated: figures from here say nothing about a Xeon",
    )


def check_numa(config: SweepConfig, node: NodeInfo) -> Check:
    count = node.numa_nodes
    if count is None or count == 1 or config.server.omp_threads_bind is not None:
        bound = f", threads bound to {config.server.omp_threads_bind}" if config.server.omp_threads_bind else ""
        return Check(name="NUMA", status="ok", finding=f"{count or 'unknown number of'} node(s){bound}")
    return Check(
        name="NUMA",
        status="warning",
        finding=f"{count} nodes, and server.omp_threads_bind is not set",
        advice="an engine across NUMA nodes reads weights over the interconnect; bind it to one node's cores",
    )


def check_bandwidth() -> Check:
    found = memory_bandwidth_gb_per_s()
    name = "memory bandwidth"
    if found is None:
        return Check(
            name=name, status="warning", finding="not measured: too little free memory", advice="close other programs"
        )
    return Check(name=name, status="ok", finding=f"copies {found:.1f} GB/s")


def check_huge_pages(node: NodeInfo) -> Check:
    setting = node.transparent_hugepage
    if setting == "never":
        return Check(
            name="huge pages",
            status="warning",
            finding="transparent huge pages are off",
            advice="weights cost more page walks; echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    return Check(name="huge pages", status="ok", finding=setting or "not readable here")


def check_governor(node: NodeInfo) -> Check:
    if node.governor not in (None, "performance"):
        return Check(
            name="governor",
            status="warning",
            finding=node.governor or "",
            advice="clocks wander between blocks; cpupower frequency-set -g performance",
        )
    return Check(name="governor", status="ok", finding=node.governor or "not readable here (a virtual machine)")


def check_preload(spec: ServerSpec) -> Check:
    """OpenMP and an allocator, as vLLM's CPU guide asks for."""
    preloaded = os.environ.get("LD_PRELOAD", "")
    try:
        openmp = openmp_library(spec)
    except EngineNotFound:
        openmp = None
    names = [name for name in ("libiomp5", "tcmalloc") if name in preloaded or (openmp and name in openmp.name)]
    if "libiomp5" not in names:
        return Check(
            name="preload",
            status="warning",
            finding="Intel's OpenMP is not preloaded",
            advice="slower (vLLM's CPU guide asks for it); pip install intel-openmp beside the engine",
        )
    return Check(name="preload", status="ok", finding=" and ".join(names))


def check_load(node: NodeInfo) -> Check:
    share = node.load_average_1m / (node.logical_cores or 1)
    finding = f"load average {node.load_average_1m:.2f} on {node.logical_cores} CPUs"
    if share > MAX_LOAD_SHARE:
        advice = "blocks during which other processes take the CPUs do not count; find them with `top`"
        return Check(name="other processes", status="warning", finding=finding, advice=advice)
    return Check(name="other processes", status="ok", finding=finding)


def check_turn() -> Check:
    """Whether the load generator need not wait for the engine (tasks/real_time.py)."""
    name = "load generator"
    if may_be_in_real_time():
        return Check(name=name, status="ok", finding="may be scheduled before the engine")
    return Check(
        name=name,
        status="warning",
        finding="may not be scheduled before the engine",
        advice="where the engine has every core, baselines look slower than they are; run as root or with "
        "CAP_SYS_NICE, raise the limit on rtprio to 1, or set hardware.reserved_cores=1",
    )


def check_disk(results: Path) -> Check:
    folder = next(path for path in (results.absolute(), *results.absolute().parents) if path.exists())
    free_gb = psutil.disk_usage(str(folder)).free / 1e9
    if not os.access(folder, os.W_OK):
        return Check(
            name="disk", status="failure", finding=f"{folder} is not writable", advice="choose results_dir=..."
        )
    if free_gb < MIN_FREE_GB:
        advice = "results and compiled kernels may not fit; free some, or choose results_dir=..."
        return Check(name="disk", status="warning", finding=f"{free_gb:.1f} GB free in {folder}", advice=advice)
    return Check(name="disk", status="ok", finding=f"{free_gb:.0f} GB free in {folder}")


def check_port(config: SweepConfig) -> Check:
    port = config.server.port
    if port is not None and not can_bind(port):
        advice = "stop what listens there, or leave server.port null to take a free one"
        return Check(name="port", status="failure", finding=f"server.port={port} is in use", advice=advice)
    return Check(name="port", status="ok", finding=f"{port} is free" if port else "a free one is taken for each server")


def check_hub(config: SweepConfig) -> Check:
    """Whether what comes from the Hugging Face hub can be had."""
    name = "Hugging Face"
    from_hub = [config.model.target, *(drafter.model for drafter in config.model.drafters.values())]
    from_hub = [model for model in from_hub if not is_local(resolve_model(model))]
    from_hub += [dataset.path for dataset in config.datasets.values() if dataset.path and not dataset.data_files]
    if not from_hub:
        return Check(name=name, status="ok", finding="not needed: models and prompts are local")
    wanted = ", ".join(from_hub)
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    if not _answers(hub.hostname or "", hub.port or (80 if hub.scheme == "http" else 443)):
        advice = f"only what is in the cache can be used; needed: {wanted}"
        return Check(name=name, status="warning", finding=f"{hub.hostname} cannot be reached", advice=advice)
    token = "with" if os.environ.get("HF_TOKEN") or _token_file().exists() else "without"
    return Check(name=name, status="ok", finding=f"{hub.hostname} answers, {token} a token; needed: {wanted}")


def check_tracking(config: SweepConfig) -> Check:
    uri = config.tracking.uri
    if uri is None:
        return Check(name="MLflow", status="ok", finding="not used (tracking=none)")
    parts = urlsplit(uri)
    if parts.scheme in ("http", "https"):
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if not _answers(parts.hostname or "", port):
            return Check(
                name="MLflow",
                status="warning",
                finding=f"{parts.hostname}:{port} does not answer",
                advice="the sweep runs all the same; `orchestrator record` catches up once it answers",
            )
    return Check(name="MLflow", status="ok", finding=f"{_version('mlflow')}, {parts.scheme}")


def check_ray(config: SweepConfig) -> Check:
    address = config.cluster.address
    if address is None:
        return Check(name="Ray", status="ok", finding=f"{_version('ray')}, started here for each sweep")
    host, _, port = address.rpartition(":")
    if not _answers(host, int(port)):
        advice = "start the head with `ray start --head`, or correct cluster.address"
        return Check(name="Ray", status="failure", finding=f"nothing answers at {address}", advice=advice)
    return Check(name="Ray", status="ok", finding=f"{_version('ray')}, {address} answers")


def check_terraform() -> Check:
    path = shutil.which("terraform")
    if path is None:
        return Check(
            name="terraform", status="warning", finding="not installed", advice="only `make fleet-*` needs it (>= 1.11)"
        )
    done = subprocess.run([path, "version"], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    return Check(name="terraform", status="ok", finding=(done.stdout.splitlines() or ["installed"])[0])


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _token_file() -> Path:
    return Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "token"


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"
