"""Simulated machines for `simulate_search`: what each k truly gives on each workload, and how measurements scatter."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.random import Generator

from orchestrator.plan import Plan
from orchestrator.records import SCHEDULE_KEY, Arm, Block, BlockRecord, SpecCounters, Visit, VisitRecord, WorkloadCell

KINDS = ("monotone", "middle", "jagged", "flat", "no gain")
START_S = 27.0
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
OUTPUT_LEN = 128
LARGEST_K = 15


@dataclass(frozen=True)
class Landscape:
    """True figures: `survival` by dataset (per position of the longest draft), `step` by concurrency and k (time per
    step over the baseline's), `cell` by workload and k (what each combination has for itself, as a log)."""

    kind: str
    survival: Mapping[str, tuple[float, ...]]
    step: Mapping[int, tuple[float, ...]]
    cell: Mapping[tuple[str, int], tuple[float, ...]]
    prefill_steps: float
    """Prefill of a request, in steps of the baseline."""
    shorter_is_surer: float
    """Share by which survival is higher in a draft of one token than in the longest."""
    baseline_tokens_per_s: Mapping[int, float]

    def shares(self, dataset: str, k: int) -> tuple[float, ...]:
        """Survival per position of drafts of `k` tokens."""
        surer = 1 + self.shorter_is_surer * (LARGEST_K - k) / LARGEST_K
        return tuple(min(1.0, share * surer) for share in self.survival[dataset][:k])

    def tokens_per_s(self, cell: WorkloadCell, k: int) -> float:
        """The true throughput; k = 0 is the baseline."""
        per_step = 1 + sum(self.shares(cell.dataset, k))
        time = self.prefill_steps + OUTPUT_LEN / per_step * self.step[int(cell.level)][k]
        relative = (self.prefill_steps + OUTPUT_LEN) / time
        own = self.cell[cell.dataset, int(cell.level)][k]
        return self.baseline_tokens_per_s[int(cell.level)] * relative * math.exp(own)


def draw_landscape(kind: str, plan: Plan, rng: Generator) -> Landscape:
    """A machine and a model of that kind; figures in the range of the measured ones (see the results page)."""
    datasets = list(dict.fromkeys(cell.dataset for cell in plan.workloads))
    levels = sorted({int(cell.level) for cell in plan.workloads})
    chances = {"monotone": (0.95, 0.995), "no gain": (0.1, 0.5), "flat": (0.6, 0.8)}
    low, high = chances.get(kind, (0.5, 0.93))
    one = rng.uniform(low, high)
    survival = {name: _survival(one if kind == "flat" else rng.uniform(low, high), rng) for name in datasets}
    step = {level: _step(kind, survival[datasets[0]], level, rng) for level in levels}
    own_sd = 0.03 if kind == "jagged" else 0.01
    cell = {(name, level): (0.0, *rng.normal(0, own_sd, LARGEST_K).tolist()) for name in datasets for level in levels}
    rate = math.exp(rng.uniform(math.log(100), math.log(900)))
    return Landscape(
        kind=kind,
        survival=survival,
        step=step,
        cell=cell,
        prefill_steps=rng.uniform(0.5, 3),
        shorter_is_surer=rng.uniform(0, 0.03),
        baseline_tokens_per_s={level: rate * level ** rng.uniform(0.5, 0.9) for level in levels},
    )


def _survival(chance: float, rng: Generator) -> tuple[float, ...]:
    """Falls by `chance` per position, which itself falls slowly along the draft."""
    fading = rng.uniform(0.99, 1.0)
    chances = chance * fading ** np.arange(LARGEST_K)
    return tuple(np.cumprod(chances).tolist())


def _step(kind: str, survival: tuple[float, ...], level: int, rng: Generator) -> tuple[float, ...]:
    """Time per step by k, k = 0 first: a fixed cost of drafting, a slope that grows with the concurrency, roughness."""
    k = np.arange(1, LARGEST_K + 1)
    if kind == "flat":
        times = (1 + np.cumsum(survival)) / rng.uniform(1.02, 1.4)
    else:
        fixed = rng.uniform(0.4, 1.0) if kind == "no gain" else rng.uniform(0.05, 0.9)
        slopes = {"monotone": (0.005, 0.03), "no gain": (0.08, 0.3)}
        slope = rng.uniform(*slopes.get(kind, (0.05, 0.2))) * level**0.4
        times = 1 + fixed + slope * k ** rng.uniform(0.85, 1.15)
    roughness = rng.uniform(0.05, 0.12) if kind == "jagged" else rng.uniform(0.0, 0.015)
    return (1.0, *(times * np.exp(rng.normal(0, roughness, LARGEST_K))).tolist())


def k_at(arm: Arm, level: int) -> int:
    """What the arm drafts at that concurrency: its k, or its schedule's."""
    config: dict[str, Any] = dict(arm.server.speculative_config or {})
    ranges = config.get(SCHEDULE_KEY, [[1, level, arm.num_speculative_tokens]])
    return next(int(k) for first, last, k in ranges if first <= level <= last)


@dataclass
class Machine:
    """Measures visits: the truth times noise of block, visit and node. Counts its own time, seconds."""

    plan: Plan
    truth: Landscape
    rng: Generator
    block_sd: float
    visit_sd: float
    node_sd: float
    spent_s: float = 0.0
    clock_s: dict[str, float] = field(default_factory=dict)
    """Node -> its time since the start."""
    num_starts: int = 0
    _content: dict[str, float] = field(default_factory=dict)
    _nodes: dict[str, float] = field(default_factory=dict)

    def run(self, visit: Visit) -> list[BlockRecord | VisitRecord]:
        """What the ledger gets of a visit that goes well."""
        node = self._nodes.setdefault(visit.node, self.rng.normal(0, self.node_sd))
        shift = node + self.rng.normal(0, self.visit_sd)
        by_id = {block.id: block for block in self.plan.blocks}
        started_utc = self._utc(visit.node)
        self._pass(visit.node, START_S)
        blocks = [self._measure(visit, by_id[block_id], shift) for block_id in visit.block_ids]
        blocks_s = sum(block.wall_s for block in blocks)
        warmup_s = sum({block.workload_id: block.wall_s / block.num_requests for block in blocks}.values())
        wall_s = START_S + warmup_s + blocks_s
        self.spent_s += wall_s
        self.num_starts += 1
        record = VisitRecord(
            visit_id=visit.id,
            arm_id=visit.arm.id,
            attempt=visit.attempt,
            phase=visit.phase,
            node=visit.node,
            started_utc=started_utc,
            warmup_s=warmup_s,
            blocks_s=blocks_s,
            wall_s=wall_s,
            num_blocks=len(blocks),
        )
        return [*blocks, record]

    def _measure(self, visit: Visit, block: Block, shift: float) -> BlockRecord:
        cell = next(cell for cell in self.plan.workloads if cell.id == block.workload_id)
        k = k_at(visit.arm, int(cell.level))
        content = self._content.setdefault(block.id, self.rng.normal(0, self.block_sd))
        # The ratio of two arms on one block scatters by block_sd; what the block's prompts do to both alike cancels.
        noise = shift + content + self.rng.normal(0, self.block_sd / math.sqrt(2))
        output_tokens = OUTPUT_LEN * len(block.prompt_indices)
        wall_s = output_tokens / (self.truth.tokens_per_s(cell, k) * math.exp(noise))
        started_utc = self._utc(visit.node)
        self._pass(visit.node, wall_s)
        return BlockRecord(
            arm_id=visit.arm.id,
            block_id=block.id,
            workload_id=block.workload_id,
            block_index=block.index,
            visit_id=visit.id,
            attempt=visit.attempt,
            phase=visit.phase,
            node=visit.node,
            started_utc=started_utc,
            wall_s=wall_s,
            num_requests=len(block.prompt_indices),
            prompt_tokens=0,
            output_tokens=output_tokens,
            counters=self._counters(cell.dataset, k, output_tokens) if k else None,
            ttft_s=(),
            tpot_s=(),
            e2e_s=(),
            itl_s={},
            output_sha256=("",) * len(block.prompt_indices),
            client_cpu_cores=0.0,
        )

    def _utc(self, node: str) -> str:
        return (BEGUN + timedelta(seconds=self.clock_s.get(node, 0.0))).isoformat()

    def _pass(self, node: str, seconds: float) -> None:
        self.clock_s[node] = self.clock_s.get(node, 0.0) + seconds

    def _counters(self, dataset: str, k: int, output_tokens: int) -> SpecCounters:
        shares = self.truth.shares(dataset, k)
        num_drafts = round(output_tokens / (1 + sum(shares)))
        alive, accepted = num_drafts, []
        for share, before in zip(shares, (1.0, *shares), strict=False):
            alive = int(self.rng.binomial(alive, min(1.0, share / before if before else 0.0)))
            accepted.append(alive)
        return SpecCounters(
            num_drafts=num_drafts,
            num_draft_tokens=num_drafts * k,
            num_accepted_tokens=sum(accepted),
            num_accepted_tokens_per_pos=tuple(accepted),
        )
