"""The schema of selection.json, version 1. How it is decided is in `select.py`."""

from typing import Literal

from pydantic import Field, JsonValue

from orchestrator.config import Strict

Verdict = Literal["speculate", "baseline", "undecided"]


class Interval(Strict):
    mean: float
    ci_low: float
    ci_high: float


class Quantiles(Strict):
    p50: float
    p95: float


class Choice(Strict):
    method: str
    num_speculative_tokens: int


class ArmResult(Strict):
    """One arm on one workload. None where nothing (or nothing valid) was measured."""

    method: str
    num_speculative_tokens: int
    num_blocks: int
    num_requests: int
    output_tokens_per_s: Interval | None
    speedup: Interval | None
    """Against the baseline on the same blocks; None for the baseline itself."""
    acceptance_length: float | None
    acceptance_rate: float | None
    survival: tuple[float, ...] | None
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None
    usd_per_million_output_tokens: float | None
    outputs_match_baseline: float | None
    """Share (0..1) of prompts whose output is identical to the baseline's; None where temperature > 0."""


class WorkloadResult(Strict):
    dataset: str
    max_concurrency: int
    output_len: int
    verdict: Verdict
    reason: str
    best: Choice | None
    """What to run; None while undecided."""
    arms: tuple[ArmResult, ...]


class Schedule(Strict):
    dataset: str
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...]
    """vLLM's form: [first batch size, last batch size, num_speculative_tokens]."""


class Recommendation(Strict):
    """One static setting for all measured workloads together, ready to paste."""

    speculative_config: dict[str, JsonValue] | None
    """None: run without speculation."""
    vllm_serve: str
    docker_run: str


class Provenance(Strict):
    git_commit: str | None
    versions: dict[str, str]
    hardware: dict[str, JsonValue]
    plan_id: str
    nodes_set_aside: dict[str, str] = Field(default_factory=dict)
    """Node -> why nothing that it measured counts."""


class Selection(Strict):
    schema_version: Literal[1] = 1
    sweep_id: str
    created_utc: str
    simulated: bool
    provenance: Provenance
    workloads: tuple[WorkloadResult, ...]
    schedules: tuple[Schedule, ...]
    recommendation: Recommendation | None
    """None while no setting can be recommended."""
