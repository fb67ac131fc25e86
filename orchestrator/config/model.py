"""A target and its drafters."""

from typing import Self

from pydantic import Field, JsonValue, model_validator

from orchestrator.config.base import Dtype, PositiveInt, Strict


class Drafter(Strict):
    model: str
    revision: str | None = None
    block_size: PositiveInt | None = None
    """Positions that one draft pass fills, the last accepted token's included: k is at most block_size - 1."""
    weight_gb: float | None = Field(default=None, gt=0)
    """Of the checkpoint, 10^9 bytes; None: not known."""


class Model(Strict):
    """A target with its drafters. What is said of its size serves estimates only: nothing of it reaches the engine."""

    name: str
    target: str
    """Hugging Face id, a local path, or `demo://...` for the pair shipped with the project."""
    revision: str | None = None
    drafters: dict[str, Drafter] = Field(default_factory=dict)
    """Speculation method -> drafter."""
    dtype: Dtype = "bfloat16"
    max_model_len: PositiveInt
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    trust_remote_code: bool = False
    context_len: PositiveInt | None = None
    """What the model itself takes (max_position_embeddings of its config.json); max_model_len is what is served."""
    parameters_billion: float | None = Field(default=None, gt=0)
    """All of the checkpoint's, 10^9."""
    active_parameters_billion: float | None = Field(default=None, gt=0)
    """Those that one token passes through; None: all. Fewer in a mixture of experts."""
    weight_gb: float | None = Field(default=None, gt=0)
    """Of a checkpoint that is not stored in `dtype` (quantised), 10^9 bytes; None: parameters in `dtype`."""
    num_kv_layers: PositiveInt | None = None
    """Layers that keep keys and values of every token: not those with a window or linear attention. This and the two
    below are None where not known, and where keys and values are kept compressed (MLA)."""
    num_kv_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None

    @model_validator(mode="after")
    def _active_are_some_of_all(self) -> Self:
        if self.active_parameters_billion is not None:
            if self.parameters_billion is None:
                raise ValueError("active_parameters_billion needs parameters_billion as well")
            if self.active_parameters_billion > self.parameters_billion:
                raise ValueError(
                    f"active_parameters_billion must be at most parameters_billion={self.parameters_billion:g}, "
                    f"but got {self.active_parameters_billion:g}"
                )
        return self
