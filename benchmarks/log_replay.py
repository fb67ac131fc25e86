"""How exactly a request log is replayed: when each request was sent against when it was due.

    .venv/bin/python -m benchmarks.log_replay [--standin] [--speeds 1 4] [KEY=VALUE ...]

A log of 120 requests with ISO times, busy and quiet spells in turn, is written from the demo's code prompts, and
replayed on the demo pair without and with DFlash k = 7 (or on the stand-in server, whose steps then take CPU time as an
engine's do). Deviation is |sent - due| as a share of `due`, the time since the replay's start.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from orchestrator.compose import compose
from orchestrator.config import SweepConfig
from orchestrator.inputs import load_prompts
from orchestrator.plan import Plan, PromptSet, plan_sweep
from orchestrator.records import Arm, WorkloadCell
from tasks.arrival import due_times_s
from tasks.demo import resolve_data_file
from tasks.host import take_normal_priority
from tasks.load import LoadResult, Target, run_load, summarise
from tasks.server import VllmServer

NUM_REQUESTS = 120
RATES = (2.0, 10.0)
"""Requests/s of the log's quiet and busy spells."""
SPELL = 20
"""Requests in one spell."""
STANDIN = (sys.executable, str(Path(__file__).parents[1] / "tests/standin/server.py"))
READY_TIMEOUT_S = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--standin", action="store_true")
    parser.add_argument("--speeds", type=float, nargs="+", default=[1, 4])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    take_normal_priority()
    with tempfile.TemporaryDirectory() as folder:
        config = configure(write_log(Path(folder)), options.speeds, options.overrides, options.standin)
        prompts = load_prompts(config)
        plan = plan_sweep(config, prompts)
        late = ("late, ms: median, p95, max", "deviation, %: median, p95, max")
        table = Table("arm", "workload", "requests/s due", "requests/s sent", *late)
        for arm in plan.arms:
            for row in replay(arm, plan, prompts["request_log"], Path(folder)):
                table.add_row(arm.name, *row)
        Console(width=160).print(table)


def configure(log: Path, speeds: Sequence[float], overrides: Sequence[str], standin: bool) -> SweepConfig:
    engine = [f"server.command=[{','.join(STANDIN)}]", "server.extra_args=[--standin-busy]"] if standin else []
    return compose(
        [
            "dataset@datasets=[request_log]",
            f"datasets.request_log.data_files={log}",
            "workload=replay",
            f"workload.log_speed=[{','.join(f'{speed:g}' for speed in speeds)}]",
            f"workload.prompts_per_block={NUM_REQUESTS // 2}",
            "workload.num_blocks=2",
            "workload.output_len=32",
            "search=grid",
            "selection=latency",
            "speculation.num_speculative_tokens=[7]",
            *engine,
            *overrides,
        ]
    )


def write_log(folder: Path) -> Path:
    draw, time = random.Random(0), datetime(2026, 8, 1, 10, tzinfo=UTC)
    texts = Path(resolve_data_file("demo://prompts/code.jsonl")).read_text(encoding="utf-8").splitlines()
    path = folder / "log.jsonl"
    with path.open("w", encoding="utf-8") as lines:
        for number in range(NUM_REQUESTS):
            messages = [{"role": "user", "content": json.loads(texts[number])["prompt"]}]
            row = {"timestamp": time.isoformat(), "body": {"messages": messages, "max_tokens": 32}}
            lines.write(json.dumps(row) + "\n")
            time += timedelta(seconds=draw.expovariate(RATES[number // SPELL % 2]))
    return path


def replay(arm: Arm, plan: Plan, prompts: PromptSet, folder: Path) -> list[list[str]]:
    """A row a workload, over all blocks."""
    rows = []
    with VllmServer(arm.server, name=arm.name, log_path=folder / f"{arm.name}.log") as server:
        server.wait_until_ready(timeout_s=READY_TIMEOUT_S)
        target = Target(base_url=server.base_url, api_key=server.api_key, model=server.model_name)
        for cell in plan.workloads:
            loads = []
            for block in plan.blocks_of(cell.id):
                asked = [(index, prompts.prompts[index]) for index in block.prompt_indices]
                due_s = due_times_s(cell, block.index, [prompt for _, prompt in asked])
                loads.append(run_load(target, asked, cell, due_s))
            rows.append(_row(cell, loads))
    return rows


def _row(cell: WorkloadCell, loads: Sequence[LoadResult]) -> list[str]:
    requests = [request for load in loads for request in load.requests]
    due, sent = (np.array([getattr(r, key) for r in requests], dtype=float) for key in ("due_s", "sent_s"))
    late_ms, later = 1000 * (sent - due), due > 0
    facts = [facts for load in loads if (facts := summarise(load.requests, cell).open_loop)]
    rates = [facts.offered_requests_per_s or 0.0 for facts in facts]
    spans = [load.requests[-1].sent_s - load.requests[0].sent_s for load in loads]
    failed = sum(request.error is not None for request in requests)
    return [
        cell.name + (f" ({failed} failed)" if failed else ""),
        ", ".join(f"{rate:.4g}" for rate in rates),
        ", ".join(f"{(len(load.requests) - 1) / span:.4g}" for load, span in zip(loads, spans, strict=True)),
        _figures(late_ms),
        _figures(100 * late_ms[later] / 1000 / due[later]),
    ]


def _figures(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> str:
    return ", ".join(f"{value:.3g}" for value in (*np.quantile(values, [0.5, 0.95]), values.max()))


if __name__ == "__main__":
    main()
