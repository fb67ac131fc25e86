"""What every part of the configuration is made of."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
Level = int | float
"""How much load: concurrency, requests/s, or times the speed of a log."""
Setting = str | int | float | bool
"""A value on an axis of `space`."""
Dtype = Literal["auto", "bfloat16", "float16", "float32"]


class Strict(BaseModel):
    """Frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
