"""What crosses the border between driver and node, and what the ledger keeps. Plain data, no behaviour of their own."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from orchestrator.config import Hardware, Server, Strict
from orchestrator.load_point import LoadPoint
from orchestrator.open_loop import OpenLoop

Phase = Literal["opening", "arm", "confirm", "closing"]
"""`opening` and `closing` are the baseline's visits at a node's start and end; `arm` is a visit of the search,
`confirm` one that measures a recommended setting again."""


SCHEDULE_KEY = "num_speculative_tokens_per_batch_size"
"""vLLM's speculative_config: [[first batch size, last batch size, num_speculative_tokens], ...]."""


Arrival = Literal["closed", "poisson", "constant", "log"]
"""As `workload.arrival`."""


class Message(Strict):
    role: Literal["system", "user", "assistant"]
    content: str


class Prompt(Strict):
    messages: tuple[Message, ...]
    num_tokens: int | None = None
    """Length of `messages` by the target's own tokenizer and chat template; None where it was not counted."""
    later_turns: tuple[str, ...] = ()
    """What the user says next, one message after each answer of the model."""
    max_tokens: int | None = None
    """Of a logged request; None: the workload's output_len."""
    arrival_s: float | None = None
    """Of a logged request, from the log's first one."""

    @property
    def num_turns(self) -> int:
        return 1 + len(self.later_turns)


class ServerSpec(Strict):
    """Everything about the engine that may change a measurement; part of an arm's identity.

    A field added later has a default, which the identity leaves out: arms that were measured before keep their ids.
    """

    command: tuple[str, ...] | None
    target: str
    revision: str | None
    dtype: str
    max_model_len: int
    max_num_seqs: int
    kv_cache_gib: float
    enforce_eager: bool
    enable_prefix_caching: bool
    trust_remote_code: bool
    preload_openmp: bool
    omp_threads_bind: str | None
    speculative_config: dict[str, JsonValue] | None
    """As vLLM takes it; None for the baseline."""
    extra_args: tuple[str, ...]
    env: dict[str, str]
    max_num_batched_tokens: int | None = None
    patches: tuple[str, ...] = ()
    """Repairs that the engine is started with, by name."""
    launcher: str = "process"
    image: str | None = None
    url: str | None = None
    enable_chunked_prefill: bool | None = None
    preload_tcmalloc: bool = False
    tensor_parallel_size: int = 1
    server_per: Literal["node", "numa_node"] = "node"
    reserved_cores: int = 0
    """These two as in Hardware; which CPUs they come to, the node finds out (CpuBinding)."""


class Arm(Strict):
    """One server configuration on one kind of hardware."""

    id: str
    name: str
    """For people, and in file names: `none`, `dflash-k7`, `dflash-k7-seqs32-eager`."""
    method: str
    num_speculative_tokens: int
    """0 for the baseline."""
    hardware: str
    server: ServerSpec
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """The values of the sweep's `space` that this arm has, by server key; they are in `server` too."""

    @property
    def is_baseline(self) -> bool:
        return self.method == "none"

    def k_range(self, max_concurrency: int) -> tuple[int, int]:
        """The least and the most tokens that a step may draft at batch sizes up to `max_concurrency`.

        They differ only where the server switches by a schedule.
        """
        ranges = (self.server.speculative_config or {}).get(SCHEDULE_KEY)
        if not isinstance(ranges, list):
            return self.num_speculative_tokens, self.num_speculative_tokens
        rows = [[int(str(value)) for value in row] for row in ranges if isinstance(row, list)]
        ks = [k for first, _, k in rows if first <= max_concurrency]
        return min(ks), max(ks)


class WorkloadCell(LoadPoint):
    """A dataset at one level of load, with output length and sampling.

    A field added later has a default, which the identity leaves out: workloads measured before keep their ids.
    """

    id: str
    name: str
    """For people: `code@c4`."""
    output_len: int
    ignore_eos: bool
    temperature: float
    top_p: float
    seed: int
    chat_template_kwargs: dict[str, JsonValue]
    request_timeout_s: float
    warmup_prompt_indices: tuple[int, ...] = ()
    """Sent once, unmeasured, before a visit's first block of this workload. Not part of the identity."""
    arrival: Arrival = "closed"


class Block(Strict):
    """A fixed slice of a workload's prompts; every arm measures the same ones."""

    id: str
    workload_id: str
    index: int
    prompt_indices: tuple[int, ...]
    """Positions in the dataset's prompt set."""
    num_turns: tuple[int, ...] = ()
    """Of each prompt's conversation; empty where every prompt is one request."""

    @property
    def requests(self) -> list[tuple[int, int]]:
        """(prompt index, turn) of every request, in the order of the record's outputs."""
        turns = self.num_turns or (1,) * len(self.prompt_indices)
        return [(index, turn) for index, num in zip(self.prompt_indices, turns, strict=True) for turn in range(num)]


class SpecCounters(Strict):
    """vLLM's vllm:spec_decode_* counters over one block: after minus before."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]


class PrefixCache(Strict):
    """vLLM's vllm:prefix_cache_* counters over one block: after minus before."""

    queries: int
    """Prompt tokens that were looked for."""
    hits: int
    """Of them those that needed no prefill."""


class RequestRecord(Strict):
    """One request as the client saw it. Times in seconds from the block's start, on a monotonic clock."""

    prompt_index: int
    turn: int = 0
    """Of its conversation."""
    max_tokens: int | None = None
    """Asked for; None: the workload's output_len."""
    due_s: float | None = None
    """When an open loop wanted it sent."""
    sent_s: float
    first_token_s: float | None = None
    chunk_s: tuple[float, ...] = ()
    """Arrival of every chunk that carried tokens, the first included."""
    end_s: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """From the server's usage, never counted from chunks."""
    finish_reason: str | None = None
    output_sha256: str | None = None
    """Of the token ids where the server returns them, else of the text."""
    output_token_ids: tuple[int, ...] | None = None
    """None where the server does not return them, and for a request that failed."""
    error: str | None = None


class HostUse(Strict):
    """What else the node did while a block ran."""

    num_cpus: int
    """Logical ones, which the figures below count."""
    other_cpu_cores: float
    """Busy CPUs besides the engine and the process that drives it: CPU time / wall time."""
    steal_share: float | None = None
    """Share (0..1) of the CPU time that the hypervisor gave to other guests; None where the kernel does not tell."""
    clock_mhz: float | None = None
    """Mean over CPUs right after the load; None where not readable."""


class RawRequest(RequestRecord):
    """A line of raw/: a request, and the block it was sent for."""

    block_id: str


class BlockRecord(Strict):
    """One measured block: the unit of everything after measuring."""

    kind: Literal["block"] = "block"
    arm_id: str
    block_id: str
    workload_id: str
    block_index: int
    visit_id: str
    attempt: int
    phase: Phase
    node: str
    started_utc: str
    wall_s: float
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    counters: SpecCounters | None
    """None for the baseline, and where the server has no such counters."""
    prefix_cache: PrefixCache | None = None
    """None where the arm's server has none, or no such counters."""
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float | None, ...]
    """None for a request of one output token. These three: one value a request that succeeded, in the same order."""
    e2e_s: tuple[float, ...]
    itl_s: dict[str, float]
    """Percentiles over all gaps between chunks: p50, p95, p99; empty where there was no gap."""
    output_sha256: tuple[str, ...]
    """One a request, in the order of the block's prompts and their turns."""
    client_cpu_cores: float
    """Cores that the load generator took: its CPU time / wall_s."""
    client_wait_share: float | None = None
    """Share (0..1) of wall_s in which the load generator was ready to run and had no CPU; None where not known."""
    host: HostUse | None = None
    open_loop: OpenLoop | None = None
    """How the load arrived and whether the server kept up; None in a closed loop."""
    void_reason: str | None = None
    """Why the block does not count; None for a good one."""

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.wall_s


class NodeInfo(Strict):
    """What the probe read on the node; None is `not readable here`."""

    hostname: str
    cpu_model: str | None
    physical_cores: int | None
    logical_cores: int | None
    numa_nodes: int | None
    memory_gb: float
    isa: tuple[str, ...]
    governor: str | None
    load_average_1m: float
    transparent_hugepage: str | None
    kernel: str
    memory_bandwidth_gb_per_s: float | None = None
    """By a copy over all cores (see tasks.bandwidth), before the server's start."""
    clock_mhz: float | None = None
    """Mean over CPUs, idle before the server's start."""
    numa_cpus: dict[str, str] | None = None
    """NUMA node -> its CPUs as the kernel lists them: `0-31,64-95`."""


class CpuBinding(Strict):
    """The CPUs of one server, as the kernel lists them: `0-31,64-95`."""

    cpus: str
    """All of them, those kept aside included: the engine's own processes besides its threads go anywhere here."""
    num_cores: int
    """Physical ones."""
    omp_threads_bind: str
    """The engine's threads, as VLLM_CPU_OMP_THREADS_BIND takes them: ranks parted by `|`."""
    load_cpus: str
    """The load generator's; all of them where none is kept aside."""


class VisitRecord(Strict):
    """How one visit went: the times it took besides its blocks, and what it ran on."""

    kind: Literal["visit"] = "visit"
    visit_id: str
    arm_id: str
    attempt: int
    phase: Phase
    node: str
    started_utc: str
    server_start_s: float | None = None
    warmup_s: float = 0.0
    blocks_s: float = 0.0
    server_stop_s: float | None = None
    wall_s: float
    num_blocks: int
    engine_version: str | None = None
    node_info: NodeInfo | None = None
    thread_binding: str | None = None
    """What vLLM logs of its OpenMP threads and the CPUs they are bound to."""
    engine_patches: tuple[str, ...] = ()
    """Repairs that the engine's log says are applied."""
    cpu_binding: CpuBinding | None = None
    """What was bound for vLLM; None: its own choice."""
    preloaded: tuple[str, ...] | None = None
    """The engine's LD_PRELOAD; None where it was not recorded, or an image's own."""
    versions: dict[str, str] | None = None
    """Of Python and the libraries that this visit's process ran with."""
    server_log: str | None = None
    """File name under the sweep's logs/."""
    error: str | None = None
    """Why the visit ended early; its finished blocks count all the same."""
    fetch_s: float | None = None
    """To have the model files on the node, before everything else: neither in wall_s nor in server_start_s. None where
    they are local."""
    model_revisions: dict[str, str] = Field(default_factory=dict)
    """Hugging Face id -> commit of the files that were served; without those that are local."""
    local_models: dict[str, str] = Field(default_factory=dict)
    """Reference of a model in a folder of the node -> identity of its files (see tasks.local_model)."""
    interrupted: bool = False
    """It ended because the node is about to be taken away: no attempt at the arm, and no more visits there."""
    blames_node: bool = False
    """Whether it ended early for what has nothing to do with the arm: the node left, hangs, or is not fit."""


class SessionRecord(Strict):
    """One run of the driver on this sweep: a sweep that was continued has several."""

    kind: Literal["session"] = "session"
    started_utc: str
    wall_s: float
    """Driver time from start to the end of measuring, seconds."""
    command: str | None = None
    """What was typed; None in ledgers from before it was kept."""
    nodes_gone: tuple[str, ...] = ()
    """Nodes that had measured and were not in the cluster any more at its end, though others were."""
    ended: Literal["measured", "interrupted", "failed"] | None = None
    """`measured`: all that could be; None in ledgers from before it was kept."""
    error: str | None = None
    """Why it failed."""


class Visit(Strict):
    """One server start on one node: what the driver asks the node for."""

    id: str
    arm: Arm
    phase: Phase
    node: str
    attempt: int
    block_ids: tuple[str, ...]


class MeasuredWith(Strict):
    """What stays the same over a sweep, as far as it is known."""

    engine_version: str | None = None
    local_models: dict[str, str] = Field(default_factory=dict)
    """As in VisitRecord."""


class VisitTask(Strict):
    """Everything a node needs to know for one visit."""

    visit: Visit
    hardware: Hardware
    server: Server
    workloads: dict[str, WorkloadCell]
    blocks: tuple[Block, ...]
    model_revisions: dict[str, str] = Field(default_factory=dict)
    """The sweep's commit of every model that comes from the hub."""
    model_mirror: str | None = None
    """s3://bucket/prefix to fetch models from in place of the hub."""
    measured_with: MeasuredWith = MeasuredWith()
    """By the sweep's earlier visits."""


class MeasuredBlock(Strict):
    """A block's record for the ledger, and its requests for raw/."""

    record: BlockRecord
    requests: tuple[RequestRecord, ...]


class FinishedVisit(Strict):
    """A visit's record for the ledger, and the server's log for logs/."""

    record: VisitRecord
    server_log: str


VisitEvent = MeasuredBlock | FinishedVisit
LedgerRecord = Annotated[BlockRecord | VisitRecord | SessionRecord, Field(discriminator="kind")]
