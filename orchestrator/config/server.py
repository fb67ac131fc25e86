"""How the engine is started, and which of its settings vary."""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from orchestrator.config.base import Dtype, PositiveInt, Setting, Strict
from orchestrator.secret_values import is_secret_name, secret_flags


class Server(Strict):
    """How the engine is started on the node. Everything but the time limits is part of an arm's identity."""

    # On the command line `server.env.OMP_NUM_THREADS=4` is a number; the engine gets it as text.
    model_config = ConfigDict(coerce_numbers_to_str=True)

    launcher: Literal["process", "docker", "external"] = "process"
    """`docker`: `image` in a container; `external`: a server that is already there at `url`, measured and never
    stopped: each run measures the arm that it is, so restart it as the next one and run again."""
    command: tuple[str, ...] | None = None
    """The engine's command (launcher=docker: docker's); None: `vllm` of the environment that runs the node's tasks."""
    image: str | None = None
    """Of launcher=docker, for example vllm/vllm-openai-cpu:v0.32.0."""
    url: str | None = Field(default=None, pattern=r"^https?://[^/?#@]+$")
    """Of launcher=external: http://HOST:PORT as the node reaches it. Its key is VLLM_API_KEY of the environment."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    kv_cache_gib: float = Field(default=1, gt=0)
    """VLLM_CPU_KVCACHE_SPACE; without it vLLM takes nearly all memory."""
    max_num_seqs: PositiveInt | None = None
    """None: the highest concurrency of the sweep, at least 16."""
    max_num_batched_tokens: PositiveInt | None = None
    """Tokens that one step of the engine works on at most, prompts and drafts included; None leaves it to vLLM."""
    enforce_eager: bool = False
    enable_prefix_caching: bool = False
    enable_chunked_prefill: bool | None = None
    """Whether long prompts share steps with decoding requests; None leaves it to vLLM."""
    preload_openmp: bool = True
    """LD_PRELOAD the engine environment's libiomp5.so where there is one (vLLM's CPU guide)."""
    preload_tcmalloc: bool = False
    """LD_PRELOAD the node's libtcmalloc_minimal (vLLM's CPU guide); vLLM's container image does so by itself."""
    omp_threads_bind: str | None = None
    """VLLM_CPU_OMP_THREADS_BIND, for example `0-31` or `nobind`; None: as hardware.server_per and reserved_cores say,
    where they say anything, else left to vLLM."""
    tensor_parallel_size: PositiveInt = 1
    """Ranks that share every layer; as many as NUMA nodes spread one server over a whole node."""
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    patches: tuple[str, ...] = ()
    """Named repairs of known engine defects, applied inside the engine by a plugin: see docs/methods.md."""
    ready_timeout_s: float = Field(default=900, gt=0)
    stop_grace_s: float = Field(default=10, gt=0)

    @model_validator(mode="after")
    def _launcher_has_what_it_needs(self) -> Self:
        for key, launcher, example in (
            ("image", "docker", "vllm/vllm-openai-cpu:v0.32.0"),
            ("url", "external", "http://10.0.0.5:8000"),
        ):
            if (getattr(self, key) is not None) != (self.launcher == launcher):
                raise ValueError(f"launcher={launcher} and {key} go together, for example {key}={example}")
        if self.launcher == "external" and self.command is not None:
            raise ValueError("launcher=external starts nothing, so command must be null")
        return self

    @field_validator("env")
    @classmethod
    def _no_secret_in_env(cls, env: dict[str, str]) -> dict[str, str]:
        """It is part of every arm: in plan.json, in MLflow, in the report."""
        if found := [name for name in env if is_secret_name(name)]:
            raise ValueError(
                f"{', '.join(found)} would hold a secret, which has no place in a configuration; "
                "set it in the environment of every node (of `ray start`), from where the engine inherits it"
            )
        return env

    @field_validator("extra_args")
    @classmethod
    def _no_secret_in_arguments(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        if found := secret_flags(arguments):
            raise ValueError(
                f"{', '.join(found)} would show a secret in the process list; the server gets a random API key of its "
                "own, and a Hugging Face token is read from HF_TOKEN in the environment of every node"
            )
        return arguments


class Space(Strict):
    """Server settings to measure together with k: arms are every combination of their values with every k.

    The baseline runs once, at the plain settings of `server`: a speedup is what k and setting together gain over that.
    """

    # On the command line `space.omp_threads_bind=[0,nobind]` has a number in it.
    model_config = ConfigDict(coerce_numbers_to_str=True)

    omp_threads_bind: tuple[str, ...] = ()
    tensor_parallel_size: tuple[PositiveInt, ...] = ()
    max_num_seqs: tuple[PositiveInt, ...] = ()
    max_num_batched_tokens: tuple[PositiveInt, ...] = ()
    enforce_eager: tuple[bool, ...] = ()
    reserved_cores: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """As hardware.reserved_cores."""
    dtype: tuple[Dtype, ...] = ()
    """As model.dtype. Outputs then differ from the baseline's by rounding alone."""
    kv_cache_gib: tuple[Annotated[float, Field(gt=0)], ...] = ()
    enable_prefix_caching: tuple[bool, ...] = ()
    enable_chunked_prefill: tuple[bool, ...] = ()
    preload_openmp: tuple[bool, ...] = ()
    preload_tcmalloc: tuple[bool, ...] = ()
    draft_tensor_parallel_size: tuple[PositiveInt, ...] = ()
    """Of the drafter, in speculative_config; 1 or the target's."""
    draft_attention_backend: tuple[str, ...] = ()
    """Of the drafter, as vLLM names it in speculative_config.attention_backend."""

    @field_validator("*", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return value if isinstance(value, list | tuple) else (value,)

    @field_validator("*")
    @classmethod
    def _no_value_twice(cls, values: tuple[object, ...]) -> tuple[object, ...]:
        if len(set(values)) != len(values):
            raise ValueError(f"repeats a value: {list(values)}")
        return values

    @property
    def axes(self) -> dict[str, tuple[Setting, ...]]:
        """The server keys that vary, each with its values."""
        return {key: values for key in type(self).model_fields if (values := getattr(self, key))}
