"""A speculation method and its grid."""

from typing import Annotated, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from orchestrator.config.base import PositiveInt, Strict
from orchestrator.methods import METHODS, Method


class Speculation(Strict):
    """One method with its grid of k; what the method itself is, says `methods.py`."""

    method: Method
    num_speculative_tokens: tuple[PositiveInt, ...] = ()
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    """Other keys of vLLM's speculative_config, passed on unchanged."""
    allow_beyond_block: bool = False
    """Measure k above what the drafter's block takes all the same: the engine takes it silently."""
    # Of one method each; None leaves it to vLLM.
    prompt_lookup_max: PositiveInt | None = None
    prompt_lookup_min: PositiveInt | None = None
    suffix_decoding_max_tree_depth: PositiveInt | None = None
    suffix_decoding_max_cached_requests: Annotated[int, Field(ge=0)] | None = None
    suffix_decoding_max_spec_factor: Annotated[float, Field(ge=0)] | None = None
    suffix_decoding_min_token_prob: Annotated[float, Field(ge=0, le=1)] | None = None
    dspark_draft_topk: PositiveInt | None = None

    @field_validator("num_speculative_tokens", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, int) else value

    @model_validator(mode="after")
    def _grid_fits_method(self) -> Self:
        if self.method != "none" and not self.num_speculative_tokens:
            raise ValueError(f"method {self.method!r} needs at least one value in num_speculative_tokens")
        if len(set(self.num_speculative_tokens)) != len(self.num_speculative_tokens):
            raise ValueError(f"num_speculative_tokens repeats a value: {list(self.num_speculative_tokens)}")
        taken = type(self).model_fields.keys() | {"model"}
        if taken & self.extra.keys():
            raise ValueError(f"extra must not set {sorted(taken & self.extra.keys())}: they have keys of their own")
        return self

    @model_validator(mode="after")
    def _parameters_are_the_methods_own(self) -> Self:
        for owner in METHODS.values():
            foreign = [key for key in owner.parameters if getattr(self, key) is not None and owner.name != self.method]
            if foreign:
                raise ValueError(
                    f"{', '.join(foreign)}: only method {owner.name!r} reads it, but method is {self.method!r}; "
                    f"of several methods one alone is set as speculation.{owner.name}.{foreign[0]}=VALUE"
                )
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low and high and low > high:
            raise ValueError(f"prompt_lookup_min={low} must be at most prompt_lookup_max={high}")
        return self

    @property
    def parameters(self) -> dict[str, JsonValue]:
        """The method's own keys of vLLM's speculative_config, as far as they are set."""
        return {key: value for key in METHODS[self.method].parameters if (value := getattr(self, key)) is not None}
