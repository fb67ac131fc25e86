"""The typed, frozen configuration. DictConfig ends in `compose.py`; below it are only these objects."""

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_serializer, field_validator, model_validator

from orchestrator.methods import METHODS, Method
from orchestrator.secret_values import has_credentials, is_secret_name, secret_flags

PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
Level = int | float
"""How much load: concurrency, requests/s, or times the speed of a log."""
IMAGE = r"^[a-z0-9][A-Za-z0-9._:/@-]*$"
"""A container image: registry/repository:tag or @sha256:digest."""


Dtype = Literal["auto", "bfloat16", "float16", "float32"]
Setting = str | int | float | bool
"""A value on an axis of `space`."""


class Strict(BaseModel):
    """Frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Hardware(Strict):
    """One kind of node. `None` means: detected on the node, or not known."""

    name: str
    node_resource: str = "xeon_node"
    """Ray custom resource that a node of this kind offers once for each server it can run; a visit takes one."""
    node_labels: dict[str, str] = {}
    """Ray labels that a node of this kind carries (`ray start --labels`), so that one cluster may have several kinds.
    A node with more labels counts too."""
    server_per: Literal["node", "numa_node"] = "node"
    """`numa_node`: a server for each of a node's NUMA nodes, all at the same time, each on its own cores and memory.
    The node then offers node_resource once for each."""
    reserved_cores: Annotated[int, Field(ge=0)] = 0
    """Physical cores per server, its last ones, kept free of the engine's threads: for the load generator, which runs
    on nothing else, and for the engine's scheduler and Ray. 0 with server_per=node leaves the binding to vLLM, which
    keeps one for its scheduler."""
    physical_cores: PositiveInt | None = None
    numa_nodes: PositiveInt | None = None
    memory_gb: float | None = Field(default=None, gt=0)
    memory_mt_per_s: PositiveInt | None = None
    memory_channels: PositiveInt | None = None
    isa: tuple[str, ...] = ()
    """CPU flags, as in /proc/cpuinfo, that the node must have (for example amx_bf16)."""
    max_other_cpu_share: float | None = Field(default=0.1, gt=0, le=1)
    """Share of the node's CPUs that processes besides the engine and its load generator may use while a block runs;
    above it the block is void. Ray, the driver and the kernel took 0.02 to 0.08 CPUs on a quiet machine with two.
    None: no limit, as where server.command starts the engine outside its own process tree (`docker run`)."""
    node_tolerance: float | None = Field(default=0.15, gt=0, lt=1)
    """Share by which a node's baseline may be slower than the fleet's before the node is set aside (its probed memory
    bandwidth by twice that). None: no node is ever set aside."""
    instance_type: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$")
    """EC2's name of this kind of node, which `fleet up` starts; None: a machine of your own."""
    usd_per_hour: float | None = Field(default=None, gt=0)
    """What an hour costs on demand."""
    usd_per_hour_date: str | None = None
    usd_per_hour_source: str | None = None
    spot_usd_per_hour: float | None = Field(default=None, gt=0)
    """What an hour of a spot node costs: `fleet sweep` writes AWS's price of that day here."""
    spot_usd_per_hour_date: str | None = None

    @field_validator("node_labels")
    @classmethod
    def _as_ray_takes_them(cls, labels: dict[str, str]) -> dict[str, str]:
        word = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
        for key, value in labels.items():
            if not re.fullmatch(rf"([A-Za-z0-9.-]{{1,253}}/)?{word}", key) or not re.fullmatch(word, value):
                raise ValueError(
                    "a label's key and value are letters, digits, - _ and . (up to 63), the key with an optional "
                    f"PREFIX/, but got {key!r}: {value!r}"
                )
            if key.startswith("ray.io/"):
                raise ValueError(f"Ray sets the labels ray.io/... itself, but got {key!r}")
        return labels

    @model_validator(mode="after")
    def _price_can_be_divided(self) -> Self:
        if self.server_per == "numa_node" and self.usd_per_hour is not None and self.numa_nodes is None:
            raise ValueError("server_per=numa_node shares usd_per_hour among the node's servers: set numa_nodes")
        return self

    @property
    def servers_per_node(self) -> int:
        """At the same time; 1 where the profile does not know its NUMA nodes."""
        return (self.numa_nodes or 1) if self.server_per == "numa_node" else 1

    @property
    def usd_per_server_hour(self) -> float | None:
        """What one server costs: with a server per NUMA node its share of the node."""
        return None if self.usd_per_hour is None else self.usd_per_hour / self.servers_per_node

    @property
    def spot_usd_per_server_hour(self) -> float | None:
        return None if self.spot_usd_per_hour is None else self.spot_usd_per_hour / self.servers_per_node

    @property
    def memory_bandwidth_gb_per_s(self) -> float | None:
        """Peak of all channels: MT/s x 8 bytes x channels / 1000."""
        if self.memory_mt_per_s is None or self.memory_channels is None:
            return None
        return self.memory_mt_per_s * 8 * self.memory_channels / 1000


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
    drafters: dict[str, Drafter] = {}
    """Speculation method -> drafter."""
    dtype: Dtype = "bfloat16"
    max_model_len: PositiveInt
    chat_template_kwargs: dict[str, JsonValue] = {}
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


class Speculation(Strict):
    """One method with its grid of k; what the method itself is, says `methods.py`."""

    method: Method
    num_speculative_tokens: tuple[PositiveInt, ...] = ()
    extra: dict[str, JsonValue] = {}
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
    env: dict[str, str] = {}
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


class Search(Strict):
    strategy: Literal["grid", "adaptive", "optuna"] = "grid"
    max_attempts: PositiveInt = 2
    """How often a visit is tried before its arm is given up on that node."""
    confirm: bool = True
    """Measure the recommended settings once more on fresh server starts, against the baseline."""
    num_proposals: PositiveInt = 20
    """`optuna` only: arms it measures at most, those taken over from an earlier sweep included."""
    first_blocks: PositiveInt = 3
    """Blocks of every workload (at least selection.min_blocks) that a confirmation measures, and that `adaptive` gives
    an arm at first; there all planned ones where the rest takes no longer than another server start."""
    min_expected_gain: float = Field(default=0.006, gt=0, lt=0.5)
    """`adaptive` only: what a visit over all blocks must be expected to gain, as a share of throughput, averaged over
    workloads (what it may find beyond a tie with the best so far, by prediction and margin); a shorter one less in
    proportion."""
    # Budgets, kept by `adaptive` and `optuna`.
    max_blocks: PositiveInt | None = None
    """Budget: block measurements of the whole sweep, both baselines included. None: no limit."""
    max_node_hours: float | None = Field(default=None, gt=0)
    """Budget: hours that nodes spend on visits, added up. None: no limit."""
    max_usd: float | None = Field(default=None, gt=0)
    """Budget: dollars, as hours that nodes spend on visits x hardware.usd_per_hour. None: no limit."""

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        """A budget that nothing keeps to would be a surprise."""
        ignored = [
            f"{key}: only search={' and search='.join(readers)} {'reads' if len(readers) == 1 else 'read'} it"
            for key, readers in _READERS.items()
            if self.strategy not in readers and getattr(self, key) != type(self).model_fields[key].default
        ]
        if ignored:
            raise ValueError(f"{'; '.join(ignored)}, but search is {self.strategy}")
        return self


_READERS = {
    "num_proposals": ("optuna",),
    "min_expected_gain": ("adaptive",),
    "max_blocks": ("adaptive", "optuna"),
    "max_node_hours": ("adaptive", "optuna"),
    "max_usd": ("adaptive", "optuna"),
}
"""Key of Search -> the strategies that read it; the other keys are read by all."""


class Slo(Strict):
    """What a request must keep to count as good; None: no limit."""

    ttft_s: float | None = Field(default=None, gt=0)
    tpot_s: float | None = Field(default=None, gt=0)
    e2e_s: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _some_limit(self) -> Self:
        if self.ttft_s is None and self.tpot_s is None and self.e2e_s is None:
            raise ValueError("needs at least one of ttft_s, tpot_s, e2e_s")
        return self


class Constraints(Strict):
    """What an arm's 95th percentile on a workload must keep for the arm to be chosen there; None: no limit."""

    ttft_p95_s: float | None = Field(default=None, gt=0)
    tpot_p95_s: float | None = Field(default=None, gt=0)
    e2e_p95_s: float | None = Field(default=None, gt=0)


class SelectionRules(Strict):
    objective: Literal["throughput", "tpot", "e2e", "goodput", "cost"] = "throughput"
    """What an arm must beat the baseline in: output tokens/s, mean time per output token, mean time of a request, good
    requests/s by `slo`, or dollars per output token (the inverse of throughput on one kind of node, so it chooses the
    same)."""
    slo: Slo | None = None
    constraints: Constraints = Constraints()
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Of every interval; and that no arm is called a gain by chance, over all arms of a workload together."""
    tie_tolerance: float = Field(default=0.01, ge=0, lt=0.5)
    """Arms whose mean speedup is within this share of the best count as equal; the smallest k is taken."""
    min_blocks: Annotated[int, Field(ge=2)] = 3
    visit_noise: float = Field(default=0.015, ge=0, lt=0.5)
    """Standard deviation of ln(throughput) between two starts of the same server, supposed until the baseline's two
    visits on every node show more or less; no number of blocks reduces it."""

    @model_validator(mode="after")
    def _goodput_has_limits(self) -> Self:
        if self.objective == "goodput" and self.slo is None:
            raise ValueError("objective 'goodput' needs slo, for example selection.slo={ttft_s: 0.5, tpot_s: 0.05}")
        return self


class FleetSize(Strict):
    """Workers of one hardware profile."""

    desired_size: Annotated[int, Field(ge=0)]
    max_size: PositiveInt

    @model_validator(mode="after")
    def _desired_within_maximum(self) -> Self:
        if self.desired_size > self.max_size:
            raise ValueError(f"desired_size must be at most max_size={self.max_size}, but got {self.desired_size}")
        return self


class Fleet(Strict):
    """Machines on AWS that `orchestrator fleet` makes, keeps for a while and removes: a head, and one Auto Scaling
    group of workers a hardware profile."""

    name: str = Field(default="specsweep", pattern=r"^[a-z][a-z0-9-]{0,23}$")
    """Prefix of everything's name, and the value of its tag `specsweep:fleet`."""
    region: str = Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$")
    availability_zones: tuple[Annotated[str, Field(pattern=r"^[a-z0-9-]+$")], ...] = ()
    """Empty: the first two of the region."""
    vpc_cidr: str = Field(default="10.42.0.0/16", pattern=r"^[0-9.]+/[0-9]+$")
    head_instance_type: str = Field(default="m7i.large", pattern=r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$")
    head_volume_gb: PositiveInt = 100
    head_image: str = Field(pattern=IMAGE)
    """Container image of the driver, MLflow and Ray's head, in any registry that the nodes reach."""
    worker_image: str = Field(pattern=IMAGE)
    sizes: dict[str, FleetSize] = Field(min_length=1)
    """Hardware profile -> its workers; `default` stands for every profile that is not named."""
    on_demand_base: Annotated[int, Field(ge=0)] = 0
    """Workers of a group that are on demand before any is spot."""
    spot_percentage: Annotated[int, Field(ge=0, le=100)] = 0
    """Of the workers above on_demand_base."""
    worker_volume_gb: PositiveInt = 200
    ttl_hours: float = Field(gt=0)
    """The lease: how long after `fleet up`, or after a running sweep's last renewal, the workers end by themselves."""
    max_hours: float = Field(gt=0)
    """No renewal goes beyond this age of the fleet; the head shuts itself down then."""
    fixed_usd_per_hour: float = Field(ge=0)
    """What the fleet costs without workers: head, NAT gateway, addresses."""
    release_at_end: bool = True
    """The end of a sweep scales the workers to zero."""
    model_mirror: str | None = Field(default=None, pattern=r"^s3://[a-z0-9.-]+(/[A-Za-z0-9._/-]*)?$")
    """Model files in S3, s3://BUCKET/PREFIX; None: nodes fetch from the Hugging Face hub."""
    results_bucket: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")
    """Bucket to make for results; None: named after the fleet and the account."""
    mlflow_allowed_hosts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9.*:-]+$")], ...] = ()
    """Names besides loopback and the head's own address by which MLflow may be asked."""
    secrets_version: PositiveInt = 1
    """One more makes the next `fleet up` replace Ray's token and MLflow's password."""

    @model_validator(mode="after")
    def _lease_within_lifetime(self) -> Self:
        if self.ttl_hours > self.max_hours:
            raise ValueError(f"ttl_hours must be at most max_hours={self.max_hours:g}, but got {self.ttl_hours:g}")
        return self

    def size_of(self, profile: str) -> FleetSize | None:
        return self.sizes.get(profile) or self.sizes.get("default")


class Cluster(Strict):
    aws: Fleet | None = None
    """The fleet that the nodes belong to; None: they are somebody else's to start and end."""
    budget_usd: float | None = Field(default=None, gt=0)
    """What machines may cost: a sweep whose estimate lies above it is not started. None: no limit."""
    address: str | None = None
    """HOST:PORT of a running Ray's GCS; None starts a fresh Ray on this machine for the sweep."""
    auth_mode: Literal["disabled", "token"] = "disabled"
    silence_grace_s: float = Field(default=60, gt=0)
    """How long a node may be silent beyond what its work can take before the visit is measured elsewhere."""
    node_return_s: float = Field(default=120, ge=0)
    """How long the end of a sweep waits for a node that left and has no closing baseline; after that its arms count
    with the opening one."""

    @property
    def is_this_machine(self) -> bool:
        return self.address is None and self.aws is None

    @property
    def model_mirror(self) -> str | None:
        """Where nodes fetch models from in place of the hub; see Fleet."""
        return self.aws.model_mirror if self.aws else None

    @field_validator("address")
    @classmethod
    def _explicit(cls, address: str | None) -> str | None:
        host, _, port = (address or "h:1").rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(
                f"address must be HOST:PORT (never 'auto', which may join a stranger's cluster), but got {address!r}"
            )
        return address


class Tracking(Strict):
    uri: str | None = "sqlite:///mlflow.db"
    """MLflow tracking URI; None records nothing there."""
    experiment: str = "speculative-decoding"

    @field_validator("uri")
    @classmethod
    def _no_credentials(cls, uri: str | None) -> str | None:
        """It is written to config.yaml, and shown by `ps`."""
        if uri and has_credentials(uri):
            raise ValueError(
                "a tracking URI must not hold a user or password; set MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD in the environment instead"
            )
        return uri


class SweepConfig(Strict):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: int = 0
    results_dir: str = "results"
    hardware: Hardware
    model: Model
    datasets: dict[str, Dataset] = Field(min_length=1)
    speculation: tuple[Speculation, ...]
    """Each method is compared with the same baseline; a single one is written without a list."""
    workload: Workload
    server: Server = Server()
    space: Space = Space()
    search: Search = Search()
    selection: SelectionRules = SelectionRules()
    cluster: Cluster = Cluster()
    tracking: Tracking = Tracking()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.hardware.usd_per_hour is None:
            needs_price = {
                "search.max_usd": self.search.max_usd is not None,
                "cluster.budget_usd": self.cluster.budget_usd is not None,
                "selection.objective=cost": self.selection.objective == "cost",
            }
            for name, is_asked in needs_price.items():
                if is_asked:
                    raise ValueError(f"{name} needs the price of a node: set hardware.usd_per_hour")
        if self.search.strategy == "adaptive" and self.selection.objective == "goodput":
            raise ValueError(
                "search=adaptive predicts speed, not goodput; use search=grid with selection.objective=goodput"
            )
        return self

    @property
    def methods(self) -> tuple[Method, ...]:
        """The speculation methods of the sweep, without `none`, the simplest first."""
        named = {each.method for each in self.speculation if each.method != "none"}
        return tuple(sorted(named, key=lambda method: METHODS[method].simplicity))

    @field_validator("speculation", mode="before")
    @classmethod
    def _one_or_many_methods(cls, value: object) -> object:
        return value if isinstance(value, list | tuple) else (value,)

    @field_serializer("speculation")
    def _without_list(self, value: tuple[Speculation, ...]) -> Speculation | tuple[Speculation, ...]:
        return value if len(value) > 1 else value[0]

    @field_validator("speculation")
    @classmethod
    def _no_method_twice(cls, value: tuple[Speculation, ...]) -> tuple[Speculation, ...]:
        if not value:
            raise ValueError("needs a method; `none` measures the baseline alone")
        methods = [each.method for each in value]
        for method in methods:
            if methods.count(method) > 1:
                raise ValueError(f"names method {method!r} twice; put all its k in one num_speculative_tokens")
        return value

    @model_validator(mode="after")
    def _binding_fits_every_numa_node(self) -> Self:
        if self.hardware.server_per == "numa_node":
            fixed = {self.server.omp_threads_bind, *self.space.omp_threads_bind} - {None, "nobind"}
            if fixed:
                raise ValueError(
                    f"omp_threads_bind: with hardware.server_per=numa_node every server has CPUs of its own, but got "
                    f"{sorted(map(str, fixed))[0]!r} for all; leave it null"
                )
        return self

    @model_validator(mode="after")
    def _open_loop_can_be_judged(self) -> Self:
        faults = []
        if self.workload.is_open_loop and self.selection.objective in ("throughput", "cost"):
            faults.append(
                f"selection.objective={self.selection.objective} decides nothing, since every arm that keeps up gives "
                "the tokens/s that the requests ask for: use selection=latency, or selection.objective=tpot, e2e, or "
                "goodput with selection.slo"
            )
        if self.workload.is_open_loop and self.search.strategy == "adaptive":
            faults.append("search=adaptive predicts at a fixed concurrency: use search=grid")
        if faults:
            raise ValueError(f"with workload.arrival={self.workload.arrival} {'; and '.join(faults)}")
        return self

    @model_validator(mode="after")
    def _replay_has_a_whole_log(self) -> Self:
        for name, dataset in self.datasets.items() if self.workload.arrival == "log" else ():
            if dataset.arrival_field is None or dataset.num_prompts is not None:
                raise ValueError(
                    f"workload.arrival=log replays datasets.{name} whole and at its own times: it needs "
                    f"datasets.{name}.arrival_field, and no num_prompts; 'dataset@datasets=[request_log]' has both"
                )
        return self

    @field_validator("datasets")
    @classmethod
    def _plain_names(cls, datasets: dict[str, Dataset]) -> dict[str, Dataset]:
        for name in datasets:
            if not name.replace("_", "").replace("-", "").isalnum():
                raise ValueError(f"a dataset's name has letters, digits, - and _ only, but got {name!r}")
        return datasets

    @model_validator(mode="after")
    def _space_can_be_searched(self) -> Self:
        axes = ", ".join(f"space.{key}" for key in self.space.axes)
        if axes and self.search.strategy == "adaptive":
            raise ValueError(
                f"search=adaptive predicts over num_speculative_tokens alone and cannot search {axes}; "
                "use search=optuna, or search=grid to measure every combination"
            )
        if axes and not self.methods:
            raise ValueError(f"{axes}: only arms with speculation vary, but speculation.method is 'none'")
        return self
