"""Commands that put a chosen arm into service: the flags it was measured with, as anyone would type them."""

import shlex
from collections.abc import Iterable, Sequence

from orchestrator.node_kinds import NUMA
from orchestrator.records import Arm, CpuBinding, ServerSpec, VisitRecord
from orchestrator.selection import Recommendation
from tasks.cpu_binding import bound
from tasks.server_command import is_local, located, plugins, serve_arguments

IMAGE = "vllm/vllm-openai-cpu"
PORT = "8000"
CACHE_IN_IMAGE = "/root/.cache/huggingface"


def recommend_commands(
    arm: Arm, engine_version: str | None, reason: str, bindings: Sequence[CpuBinding] = ()
) -> Recommendation:
    """`arm` as a `--speculative-config`, a `vllm serve` and a `docker run` command; with a server per NUMA node a line
    for each of `bindings` (see `bindings_of`), on ports that follow each other.

    The container form is the one of vLLM's CPU guide: SYS_NICE and an open seccomp profile let vLLM bind threads and
    memory to NUMA nodes, the host's IPC gives its processes shared memory.
    """
    every: Sequence[CpuBinding | None] = bindings or [None]
    servers = [(bound(arm.server, binding), binding) for binding in every]
    return Recommendation(
        arm=arm.name,
        speculative_config=located(arm.server).speculative_config,
        vllm_serve="\n".join(
            _vllm_serve(spec, _own_cpus(spec, binding), int(PORT) + number)
            for number, (spec, binding) in enumerate(servers)
        ),
        docker_run="\n".join(
            _docker_run(spec, _own_cpus(spec, binding), int(PORT) + number, engine_version)
            for number, (spec, binding) in enumerate(servers)
        ),
        reason=reason,
    )


def bindings_of(spec: ServerSpec, visits: Iterable[VisitRecord]) -> list[CpuBinding]:
    """Where the servers of one node were bound that ran with as many ranks, by `visits`; none where vLLM chose."""
    ranks = spec.tensor_parallel_size
    found = {
        tuple(visit.node.partition(NUMA)[::2]): visit.cpu_binding
        for visit in visits
        if visit.cpu_binding and visit.cpu_binding.omp_threads_bind.count("|") + 1 == ranks
    }
    node = min((node for node, _ in found), default=None)
    slots = sorted((int(number or 0), binding) for (name, number), binding in found.items() if name == node)
    return [binding for _, binding in slots]


def _own_cpus(spec: ServerSpec, binding: CpuBinding | None) -> str | None:
    """What keeps a server off the CPUs of the node's others."""
    return binding.cpus if binding and spec.server_per == "numa_node" else None


def _vllm_serve(spec: ServerSpec, cpus: str | None, port: int) -> str:
    environment = [f"{name}={shlex.quote(value)}" for name, value in environment_of(spec).items()]
    only_on = ["taskset", "--cpu-list", cpus] if cpus else []
    serve = shlex.join([*only_on, "vllm", "serve", *serve_command(spec), "--port", str(port)])
    return " ".join([*_preload(spec), *environment, serve])


def _preload(spec: ServerSpec) -> list[str]:
    """OpenMP beside the `vllm` that the shell finds, as it was measured; the container image does this by itself."""
    return ['LD_PRELOAD="$(dirname "$(command -v vllm)")/../lib/libiomp5.so"'] if spec.preload_openmp else []


def serve_command(spec: ServerSpec) -> list[str]:
    """What follows `vllm serve`, the model first; host and port are the platform's."""
    here = located(spec)
    return [here.target, *serve_arguments(here), *here.extra_args]


def local_models(spec: ServerSpec) -> list[str]:
    """Folders that a container must be given."""
    here = located(spec)
    # An empty path would count as the working folder.
    models = [here.target, str((here.speculative_config or {}).get("model", ""))]
    return [model for model in models if model and is_local(model)]


def image_of(spec: ServerSpec, engine_version: str | None) -> str:
    """The container image of that engine, or the one it was measured in. Wheels are called 0.32.0+cpu, which a tag
    cannot be."""
    if spec.image:
        return spec.image
    return f"{IMAGE}:v{engine_version.partition('+')[0]}" if engine_version else f"{IMAGE}:latest"


def environment_of(spec: ServerSpec) -> dict[str, str]:
    """Of the engine, besides what the platform gives it."""
    bind = {"VLLM_CPU_OMP_THREADS_BIND": spec.omp_threads_bind} if spec.omp_threads_bind else {}
    patched = {"VLLM_PLUGINS": plugins(spec)} if spec.patches else {}
    return {"VLLM_CPU_KVCACHE_SPACE": f"{spec.kv_cache_gib:g}", **bind, **spec.env, **patched}


def _docker_run(spec: ServerSpec, cpus: str | None, port: int, engine_version: str | None) -> str:
    flags = [
        *("docker", "run", "--rm", "--ipc=host", "--cap-add=SYS_NICE", "--security-opt", "seccomp=unconfined"),
        *("-p", f"127.0.0.1:{port}:{PORT}"),
        *([f"--cpuset-cpus={cpus}"] if cpus else []),
        *(part for name, value in environment_of(spec).items() for part in ("-e", f"{name}={value}")),
        *(part for path in local_models(spec) for part in ("-v", f"{path}:{path}:ro")),
    ]
    cache = f'-v "$HOME/.cache/huggingface:{CACHE_IN_IMAGE}"'  # not quoted with the rest: the shell fills in $HOME
    return f"{shlex.join(flags)} {cache} {shlex.join([image_of(spec, engine_version), *serve_command(spec)])}"
