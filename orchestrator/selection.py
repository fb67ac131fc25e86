"""The schema of selection.json, version 1. How it is decided is in `select.py`."""

from typing import Literal

from pydantic import Field, JsonValue

from orchestrator.config import Level, Strict
from orchestrator.load_point import LoadPoint

Verdict = Literal["speculate", "baseline", "undecided"]


class Interval(Strict):
    mean: float
    ci_low: float
    ci_high: float


class Quantiles(Strict):
    p50: float
    p95: float


class Choice(Strict):
    arm: str
    """Its name."""
    method: str
    num_speculative_tokens: int
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """What of the server was varied besides k."""


class ArmResult(Strict):
    """One arm on one workload. None where nothing (or nothing valid) was measured."""

    arm: str
    """Its name."""
    method: str
    num_speculative_tokens: int
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    num_blocks: int
    num_requests: int
    output_tokens_per_s: Interval | None
    speedup: Interval | None
    """Throughput against the baseline's on the same blocks; None for the baseline itself."""
    gain: Interval | None = None
    """As `speedup`, in the sweep's objective; more is better. What the verdict is about."""
    acceptance_length: float | None
    acceptance_rate: float | None
    survival: tuple[float, ...] | None
    prefix_cache_hit_rate: float | None = None
    """Share (0..1) of the prompts' tokens that the prefix cache had; None without one."""
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None
    all_at_once_share: float | None = None
    """Share (0..1) of the requests of several tokens whose tokens reached the client all at once; where it is not
    small, ttft_s and tpot_s are None: they were not measured."""
    e2e_s: Quantiles | None = None
    goodput_requests_per_s: float | None = None
    """Requests a second that keep every limit of selection.slo; None without one."""
    meets_constraints: bool | None = None
    """Those of selection, and in an open loop that its queue does not grow; None where nothing is asked."""
    saturated_share: float | None = None
    """Open loop: share (0..1) of the blocks in which the queue grew, so that the arm cannot keep up; None where it
    cannot be told."""
    usd_per_million_output_tokens: float | None
    """On demand."""
    spot_usd_per_million_output_tokens: float | None = None
    step_s: float | None = None
    """Time of one step of the engine while requests decode, seconds; of the baseline, the time of a token."""
    break_even_acceptance_length: float | None = None
    """Tokens that a step must yield for the arm to be as fast as the baseline: its time over the baseline's step."""
    drafting_s: float | None = None
    """Part of step_s that is not verification, seconds; None where no baseline level tells what verifying takes."""
    predicted_speedup: float | None = None
    """From its acceptance here and its step times on the other datasets: a check on `speedup`, not a measurement."""
    outputs_match_baseline: float | None
    """Share (0..1) of prompts whose output is identical to the baseline's; None where temperature > 0."""


class WorkloadResult(LoadPoint):
    output_len: int
    verdict: Verdict
    reason: str
    best: Choice | None
    """What to run; None while undecided."""
    contenders: tuple[Choice, ...] = ()
    """Arms that cannot be told apart from the best, or that keep it undecided."""
    why: str | None = None
    """What makes it so, in terms of step times and tokens a step; explains the verdict, had no part in it."""
    blocks_to_settle: int | None = None
    """About how many blocks an arm would settle an undecided workload; None where none would, or nothing is open."""
    arms: tuple[ArmResult, ...]


class MixedArm(Strict):
    arm: str
    method: str
    num_speculative_tokens: int
    gain: Interval | None
    """In the objective, at the mix; None where it lacks a figure on some of it."""


class Mix(Strict):
    """All levels of the traffic together: one static setting for a server that sees them in these shares of time."""

    dataset: str | None
    """None: all datasets, each weighing the same."""
    traffic: dict[Level, float]
    """Concurrency (or request rate, or log speed) -> share of time."""
    verdict: Verdict
    best: Choice | None
    arms: tuple[MixedArm, ...]


class Crossover(Strict):
    """Where speculation stops paying as the load grows; both None where no measured level is on that side."""

    dataset: str
    pays_up_to: Level | None
    """The highest level up to which every measured one says speculate."""
    stops_at: Level | None
    """The lowest level that says baseline, or is undecided."""


class Drift(LoadPoint):
    """The baseline at a node's end against its start, on the same blocks."""

    node: str
    num_blocks: int
    closing_over_opening: Interval
    """Of throughputs; 1 is no change."""
    is_beyond_noise: bool
    """More than blocks and two server starts explain."""


class Confirmation(Strict):
    """A recommended setting measured again, on server starts that had no part in choosing it."""

    setting: Literal["static", "schedule"]
    arm: str
    speculative_config: dict[str, JsonValue]
    predicted: Interval | None
    """Gain at the mix, from the measurements that chose it."""
    confirmed: Interval | None
    """The same, from the confirmation visit; None while it was not measured."""
    verdict: Literal["holds", "withdrawn", "open"]
    reason: str


class UnusedConfirmation(Strict):
    """A setting measured again that what was measured later no longer would recommend."""

    arm: str
    confirmed: Interval | None
    """Gain at the mix; None where it was measured on too little of it."""
    server_logs: tuple[str, ...] = ()
    """In the sweep's folder; they have the whole command, which tells one schedule from another."""


class Schedule(Strict):
    dataset: str
    method: str | None = None
    """None in what was written before sweeps could mix methods."""
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...]
    """vLLM's form: [first batch size, last batch size, num_speculative_tokens]."""


class Recommendation(Strict):
    """The setting for a server that sees the whole traffic mix, ready to paste."""

    arm: str
    speculative_config: dict[str, JsonValue] | None
    """None: run without speculation."""
    vllm_serve: str
    docker_run: str
    reason: str
    """Why this setting, in a sentence."""


class Provenance(Strict):
    git_commit: str | None
    versions: dict[str, str]
    hardware: dict[str, JsonValue]
    plan_id: str
    engine_patches: tuple[str, ...] = ()
    """Repairs of engine defects that some server ran with."""
    nodes_set_aside: dict[str, str] = Field(default_factory=dict)
    """Node -> why nothing that it measured counts."""
    nodes_unclosed: dict[str, str] = Field(default_factory=dict)
    """Node -> why it has no closing baseline, and what its arms are compared with."""
    model_revisions: dict[str, str] = Field(default_factory=dict)
    """Hugging Face id -> commit of the files that were served; without local ones."""


class Unfinished(Strict):
    """A sweep that has not measured all that it is to measure, when this was decided."""

    num_blocks: int
    """Measured, of those that count: each arm's once, and the baseline's likewise."""
    num_planned_blocks: int
    """Without those that the search dropped."""
    may_stop_early: bool
    """Whether fewer than planned may do."""
    arms: dict[str, tuple[int, int]]
    """Name of each arm that lacks blocks -> how many it has, and how many are planned."""
    num_arms_to_propose: int = 0
    """By search=optuna."""
    unclosed_nodes: tuple[str, ...] = ()
    """Without a closing baseline."""
    budget: str | None = None
    """The search's, where that is what ended it."""
    command: str | None = None
    """What was typed to measure, and continues; None where it is not known."""


class Selection(Strict):
    schema_version: Literal[1] = 1
    sweep_id: str
    created_utc: str
    simulated: bool
    provenance: Provenance
    workloads: tuple[WorkloadResult, ...]
    schedules: tuple[Schedule, ...]
    objective: str = "throughput"
    confidence: float = 0.95
    mixes: tuple[Mix, ...] = ()
    """One a dataset, and last the one over all datasets."""
    crossovers: tuple[Crossover, ...] = ()
    confirmations: tuple[Confirmation, ...] = ()
    unused_confirmations: tuple[UnusedConfirmation, ...] = ()
    drifts: tuple[Drift, ...] = ()
    visit_noise: float | None = None
    """Standard deviation of ln(objective) between two starts of the same server, that the intervals count with."""
    unfinished: Unfinished | None = None
    """None for a finished sweep, and in what was written before it was told."""
    warnings: tuple[str, ...] = ()
    """What to know before any figure, a sentence each."""
    recommendation: Recommendation | None
    """None while no setting can be recommended."""
