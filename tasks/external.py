"""A server that is already there: measured, never started and never stopped (`server.launcher=external`)."""

import os
from collections.abc import Mapping
from typing import Any, Self

from orchestrator.errors import ServerCrashed
from orchestrator.records import ServerSpec
from tasks.demo import resolve_model
from tasks.engine import Engine, Pairs
from tasks.server_http import ask

API_KEY_VARIABLE = "VLLM_API_KEY"
CONNECT_TIMEOUT_S = 10.0


class ExternalServer(Engine):
    """The server at `spec.url`. Its key, where it asks for one, is VLLM_API_KEY of this node's environment.

    Whether it is the arm shows in /v1/models and, once it is driven, in the tokens it drafts a step; what else it was
    started with, nobody can check.
    """

    def __init__(self, spec: ServerSpec, *, name: str) -> None:
        self.spec = spec
        self.name = name
        self.api_key = os.environ.get(API_KEY_VARIABLE, "")

    def __enter__(self) -> Self:
        return self

    @property
    def base_url(self) -> str:
        return str(self.spec.url).rstrip("/")

    @property
    def pid(self) -> None:
        return None

    @property
    def where(self) -> str:
        return f"server.url={self.spec.url}"

    @property
    def last_words(self) -> str:
        return "it answers no completion"

    def raise_if_ended(self) -> None:
        answer = ask(self.base_url + "/health", api_key=self.api_key, timeout_s=CONNECT_TIMEOUT_S)
        if answer.status == 0:
            raise ServerCrashed(f"{self.name}: nothing answers at {self.base_url} ({answer.body}); start the server")

    def stated_configuration(self, card: Mapping[str, Any]) -> Pairs:
        pairs: Pairs = {"max_model_len": (self.spec.max_model_len, card.get("max_model_len"))}
        return pairs | {"model": (resolve_model(self.spec.target), card.get("root") or card.get("id"))}

    def stop(self) -> float:
        return 0.0
