"""An engine as the measurement sees it, however it was started: an HTTP API that must prove to be the arm."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from orchestrator.engine_build import EngineBuild
from orchestrator.errors import ArmMismatch, ServerNotReady
from orchestrator.records import ServerSpec
from tasks.server_http import Answer, ask

READY_POLL_S = 0.2
REQUEST_TIMEOUT_S = 10.0
FIRST_COMPLETION_TIMEOUT_S = 300.0
"""The first request may compile kernels."""

Pairs = dict[str, tuple[object, object]]
"""What is compared -> wanted and found."""


class Engine(ABC):
    """A context manager; inside it `base_url` takes requests with `api_key` once `wait_until_ready` has returned."""

    spec: ServerSpec
    name: str
    """What messages call it, for example `dflash-k7-3fa1`."""
    api_key: str
    preloaded: tuple[str, ...] | None = None
    """Libraries in its LD_PRELOAD; None where that is not ours to know."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    @abstractmethod
    def base_url(self) -> str:
        """`http://HOST:PORT`, without `/v1`."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Of its first process on this node; None where it is not ours to know."""

    @property
    @abstractmethod
    def where(self) -> str:
        """What messages end with: where to look further."""

    @property
    @abstractmethod
    def last_words(self) -> str:
        """What is known of an engine that does not answer."""

    @abstractmethod
    def raise_if_ended(self) -> None:
        """Raises ServerCrashed with the cause when the engine has ended."""

    @abstractmethod
    def stop(self) -> float:
        """End what was started; a second call does nothing more. Returns the seconds it took."""

    @abstractmethod
    def stated_configuration(self, card: Mapping[str, Any]) -> Pairs:
        """What the arm wants beside what the running engine states of itself; `card` is its entry in /v1/models."""

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

    @property
    def build(self) -> EngineBuild:
        """What the running engine tells of itself; an empty version where it does not."""
        return EngineBuild(version=self.engine_version or "")

    def wait_until_ready(self, *, timeout_s: float) -> float:
        """Wait until /health and a real one-token completion answer.

        Returns:
            Seconds it took.

        Raises:
            ServerCrashed: the engine ended; the message has the cause from its log.
            ServerNotReady: not ready within `timeout_s`, or the server refuses the completion.
        """
        begun = time.monotonic()
        deadline = begun + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            self.raise_if_ended()
            if self._ask("/health", timeout_s=min(left_s, REQUEST_TIMEOUT_S)).status == 200:
                left_s = deadline - time.monotonic()
                if self._completes(timeout_s=max(READY_POLL_S, min(left_s, FIRST_COMPLETION_TIMEOUT_S))):
                    return time.monotonic() - begun
            time.sleep(READY_POLL_S)
        self.raise_if_ended()
        raise ServerNotReady(
            f"{self.name}: vLLM not ready within {timeout_s:g} s ({self.last_words}); "
            f"raise server.ready_timeout_s if it was still loading; {self.where}"
        )

    def verify_configuration(self) -> tuple[str, ...]:
        """Compare the running engine with the arm, as far as it states what it is.

        Returns:
            What was compared.

        Raises:
            ArmMismatch: names each difference as wanted and found.
        """
        pairs = self.stated_configuration(self._model_card())
        wrong = [f"{key}: wanted {want!r} but got {got!r}" for key, (want, got) in pairs.items() if want != got]
        if wrong:
            raise ArmMismatch(
                f"{self.name}: the running engine is not the arm ({'; '.join(wrong)}); see server.extra_args, "
                f"server.env and server.command, which may override it; {self.where}"
            )
        return tuple(pairs)

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
                f"{self.where}"
            )
        return answer.status == 200

    def _model_card(self) -> dict[str, Any]:
        answer = self._ask("/v1/models", timeout_s=REQUEST_TIMEOUT_S)
        if answer.status != 200:
            self.raise_if_ended()
            raise ServerNotReady(f"{self.name}: /v1/models: HTTP {answer.status}: {answer.body}; {self.where}")
        card: dict[str, Any] = answer.body["data"][0]
        return card

    def _ask(self, path: str, request: Mapping[str, object] | None = None, *, timeout_s: float) -> Answer:
        return ask(self.base_url + path, request, api_key=self.api_key, timeout_s=timeout_s)
