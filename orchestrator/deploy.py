"""Commands that put a chosen arm into service: the flags it was measured with, as anyone would type them."""

import re
import shlex
from collections.abc import Sequence

from orchestrator.measured_server import MeasuredServer
from orchestrator.records import ServerSpec
from orchestrator.selection import Recommendation
from tasks.server_command import mounted_folders, serve_arguments

IMAGE = "vllm/vllm-openai-cpu"
PORT = "8000"
CACHE_IN_IMAGE = "/root/.cache/huggingface"
LIB_IN_IMAGE = "/opt/venv/lib"
"""Source: docker/Dockerfile.cpu of vLLM, which preloads tcmalloc and the OpenMP in there by itself."""
LIB_BY_SHELL = '$(dirname "$(command -v vllm)")/../lib'
"""Beside the `vllm` that the shell finds."""


def recommend_commands(servers: Sequence[MeasuredServer], reason: str) -> Recommendation:
    """An arm as a `--speculative-config`, a `vllm serve` and a `docker run` command; with a server per NUMA node a line
    for each of its `servers`, on ports that follow each other.

    The container form is the one of vLLM's CPU guide: SYS_NICE and an open seccomp profile let vLLM bind threads and
    memory to NUMA nodes, the host's IPC gives its processes shared memory.
    """
    numbered = [(server, int(PORT) + number) for number, server in enumerate(servers)]
    return Recommendation(
        arm=servers[0].arm,
        speculative_config=servers[0].spec.speculative_config,
        vllm_serve="\n".join(
            serve_line(server, [*serve_command(server.spec), "--port", str(port)]) for server, port in numbered
        ),
        docker_run="\n".join(_docker_run(server, port) for server, port in numbered),
        reason=reason,
    )


def serve_line(server: MeasuredServer, arguments: Sequence[str]) -> str:
    """`vllm serve` with `arguments` in the server's environment and on its CPUs, for a shell."""
    environment = server.environment(LIB_BY_SHELL)
    preload = environment.pop("LD_PRELOAD", "")
    settings = [f"LD_PRELOAD={_in_double_quotes(preload)}"] if preload else []
    settings += [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    only_on = ["taskset", "--cpu-list", server.cpus] if server.cpus else []
    return " ".join([*settings, shlex.join([*only_on, "vllm", "serve", *arguments])])


def _in_double_quotes(libraries: str) -> str:
    """So that the shell fills in the folder and nothing else."""
    escaped = (re.sub(r'([\\"$`])', r"\\\1", part) for part in libraries.split(LIB_BY_SHELL))
    return f'"{LIB_BY_SHELL.join(escaped)}"'


def serve_command(spec: ServerSpec) -> list[str]:
    """What follows `vllm serve`, the model first; host and port are the platform's."""
    return [spec.target, *serve_arguments(spec), *spec.extra_args]


def image_of(server: MeasuredServer) -> str:
    """The container image of that engine, or the one it was measured in. Wheels are called 0.32.0+cpu, which a tag
    cannot be."""
    if server.spec.image:
        return server.spec.image
    version = server.engine_version
    return f"{IMAGE}:v{version.partition('+')[0]}" if version else f"{IMAGE}:latest"


def _docker_run(server: MeasuredServer, port: int) -> str:
    flags = [
        *("docker", "run", "--rm", "--ipc=host", "--cap-add=SYS_NICE", "--security-opt", "seccomp=unconfined"),
        *("-p", f"127.0.0.1:{port}:{PORT}"),
        *([f"--cpuset-cpus={server.cpus}"] if server.cpus else []),
        *(part for name, value in server.environment(LIB_IN_IMAGE).items() for part in ("-e", f"{name}={value}")),
        *(part for path in mounted_folders(server.spec) for part in ("-v", f"{path}:{path}:ro")),
    ]
    cache = f'-v "$HOME/.cache/huggingface:{CACHE_IN_IMAGE}"'  # not quoted with the rest: the shell fills in $HOME
    return f"{shlex.join(flags)} {cache} {shlex.join([image_of(server), *serve_command(server.spec)])}"
