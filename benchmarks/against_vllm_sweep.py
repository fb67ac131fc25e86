"""Our grid against `vllm bench sweep serve`, one after the other, over the same cells and prompts.

    .venv/bin/python -m benchmarks.against_vllm_sweep [OVERRIDE ...]

The cells are those of the configuration that the overrides describe; by default the demo: baseline and k = 1, 3, 7, 15
on code, math and chat, at one and four streams. Both sides take the same server flags, environment and warm caches (one
baseline and one speculating server are started first, untimed) and send every prompt once. Theirs starts each server
once; ours is the whole `orchestrator sweep`, so it starts the baseline twice, warms up each cell, writes its report and
records in MLflow. Prints both wall times, how they are spent, and the ratio ours / theirs.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.against_vllm_bench import bench_command, write_prompts
from orchestrator.compose import compose
from orchestrator.inputs import load_prompts
from orchestrator.ledger import Ledger
from orchestrator.plan import Plan, plan_sweep
from orchestrator.records import Prompt, WorkloadCell
from orchestrator.sweep_dir import find_sweep
from orchestrator.time_split import time_split
from tasks.server import VllmServer
from tasks.server_command import engine_command, preloaded_libraries, server_argv, server_env
from tasks.server_http import HOST, free_port

READY_TIMEOUT_S = 900.0
DEFAULTS = ["sweep=demo", "search=grid", "search.confirm=false"]
NAME = "against-vllm-sweep"


class Cell(NamedTuple):
    workload: WorkloadCell
    chosen: list[tuple[int, Prompt]]


class Split(NamedTuple):
    """Seconds of wall time; what is in none of the three parts is the rest."""

    wall_s: float
    start_s: float
    load_s: float
    """From the first request of a cell, or of one of its blocks, to the last answer."""
    client_s: float
    """What else belongs to measuring a cell: a client's start, warm-up, counters."""

    @property
    def rest_s(self) -> float:
        return self.wall_s - self.start_s - self.load_s - self.client_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", default=DEFAULTS)
    overrides = parser.parse_args().overrides
    config = compose(overrides)
    prompts = load_prompts(config)
    plan = plan_sweep(config, prompts)
    cells = []
    for cell in plan.workloads:
        indices = [index for block in plan.blocks_of(cell.id) for index in block.prompt_indices]
        cells.append(Cell(cell, [(index, prompts[cell.dataset].prompts[index]) for index in indices]))
    with tempfile.TemporaryDirectory() as folder:
        _warm_caches(plan, Path(folder))
        theirs = _theirs(plan, cells, Path(folder))
        ours = _ours(overrides, Path(folder))
    table = Table("", "wall, s", "server starts", "load", "client", "rest")
    for name, split in (("ours", ours), ("vllm bench sweep serve", theirs)):
        parts = (split.wall_s, split.start_s, split.load_s, split.client_s, split.rest_s)
        table.add_row(name, *(f"{seconds:.0f}" for seconds in parts))
    Console().print(table)
    Console().print(f"{len(plan.arms)} arms x {len(cells)} cells: ours / theirs = {ours.wall_s / theirs.wall_s:.2f}")


def _warm_caches(plan: Plan, folder: Path) -> None:
    for arm in plan.arms[:2]:
        with VllmServer(arm.server, name=arm.name, log_path=folder / "warm.log") as server:
            server.wait_until_ready(timeout_s=READY_TIMEOUT_S)


def _ours(overrides: list[str], folder: Path) -> Split:
    mine = [f"name={NAME}", f"results_dir={folder}/ours", f"tracking.uri=sqlite:///{folder}/mlflow.db"]
    command = [str(Path(sys.executable).parent / "orchestrator"), "sweep", *overrides, *mine]
    begun = time.monotonic()
    subprocess.run(command, check=True, stdout=sys.stderr)
    wall_s = time.monotonic() - begun
    ledger = Ledger(find_sweep(folder / "ours", NAME).ledger_path)
    split = time_split(ledger.sessions(), ledger.visits(), ledger.blocks())
    load_s = sum(block.wall_s for block in ledger.blocks())
    return Split(wall_s, split.server_start_s, load_s, split.load_s - load_s + split.warmup_s)


def _theirs(plan: Plan, cells: Sequence[Cell], folder: Path) -> Split:
    command, environment = _their_command(plan, cells, folder)
    begun = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as sweep:
        assert sweep.stdout is not None
        marks = [(line.strip(), time.monotonic()) for line in sweep.stdout if line.startswith("[")]
    wall_s = time.monotonic() - begun
    results = [json.loads(path.read_text()) for path in (folder / "theirs").rglob("run=*.json")]
    completed = sum(result["completed"] for result in results)
    wanted = len(plan.arms) * sum(len(cell.chosen) for cell in cells)
    if sweep.returncode or completed != wanted:
        raise RuntimeError(f"vllm bench sweep serve ended with {sweep.returncode}, {completed} of {wanted} requests")
    load_s = sum(float(result["duration"]) for result in results)
    client_s = _between(marks, "[BEGIN BENCHMARK]", "[END BENCHMARK]") - load_s
    return Split(wall_s, _between(marks, "[BEGIN SERVER]", "[BEGIN BENCHMARK]"), load_s, client_s)


def _their_command(plan: Plan, cells: Sequence[Cell], folder: Path) -> tuple[list[str], dict[str, str]]:
    """Their sweep with the plan's arms as serve parameters and its cells as bench parameters, and its environment."""
    servers = {arm.name: VllmServer(arm.server, name=arm.name, log_path=folder / "theirs.log") for arm in plan.arms}
    baseline = servers[plan.baseline.name]
    spec = baseline.spec.model_copy(update={"command": tuple(engine_command(baseline.spec))})
    port = free_port()
    data = {cell.workload.name: write_prompts(folder / f"{cell.workload.name}.jsonl", cell.chosen) for cell in cells}
    first = cells[0].workload
    client = bench_command(f"http://{HOST}:{port}", spec.target, first, data[first.name], len(cells[0].chosen))
    arms = {
        name: {"speculative-config": server.spec.speculative_config} if server.spec.speculative_config else {}
        for name, server in servers.items()
    }
    loads = {
        cell.workload.name: {
            "dataset-path": str(data[cell.workload.name]),
            "num-prompts": len(cell.chosen),
            "max-concurrency": cell.workload.max_concurrency,
        }
        for cell in cells
    }
    command = [
        *(str(Path(sys.executable).parent / "vllm"), "bench", "sweep", "serve", "--num-runs", "1"),
        *("--serve-cmd", shlex.join(server_argv(spec, host=HOST, port=port))),
        *("--bench-cmd", shlex.join(client)),
        *("--serve-params", _json_file(folder / "serve_params.json", arms)),
        *("--bench-params", _json_file(folder / "bench_params.json", loads)),
        *("--output-dir", str(folder / "theirs"), "--experiment-name", "once"),
    ]
    environment = server_env(spec, api_key="", preload=preloaded_libraries(spec), inherited=os.environ)
    del environment["VLLM_API_KEY"]  # their client sends none
    return command, environment


def _json_file(path: Path, content: object) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def _between(marks: Iterable[tuple[str, float]], begin: str, end: str) -> float:
    """Seconds from each `begin` to the next `end`, summed."""
    total_s, begun = 0.0, None
    for mark, at in marks:
        if mark == begin and begun is None:
            begun = at
        elif mark == end and begun is not None:
            total_s, begun = total_s + at - begun, None
    return total_s


if __name__ == "__main__":
    main()
