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
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import JsonValue

from orchestrator.engine import Engine
from orchestrator.errors import ArmMismatch, EngineNotFound, PortTaken, ServerCrashed, ServerError, ServerNotReady
from orchestrator.records import ServerSpec
from tasks.cpu_binding import thread_on
from tasks.demo import resolve_model
from tasks.guard import GuardedProcess
from tasks.server_command import openmp_library, server_argv, server_env
from tasks.server_http import HOST, Answer, ask, can_bind, free_port
from tasks.server_log import RunningEngine, applied_patches, has_triton, last_line, running_engine, useful_line

READY_POLL_S = 0.2
REQUEST_TIMEOUT_S = 10.0
FIRST_COMPLETION_TIMEOUT_S = 300.0
"""The first request may compile kernels."""


_Pairs = dict[str, tuple[object, object]]
"""What is compared -> wanted and found."""


class VllmServer:
    """One engine process on this node, on loopback, with a random API key, under a guard (see tasks.guard).

    Args:
        spec: the arm's server. `demo://` models are resolved here.
        name: what messages call it, for example `dflash-k7-3fa1`.
        log_path: the engine's stdout and stderr; appended.
        port: a fixed port; None takes a free one.
        stop_grace_s: seconds from SIGTERM to SIGKILL.
        cpus: the CPUs that the engine may use, as `0-31`; None: this process's.
        folders: model as the spec names it -> its files on this node, where they were fetched (tasks.model_files).
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
    ) -> None:
        self.spec = spec
        self.name = name
        self.log_path = log_path
        self.api_key = secrets.token_urlsafe(32)
        folders = folders or {}
        self.model_path = folders.get(spec.target) or resolve_model(spec.target)
        self.speculative_config = _with_local_drafter(spec.speculative_config, folders)
        self._wanted_port = port
        self._stop_grace_s = stop_grace_s
        self._cpus = cpus
        self._process: GuardedProcess | None = None
        self._port = 0
        self._started = 0.0
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
        models: dict[str, Any] = {"model_path": self.model_path, "speculative_config": self.speculative_config}
        argv = server_argv(self.spec, host=HOST, port=self._port, **models)
        env = server_env(
            self.spec, api_key=self.api_key, openmp=openmp_library(self.spec), inherited=os.environ, **models
        )
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._started = time.monotonic()
        try:
            with thread_on(self._cpus):
                self._process = GuardedProcess(argv, env=env, log_path=self.log_path, grace_s=self._stop_grace_s)
        except ChildProcessError as error:
            raise ServerError(f"{self.name}: {error}; log: {self.log_path}") from error
        except OSError as error:
            raise EngineNotFound(f"{self.name}: cannot run {argv[0]!r}: {error}; log: {self.log_path}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT`, without `/v1`."""
        return f"http://{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The API server's process id."""
        return self._running().pid

    @property
    def model_name(self) -> str:
        """The name under which the server takes requests (/v1/models)."""
        return str(self._model_card()["id"])

    @property
    def engine_version(self) -> str | None:
        """vLLM's version (/version); None where the server does not tell."""
        answer = self._ask("/version", timeout_s=REQUEST_TIMEOUT_S)
        stated = answer.status == 200 and isinstance(answer.body, dict) and "version" in answer.body
        return str(answer.body["version"]) if stated else None

    def running_engine(self) -> Engine:
        """What the running engine tells of itself; an empty version where it does not.

        A Triton that it uses on CPUs has the CPU backend.
        """
        logged = running_engine(self.log_path, self._log_start) is not None
        backends = {"cpu"} if logged and has_triton(self.log_path, self._log_start) else set()
        return Engine(version=self.engine_version or "", triton_backends=frozenset(backends))

    def wait_until_ready(self, *, timeout_s: float) -> float:
        """Wait until /health and a real one-token completion answer.

        Returns:
            Seconds from the process's start.

        Raises:
            ServerCrashed: the engine ended; the message has the cause from its log.
            ServerNotReady: not ready within `timeout_s`, or the server refuses the completion.
        """
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            self.raise_if_ended()
            if self._ask("/health", timeout_s=min(left_s, REQUEST_TIMEOUT_S)).status == 200:
                left_s = deadline - time.monotonic()
                if self._completes(timeout_s=max(READY_POLL_S, min(left_s, FIRST_COMPLETION_TIMEOUT_S))):
                    return time.monotonic() - self._started
            time.sleep(READY_POLL_S)
        self.raise_if_ended()
        last = last_line(self.log_path, self._log_start)
        raise ServerNotReady(
            f"{self.name}: vLLM not ready within {timeout_s:g} s (last line: {last}); "
            f"raise server.ready_timeout_s if it was still loading; log: {self.log_path}"
        )

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

    def verify_configuration(self) -> tuple[str, ...]:
        """Compare the running engine with the arm: /v1/models, and the configuration it logs at start.

        Returns:
            What was compared; shorter where this vLLM version does not state everything.

        Raises:
            ArmMismatch: names each difference as wanted and found.
        """
        pairs: _Pairs = {"max_model_len": (self.spec.max_model_len, self._model_card().get("max_model_len"))}
        running = running_engine(self.log_path, self._log_start)
        if running is not None:
            pairs |= _logged_pairs(self.spec, self.model_path, self.speculative_config, running)
        if self.spec.patches:
            pairs["patches"] = (tuple(sorted(self.spec.patches)), applied_patches(self.log_path, self._log_start))
        wrong = [f"{key}: wanted {want!r} but got {got!r}" for key, (want, got) in pairs.items() if want != got]
        if wrong:
            raise ArmMismatch(
                f"{self.name}: the running engine is not the arm ({'; '.join(wrong)}); see server.extra_args, "
                f"server.env and server.command, which may override it; log: {self.log_path}"
            )
        return tuple(pairs)

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

    def _completes(self, timeout_s: float) -> bool:
        """A one-token chat completion; a 4xx answer will not get better with waiting."""
        answer = self._ask("/v1/models", timeout_s=REQUEST_TIMEOUT_S)
        if answer.status == 200:
            message = {"role": "user", "content": "Hello"}
            request = {"model": answer.body["data"][0]["id"], "messages": [message], "max_tokens": 1, "temperature": 0}
            answer = self._ask("/v1/chat/completions", request, timeout_s=timeout_s)
        if 400 <= answer.status < 500:
            self.raise_if_ended()
            raise ServerNotReady(
                f"{self.name}: the server refuses a one-token chat completion (HTTP {answer.status}: {answer.body}); "
                f"log: {self.log_path}"
            )
        return answer.status == 200

    def _model_card(self) -> dict[str, Any]:
        answer = self._ask("/v1/models", timeout_s=REQUEST_TIMEOUT_S)
        if answer.status != 200:
            self.raise_if_ended()
            raise ServerNotReady(f"{self.name}: /v1/models: HTTP {answer.status}: {answer.body}; log: {self.log_path}")
        card: dict[str, Any] = answer.body["data"][0]
        return card

    def _ask(self, path: str, request: Mapping[str, object] | None = None, *, timeout_s: float) -> Answer:
        return ask(self.base_url + path, request, api_key=self.api_key, timeout_s=timeout_s)


def _with_local_drafter(
    speculative_config: Mapping[str, JsonValue] | None, folders: Mapping[str, str]
) -> dict[str, JsonValue] | None:
    if speculative_config is None:
        return None
    local = dict(speculative_config)
    if isinstance(drafter := local.get("model"), str):
        local["model"] = folders.get(drafter) or resolve_model(drafter)
    return local


def _logged_pairs(
    spec: ServerSpec, model_path: str, speculative_config: Mapping[str, JsonValue] | None, running: RunningEngine
) -> _Pairs:
    """What the log states of the running engine beside what the arm wants; what it does not state is left out."""
    stated: _Pairs = {
        "model": (model_path, running.model),
        "dtype": (spec.dtype if spec.dtype != "auto" else running.dtype, running.dtype),
        "max_seq_len": (spec.max_model_len, running.max_model_len),
        "enforce_eager": (spec.enforce_eager, running.enforce_eager),
        "enable_prefix_caching": (spec.enable_prefix_caching, running.enable_prefix_caching),
    }
    pairs = {key: pair for key, pair in stated.items() if pair[1] is not None}
    if running.speculation_stated:
        wanted = speculative_config or {}
        pairs["method"] = (wanted.get("method"), running.method)
        # A target that drafts with layers of its own is its own drafter.
        own = model_path if running.method == "mtp" or wanted.get("method") == "dspark" else None
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
