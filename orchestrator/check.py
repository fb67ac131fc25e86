"""One finding of `orchestrator doctor`."""

from typing import Literal

from orchestrator.config import Strict

Status = Literal["ok", "warning", "failure"]


class Check(Strict):
    name: str
    status: Status
    finding: str
    advice: str | None = None
    """A warning's consequence, a failure's fix."""
