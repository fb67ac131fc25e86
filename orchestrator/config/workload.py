"""Where prompts come from, and how they are driven."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from orchestrator.config.base import Level, PositiveFloat, PositiveInt, Strict


class Dataset(Strict):
    """Where prompts come from: `path` on the Hugging Face hub, or JSON lines in `data_files`."""

    path: str | None = None
    subset: str | None = None
    split: str = "test"
    revision: str | None = None
    data_files: str | None = None
    """A JSON-lines file; a relative path counts from the folder the command runs in, `demo://` is shipped."""
    prompt_field: str = "prompt"
    """Column with the user's message or a conversation: a list of the user's turns (MT-Bench), of role and content
    (OpenAI), or of from and value (ShareGPT). `body.messages` reaches into a column."""
    prompt_template: str = "{prompt}"
    """Put around a conversation's first message by the user."""
    input_field: str | None = None
    """Column that is appended to the message after a blank line where it has a text (Alpaca's `input`)."""
    turns: Literal["first", "all", "recorded", "last"] = "first"
    """What of a conversation is sent. first: the user's first message, as `vllm bench serve` does. all: every one, each
    with the model's own answers before it. recorded: every one, each with the file's answers before it, so that all
    arms get the same prompts. last: the whole history up to the user's last message, as a request log has it."""
    arrival_field: str | None = None
    """Makes it a request log (OpenAI format, JSON lines): the field with a request's time, ISO 8601 or seconds."""
    num_prompts: PositiveInt | None = None
    """At most this many, drawn with the sweep's seed; None takes all."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.path is None and self.data_files is None:
            raise ValueError("needs `path` (a Hugging Face dataset) or `data_files` (a JSON-lines file)")
        if "{prompt}" not in self.prompt_template:
            raise ValueError(f"prompt_template must contain '{{prompt}}', but got {self.prompt_template!r}")
        if self.arrival_field is not None and (self.data_files is None or self.turns != "last"):
            raise ValueError("arrival_field makes it a request log, which needs data_files and turns=last")
        return self


class Workload(Strict):
    """How every dataset is driven."""

    arrival: Literal["closed", "poisson", "constant", "log"] = "closed"
    """closed: `max_concurrency` requests under way at any time. Open loops send whatever the server does: poisson and
    constant at `request_rate`, log at the times of the request log."""
    max_concurrency: tuple[PositiveInt, ...] = ()
    request_rate: tuple[PositiveFloat, ...] = ()
    """Requests/s; of conversations, where turns=all."""
    log_speed: tuple[PositiveFloat, ...] = ()
    """Times as fast as the log; for arrival=log, 1 where none is given."""
    prompt_tokens: tuple[tuple[Annotated[int, Field(ge=0)], PositiveInt], ...] = ()
    """Buckets of prompt lengths by the target's tokenizer, [from, below]; each makes a workload of its own."""
    output_len: PositiveInt = 128
    ignore_eos: bool = True
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    num_blocks: Annotated[int, Field(ge=2)] = 4
    prompts_per_block: PositiveInt = 8
    """Raised to twice the concurrency where that is more, so that every stream sends at least two requests."""
    traffic: dict[Level, Annotated[float, Field(ge=0)]] | None = None
    """Concurrency (or request rate, or log speed) -> share of time a server spends there, together 1; None: the same
    share for every measured level."""
    request_timeout_s: float = Field(default=600, gt=0)

    @field_validator("max_concurrency", "request_rate", "log_speed", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return () if value is None else (value,) if isinstance(value, int | float) else value

    @field_validator("prompt_tokens", mode="before")
    @classmethod
    def _one_bucket_or_many(cls, value: object) -> object:
        is_one = isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[0], int)
        return (value,) if is_one else value

    @field_validator("prompt_tokens")
    @classmethod
    def _buckets_hold_something(cls, buckets: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        for low, high in buckets:
            if low >= high:
                raise ValueError(f"a bucket is [from, below] with from < below, but got [{low}, {high}]")
        if len(set(buckets)) != len(buckets):
            raise ValueError(f"repeats a bucket: {[list(bucket) for bucket in buckets]}")
        return buckets

    @field_validator("max_concurrency", "request_rate", "log_speed")
    @classmethod
    def _no_level_twice(cls, levels: tuple[Level, ...]) -> tuple[Level, ...]:
        if len(set(levels)) != len(levels):
            raise ValueError(f"repeats a value: {list(levels)}")
        return levels

    @model_validator(mode="after")
    def _levels_belong_to_the_arrival(self) -> Self:
        if not self.levels:
            raise ValueError(f"arrival={self.arrival} needs at least one value in {self.axis}")
        for axis in dict.fromkeys(_AXES.values()):
            if axis != self.axis and getattr(self, axis):
                raise ValueError(
                    f"{axis} does nothing with arrival={self.arrival}, whose levels are in {self.axis}; "
                    f"leave it out (workload.{axis}=[])"
                )
        return self

    @property
    def axis(self) -> str:
        """The key that holds `levels`."""
        return _AXES[self.arrival]

    @property
    def levels(self) -> tuple[Level, ...]:
        """The loads to measure: concurrency, request rate, or speed of the log."""
        given: tuple[Level, ...] = getattr(self, self.axis)
        return given or ((1.0,) if self.arrival == "log" else ())

    @property
    def is_open_loop(self) -> bool:
        return self.arrival != "closed"

    @model_validator(mode="after")
    def _traffic_is_measured(self) -> Self:
        if self.traffic is not None:
            unknown = sorted(set(self.traffic) - set(self.levels))
            if unknown:
                what = self.axis.replace("max_", "").replace("_", " ")
                raise ValueError(f"traffic names {what} {unknown}, but {self.axis} measures {list(self.levels)}")
            if abs(sum(self.traffic.values()) - 1) > 0.01:
                raise ValueError(f"traffic's shares must add up to 1, but add up to {sum(self.traffic.values()):g}")
        return self

    def block_len(self, level: Level) -> int:
        """Prompts in one block at this concurrency (or rate, or speed, which do not change it)."""
        return self.prompts_per_block if self.is_open_loop else max(self.prompts_per_block, 2 * int(level))


_AXES = {"closed": "max_concurrency", "poisson": "request_rate", "constant": "request_rate", "log": "log_speed"}
"""Arrival -> the key of Workload with its levels."""
