"""How long planning and selecting take, and how much memory, for far more blocks than a sweep of today has.

    python -m benchmarks.scale [--blocks 100000] [--lines 1000000]

Plans `--blocks` blocks over made-up prompts, writes a made-up ledger of `--lines` blocks (both baselines, then arm by
arm), and selects from it. Every figure is taken in a process of its own; memory is the process's largest resident set.
"""

import argparse
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console

from orchestrator.config import Dataset, Drafter, Hardware, Model, Speculation, SweepConfig, Workload
from orchestrator.decide import decide
from orchestrator.ids import text_sha256
from orchestrator.ledger import LedgerFile
from orchestrator.plan import Plan, PromptSet, plan_sweep
from orchestrator.records import Arm, Block, BlockRecord, Message, Phase, Prompt, SpecCounters

GRID = (1, 2, 3, 5, 7, 9, 12, 15)
CONCURRENCIES = (1, 2, 3, 4)
PROMPTS_PER_BLOCK = 8
BLOCKS_PER_WORKLOAD = 1000
OUTPUT_LEN = 128
PROMPT_WORDS = 60


@dataclass(frozen=True)
class Cost:
    what: str
    wall_s: float
    cpu_s: float
    """Of this process: on a machine that others use too, wall_s holds them as well."""
    peak_mb: float


class Clock:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def cost(self, what: str) -> Cost:
        wall_s, cpu_s = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Cost(what, wall_s, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--lines", type=int, default=1_000_000)
    options = parser.parse_args()
    console = Console(soft_wrap=True, highlight=False)
    with tempfile.TemporaryDirectory(prefix="specsweep-scale-") as folder:
        ledger = Path(folder) / "ledger.jsonl"
        # A process begins with its parent's largest resident set, so this one makes nothing large itself.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
            processes.submit(write_ledger, ledger, options.blocks, options.lines).result()
            for work in (measure_planning, measure_reading, measure_selecting):
                cost = processes.submit(work, options.blocks, ledger).result()
                console.print(f"{cost.what}: {cost.wall_s:.1f} s ({cost.cpu_s:.1f} s CPU), {cost.peak_mb:,.0f} MB")


def measure_planning(num_blocks: int, _: Path) -> Cost:
    config, prompts = configuration(num_blocks)
    clock = Clock()
    plan = plan_sweep(config, prompts)
    return clock.cost(f"planning {len(plan.blocks):,} blocks")


def measure_reading(_: int, ledger: Path) -> Cost:
    clock = Clock()
    num_blocks = sum(1 for _ in LedgerFile(ledger).valid_blocks())
    return clock.cost(f"reading a ledger of {num_blocks:,} blocks")


def measure_selecting(num_blocks: int, ledger: Path) -> Cost:
    config, prompts = configuration(num_blocks)
    plan = plan_sweep(config, prompts)
    clock = Clock()
    found = LedgerFile(ledger)
    decided = decide(config, plan, found.valid_blocks())
    return clock.cost(f"selecting on {len(decided.workloads)} workloads from {found.num_records:,} lines")


def plan_for(num_blocks: int) -> Plan:
    return plan_sweep(*configuration(num_blocks))


def configuration(num_blocks: int) -> tuple[SweepConfig, dict[str, PromptSet]]:
    """As many datasets as `num_blocks` need at BLOCKS_PER_WORKLOAD and every concurrency; at least one."""
    names = [f"dataset{i}" for i in range(max(1, num_blocks // (BLOCKS_PER_WORKLOAD * len(CONCURRENCIES))))]
    config = SweepConfig(
        name="scale",
        hardware=Hardware(name="local"),
        model=Model(name="m", target="t", max_model_len=4096, drafters={"dflash": Drafter(model="d", block_size=16)}),
        datasets={name: Dataset(data_files=f"{name}.jsonl") for name in names},
        speculation=Speculation(method="dflash", num_speculative_tokens=GRID),
        workload=Workload(
            max_concurrency=CONCURRENCIES,
            num_blocks=num_blocks // (len(names) * len(CONCURRENCIES)),
            prompts_per_block=PROMPTS_PER_BLOCK,
            output_len=OUTPUT_LEN,
        ),
    )
    return config, {name: _prompts(name, config.workload.num_blocks * PROMPTS_PER_BLOCK) for name in names}


def _prompts(name: str, count: int) -> PromptSet:
    filler = "word " * PROMPT_WORDS
    prompts = tuple(Prompt(messages=(Message(role="user", content=f"{name} {i} {filler}"),)) for i in range(count))
    return PromptSet(prompts=prompts, num_read=count, num_too_long=0)


def write_ledger(path: Path, num_blocks: int, num_lines: int) -> None:
    """Opening baseline, arm by arm, closing baseline, cut at `num_lines`."""
    plan, draw = plan_for(num_blocks), random.Random(0)
    with path.open("w") as file:
        for record in islice(_records(plan, draw), num_lines):
            file.write(record.model_dump_json() + "\n")


def _records(plan: Plan, draw: random.Random) -> Iterator[BlockRecord]:
    phases: list[tuple[Phase, Arm]] = [("opening", plan.baseline), *(("arm", arm) for arm in plan.arms[1:])]
    for phase, arm in [*phases, ("closing", plan.baseline)]:
        for block in plan.blocks:
            yield _record(arm, block, phase, draw)


def _record(arm: Arm, block: Block, phase: Phase, draw: random.Random) -> BlockRecord:
    num_requests, k = len(block.prompt_indices), arm.num_speculative_tokens
    output_tokens = num_requests * OUTPUT_LEN
    tpot_s = tuple(draw.uniform(0.01, 0.03) for _ in range(num_requests))
    return BlockRecord(
        arm_id=arm.id,
        block_id=block.id,
        workload_id=block.workload_id,
        block_index=block.index,
        visit_id=f"{arm.name}-{phase}-{arm.id}",
        attempt=1,
        phase=phase,
        node="node-a",
        started_utc="2026-08-01T10:00:00.123456+00:00",
        wall_s=sum(tpot_s) * OUTPUT_LEN,
        num_requests=num_requests,
        prompt_tokens=100 * num_requests,
        output_tokens=output_tokens,
        counters=_counters(k, output_tokens, draw) if k else None,
        ttft_s=tuple(draw.uniform(0.05, 0.1) for _ in range(num_requests)),
        tpot_s=tpot_s,
        e2e_s=tuple(OUTPUT_LEN * tpot for tpot in tpot_s),
        itl_s={f"p{q}": draw.uniform(0.01, 0.1) for q in (50, 95, 99)},
        output_sha256=tuple(text_sha256(f"{block.id} {i}") for i in range(num_requests)),
        client_cpu_cores=0.05,
    )


def _counters(k: int, output_tokens: int, draw: random.Random) -> SpecCounters:
    num_drafts = output_tokens // draw.randint(2, 4)
    accepted = tuple(round(num_drafts * 0.8 ** (i + 1)) for i in range(k))
    return SpecCounters(
        num_drafts=num_drafts,
        num_draft_tokens=num_drafts * k,
        num_accepted_tokens=sum(accepted),
        num_accepted_tokens_per_pos=accepted,
    )


if __name__ == "__main__":
    main()
