"""A vLLM server as a context manager: started, known to be ready and to be the arm, and gone afterwards.

with VllmServer(spec, name="dflash-k7", log_path=log) as server:
    server.wait_until_ready(timeout_s=900)
    server.verify_configuration()
    ... requests to server.base_url with server.api_key ...
"""

import errno
import os
import secrets
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from orchestrator.engine_build import EngineBuild
from orchestrator.errors import EngineNotFound, PortTaken, ServerCrashed, ServerError
from orchestrator.records import ServerSpec
from tasks.cpu_binding import thread_on
from tasks.engine import Engine, Pairs
from tasks.guard import GuardedProcess
from tasks.launch import Launch, launch_of
from tasks.server_command import located
from tasks.server_http import HOST, can_bind, free_port
from tasks.server_log import RunningEngine, applied_patches, has_triton, last_line, running_engine, useful_line


class VllmServer(Engine):
    """One engine process on this node, on loopback, with a random API key, under a guard (see tasks.guard).

    Args:
        spec: the arm's server. `demo://` models are resolved here.
        name: what messages call it, for example `dflash-k7-3fa1`.
        log_path: the engine's stdout and stderr; appended.
        port: a fixed port; None takes a free one.
        stop_grace_s: seconds from SIGTERM to SIGKILL.
        cpus: the CPUs that the engine may use, as `0-31`; None: this process's.
        folders: model as the spec names it -> its files on this node, where they were fetched (tasks.model_files).
        sockets_dir: for the engine's unix sockets, which it leaves behind; None: TMPDIR.
    """

    def __init__(
        self,
        spec: ServerSpec,
        *,
        name: str,
        log_path: Path,
        port: int | None = None,
        stop_grace_s: float = 10.0,
        cpus: str | None = None,
        folders: Mapping[str, str] | None = None,
        sockets_dir: Path | None = None,
    ) -> None:
        self.spec = located(spec, folders or {})
        self.name = name
        self.log_path = log_path
        self.api_key = secrets.token_urlsafe(32)
        self._wanted_port = port
        self._stop_grace_s = stop_grace_s
        self._cpus = cpus
        self._sockets_dir = sockets_dir
        self._launch: Launch | None = None
        self._process: GuardedProcess | None = None
        self._port = 0
        self._log_start = 0

    def __enter__(self) -> Self:
        """Start the engine.

        Raises:
            EngineNotFound: there is no vLLM to start.
            PortTaken: the fixed port is in use.
        """
        if self._wanted_port is not None and not can_bind(self._wanted_port):
            raise PortTaken(_taken(self.name, self._wanted_port))
        self._port = self._wanted_port or free_port()
        launch = launch_of(
            self.spec,
            name=self.name,
            port=self._port,
            api_key=self.api_key,
            cpus=self._cpus,
            sockets_dir=self._sockets_dir,
        )
        self._launch = launch
        if self.spec.launcher == "process":
            self.preloaded = tuple(launch.env.get("LD_PRELOAD", "").replace(":", " ").split())
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        try:
            with thread_on(self._cpus):
                self._process = GuardedProcess(
                    launch.argv,
                    env=launch.env,
                    log_path=self.log_path,
                    grace_s=self._stop_grace_s,
                    afterwards=launch.afterwards,
                )
        except ChildProcessError as error:
            raise ServerError(f"{self.name}: {error}; log: {self.log_path}") from error
        except OSError as error:
            raise EngineNotFound(f"{self.name}: cannot run {launch.argv[0]!r}: {error}; {self.where}") from error
        return self

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT`, without `/v1`."""
        return f"http://{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The engine's first process: the command's, or the container's as this node sees it."""
        started = self._running().pid
        return started if self._launch is None else self._launch.engine_pid(started)

    @property
    def where(self) -> str:
        return f"log: {self.log_path}"

    @property
    def last_words(self) -> str:
        return f"last line: {last_line(self.log_path, self._log_start)}"

    @property
    def build(self) -> EngineBuild:
        """A Triton that it uses on CPUs has the CPU backend."""
        is_logged = running_engine(self.log_path, self._log_start) is not None
        uses_triton = is_logged and has_triton(self.log_path, self._log_start)
        return replace(super().build, triton_backends=frozenset({"cpu"} if uses_triton else ()))

    def raise_if_ended(self) -> None:
        """Raises ServerCrashed with the cause from the log when the engine has ended."""
        try:
            exit_code = self._running().poll()
        except ChildProcessError as error:
            raise ServerCrashed(f"{self.name}: {error}; log: {self.log_path}") from error
        if exit_code is None:
            return
        cause = useful_line(self.log_path, self._log_start)
        if os.strerror(errno.EADDRINUSE) in cause:
            raise PortTaken(_taken(self.name, self._port))
        raise ServerCrashed(f"{self.name}: vLLM {_ending(exit_code)} ({cause}); log: {self.log_path}")

    def stated_configuration(self, card: Mapping[str, Any]) -> Pairs:
        """From /v1/models and the configuration that vLLM logs at start; shorter where a version does not state all."""
        pairs: Pairs = {"max_model_len": (self.spec.max_model_len, card.get("max_model_len"))}
        running = running_engine(self.log_path, self._log_start)
        if running is not None:
            pairs |= _logged_pairs(self.spec, running)
        if self.spec.patches:
            pairs["patches"] = (tuple(sorted(self.spec.patches)), applied_patches(self.log_path, self._log_start))
        return pairs

    def stop(self) -> float:
        """End the engine and everything it started; a second call does nothing more.

        Returns:
            Seconds it took.

        Raises:
            ServerError: a process survives SIGKILL, so the node is not fit for another measurement.
        """
        if self._process is None:
            return 0.0
        try:
            return self._process.stop()
        except TimeoutError as error:
            raise ServerError(f"{self.name}: {error}; log: {self.log_path}") from error

    def _running(self) -> GuardedProcess:
        if self._process is None:
            raise ServerError(f"{self.name}: not started; use `with VllmServer(...) as server`")
        return self._process


def _logged_pairs(spec: ServerSpec, running: RunningEngine) -> Pairs:
    """What the log states of the running engine beside what the arm wants; what it does not state is left out."""
    stated: Pairs = {
        "model": (spec.target, running.model),
        "dtype": (spec.dtype if spec.dtype != "auto" else running.dtype, running.dtype),
        "max_seq_len": (spec.max_model_len, running.max_model_len),
        "enforce_eager": (spec.enforce_eager, running.enforce_eager),
        "enable_prefix_caching": (spec.enable_prefix_caching, running.enable_prefix_caching),
    }
    pairs = {key: pair for key, pair in stated.items() if pair[1] is not None}
    if running.speculation_stated:
        wanted = spec.speculative_config or {}
        pairs["method"] = (wanted.get("method"), running.method)
        # A target that drafts with layers of its own is its own drafter.
        own = spec.target if running.method == "mtp" or wanted.get("method") == "dspark" else None
        pairs["drafter"] = (wanted.get("model") or own, running.drafter)
        pairs["num_speculative_tokens"] = (wanted.get("num_speculative_tokens"), running.num_speculative_tokens)
    return pairs


def _taken(name: str, port: int) -> str:
    return f"{name}: port {port} on {HOST} is in use; stop what listens there, or unset server.port to take a free one"


def _ending(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exited {exit_code}"
    hint = "; out of memory?" if exit_code == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-exit_code).name}{hint}"
