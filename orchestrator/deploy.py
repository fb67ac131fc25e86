"""Commands that put a chosen arm into service: the flags it was measured with, as anyone would type them."""

import shlex
from pathlib import Path

from pydantic import JsonValue

from orchestrator.records import Arm, ServerSpec
from orchestrator.selection import Recommendation
from tasks.demo import resolve_model
from tasks.server_command import is_local, plugins, serve_arguments

IMAGE = "vllm/vllm-openai-cpu"
PORT = "8000"
CACHE_IN_IMAGE = "/root/.cache/huggingface"


def recommend_commands(arm: Arm, engine_version: str | None, reason: str) -> Recommendation:
    """`arm` as a `--speculative-config`, a `vllm serve` and a `docker run` command.

    The container form is the one of vLLM's CPU guide: SYS_NICE and an open seccomp profile let vLLM bind threads and
    memory to NUMA nodes, the host's IPC gives its processes shared memory.
    """
    spec = arm.server
    environment = [f"{name}={shlex.quote(value)}" for name, value in environment_of(spec).items()]
    serve = shlex.join(["vllm", "serve", *serve_command(spec), "--port", PORT])
    return Recommendation(
        arm=arm.name,
        speculative_config=local_speculative_config(spec),
        vllm_serve=" ".join([*_preload(spec), *environment, serve]),
        docker_run=_docker_run(spec, engine_version),
        reason=reason,
    )


def _preload(spec: ServerSpec) -> list[str]:
    """OpenMP beside the `vllm` that the shell finds, as it was measured; the container image does this by itself."""
    return ['LD_PRELOAD="$(dirname "$(command -v vllm)")/../lib/libiomp5.so"'] if spec.preload_openmp else []


def local_speculative_config(spec: ServerSpec) -> dict[str, JsonValue] | None:
    """The speculative_config with a local drafter as its path on this machine."""
    config = spec.speculative_config
    if config is None or not isinstance(config.get("model"), str):
        return config
    return config | {"model": _resolved(str(config["model"]))}


def _resolved(model: str) -> str:
    """As it has to be typed anywhere: a Hugging Face id unchanged, a local folder by its absolute path."""
    found = resolve_model(model)
    return str(Path(found).expanduser().absolute()) if is_local(found) else found


def serve_command(spec: ServerSpec) -> list[str]:
    """What follows `vllm serve`, the model first; host and port are the platform's."""
    target = _resolved(spec.target)
    config = local_speculative_config(spec)
    return [target, *serve_arguments(spec, model_path=target, speculative_config=config), *spec.extra_args]


def local_models(spec: ServerSpec) -> list[str]:
    """Folders that a container must be given."""
    # An empty path would count as the working folder.
    models = [_resolved(spec.target), str((local_speculative_config(spec) or {}).get("model", ""))]
    return [model for model in models if model and is_local(model)]


def image_of(engine_version: str | None) -> str:
    """The container image of that engine. Wheels are called 0.32.0+cpu, which a tag cannot be."""
    return f"{IMAGE}:v{engine_version.partition('+')[0]}" if engine_version else f"{IMAGE}:latest"


def environment_of(spec: ServerSpec) -> dict[str, str]:
    """Of the engine, besides what the platform gives it."""
    bind = {"VLLM_CPU_OMP_THREADS_BIND": spec.omp_threads_bind} if spec.omp_threads_bind else {}
    patched = {"VLLM_PLUGINS": plugins(spec)} if spec.patches else {}
    return {"VLLM_CPU_KVCACHE_SPACE": f"{spec.kv_cache_gib:g}", **bind, **spec.env, **patched}


def _docker_run(spec: ServerSpec, engine_version: str | None) -> str:
    flags = [
        *("docker", "run", "--rm", "--ipc=host", "--cap-add=SYS_NICE", "--security-opt", "seccomp=unconfined"),
        *("-p", f"127.0.0.1:{PORT}:{PORT}"),
        *(part for name, value in environment_of(spec).items() for part in ("-e", f"{name}={value}")),
        *(part for path in local_models(spec) for part in ("-v", f"{path}:{path}:ro")),
    ]
    cache = f'-v "$HOME/.cache/huggingface:{CACHE_IN_IMAGE}"'  # not quoted with the rest: the shell fills in $HOME
    return f"{shlex.join(flags)} {cache} {shlex.join([image_of(engine_version), *serve_command(spec)])}"
