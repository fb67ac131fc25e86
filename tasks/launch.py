"""How an engine is started on this node: as a process of ours, or in a container (`server.launcher`)."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.records import ServerSpec
from tasks.server_command import (
    engine_command,
    mounted_folders,
    preloaded_libraries,
    serve_arguments,
    server_argv,
    server_env,
)
from tasks.server_http import HOST

INSPECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Launch:
    """A command, its whole environment, and what ends what is no process of this node's."""

    argv: Sequence[str]
    env: Mapping[str, str]
    afterwards: Sequence[str] = ()
    inspect: Sequence[str] = field(default=())
    """Prints the engine's process id as this node sees it; empty: it is the command's."""

    def engine_pid(self, started_pid: int) -> int:
        """The engine's first process; the command's where the container does not tell."""
        if not self.inspect:
            return started_pid
        done = subprocess.run(self.inspect, capture_output=True, text=True, timeout=INSPECT_TIMEOUT_S, check=False)
        pid = done.stdout.strip()
        return int(pid) if done.returncode == 0 and pid.isdecimal() and int(pid) > 0 else started_pid


def launch_of(
    spec: ServerSpec, *, name: str, port: int, api_key: str, cpus: str | None, sockets_dir: Path | None = None
) -> Launch:
    """The command for `spec`, as it is located on this node, on that loopback port.

    `sockets_dir` as in `server_env`; a container has its own /tmp, which goes with it.

    Raises:
        EngineNotFound: its executable does not exist.
    """
    if spec.launcher == "docker":
        return _in_container(spec, name=name, port=port, api_key=api_key, cpus=cpus)
    argv = server_argv(spec, host=HOST, port=port)
    preload = preloaded_libraries(spec)
    env = server_env(spec, api_key=api_key, preload=preload, inherited=os.environ, sockets_dir=sockets_dir)
    return Launch(argv, env)


def _in_container(spec: ServerSpec, *, name: str, port: int, api_key: str, cpus: str | None) -> Launch:
    """`docker run` in the form of vLLM's CPU guide. The key travels by name, not in the command; `docker rm --force`
    is for a container whose command was killed before it could end it."""
    docker, *global_flags = engine_command(spec)
    env = server_env(spec, api_key=api_key, preload=(), inherited={})  # the image preloads its own
    argv = [
        *(docker, *global_flags, "run", "--rm", "--init", "--name", name),
        *("--ipc=host", "--cap-add=SYS_NICE", "--security-opt", "seccomp=unconfined"),
        *(("--cpuset-cpus", cpus) if cpus else ()),
        *("-p", f"{HOST}:{port}:{port}"),
        *(part for key in env for part in ("-e", key)),
        *(part for folder in mounted_folders(spec) for part in ("-v", f"{folder}:{folder}:ro")),
        str(spec.image),
        *(spec.target, "--host", "0.0.0.0", "--port", str(port), "--disable-uvicorn-access-log"),
        *serve_arguments(spec),
        *spec.extra_args,
    ]
    return Launch(
        argv,
        env={**os.environ, **env},
        afterwards=[docker, *global_flags, "rm", "--force", name],
        inspect=[docker, *global_flags, "inspect", "--format", "{{.State.Pid}}", name],
    )
