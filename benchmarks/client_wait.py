"""How long the load generator waits for a CPU beside the engine, and what that does to a block.

    .venv/bin/python -m benchmarks.client_wait [--rounds 3] [--num-speculative-tokens 15]

The demo's baseline (or that arm) on all cores, every planned block `--rounds` times with the load generator scheduled
as any process, and in turns in real time, for which it must be root (`tasks/real_time.py`). Prints, per workload, the
spread of throughput, how long the load generator waited, and the share of answers whose tokens came all at once.
"""

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from orchestrator.compose import compose
from orchestrator.inputs import load_prompts
from orchestrator.metrics import came_at_once
from orchestrator.plan import Plan, PromptSet, plan_sweep
from orchestrator.records import WorkloadCell
from tasks.load import Target, run_load, summarise
from tasks.real_time import in_real_time
from tasks.server import VllmServer

READY_TIMEOUT_S = 600.0
SCHEDULED = {"as any process": contextlib.nullcontext, "in real time": in_real_time}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-speculative-tokens", type=int, default=0)
    options = parser.parse_args()
    config = compose(["sweep=demo", "dataset@datasets=[demo_code]"])
    prompts = load_prompts(config)
    plan = plan_sweep(config, prompts)
    arm = next(each for each in plan.arms if each.num_speculative_tokens == options.num_speculative_tokens)
    table = Table("load generator", "workload", "tokens/s", "its spread, %", "waited, % of time", "all at once, %")
    with tempfile.TemporaryDirectory() as folder:
        log_path = Path(folder) / "server.log"
        with VllmServer(arm.server, name=arm.name, log_path=log_path) as server:
            server.wait_until_ready(timeout_s=READY_TIMEOUT_S)
            target = Target(base_url=server.base_url, api_key=server.api_key, model=server.model_name)
            for cell in plan.workloads:  # warm-up
                measure(plan, prompts, target, cell, Measured())
            found = {(name, cell.name): Measured() for name in SCHEDULED for cell in plan.workloads}
            for _ in range(options.rounds):  # in turns, since the machine's own pace wanders
                for name, scheduled in SCHEDULED.items():
                    with patch("tasks.load.in_real_time", scheduled):
                        for cell in plan.workloads:
                            measure(plan, prompts, target, cell, found[name, cell.name])
            for where, measured in found.items():
                table.add_row(*where, *measured.shown())
    Console(soft_wrap=True).print(table)


@dataclass
class Measured:
    """The blocks of one workload under one scheduler."""

    rates: list[float] = field(default_factory=list)
    waited_s: float = 0.0
    wall_s: float = 0.0
    at_once: list[bool | None] = field(default_factory=list)

    def shown(self) -> tuple[str, ...]:
        mean = statistics.fmean(self.rates)
        return (
            f"{mean:.0f} ({min(self.rates):.0f} to {max(self.rates):.0f})",
            f"{100 * statistics.stdev(self.rates) / mean:.1f}",
            f"{100 * self.waited_s / self.wall_s:.1f}",
            f"{100 * statistics.fmean(bool(each) for each in self.at_once):.1f}",
        )


def measure(
    plan: Plan, prompts: Mapping[str, PromptSet], target: Target, cell: WorkloadCell, measured: Measured
) -> None:
    for block in plan.blocks_of(cell.id):
        picked = [(index, prompts[cell.dataset].prompts[index]) for index in block.prompt_indices]
        load = run_load(target, picked, cell)
        measured.waited_s += (load.client_wait_share or 0.0) * load.wall_s
        measured.wall_s += load.wall_s
        found = summarise(load.requests, cell)
        measured.rates.append(found.output_tokens / load.wall_s)
        measured.at_once += [
            came_at_once(*times) for times in zip(found.ttft_s, found.tpot_s, found.e2e_s, strict=True)
        ]


if __name__ == "__main__":
    main()
