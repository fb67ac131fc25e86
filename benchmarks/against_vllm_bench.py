"""Our load generator against `vllm bench serve`, in turn on one server, over the same prompts.

    .venv/bin/python -m benchmarks.against_vllm_bench [--turns 3] [OVERRIDE ...]

The server is the first arm after the baseline of the configuration that the overrides describe; by default the padded
demo target with k = 7, since on the small one a run lasts two seconds and says little. Prints, per workload, the ratio
ours / theirs of output tokens per second (median of the turns, which go ours, theirs, theirs, ours, ...) and both
acceptance lengths. They should agree within 3 %.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from orchestrator.compose import compose
from orchestrator.inputs import load_prompts
from orchestrator.metrics import acceptance_length
from orchestrator.plan import Plan, PromptSet, plan_sweep
from orchestrator.records import Prompt, WorkloadCell
from tasks.counters import delta, read_counters
from tasks.load import Target, run_load
from tasks.server import VllmServer

DEFAULTS = ["model=demo_deep", "dataset@datasets=[demo_code,demo_math]", "speculation.num_speculative_tokens=[7]"]
READY_TIMEOUT_S = 900.0
BENCH_TIMEOUT_S = 600.0


class Figures(NamedTuple):
    output_tokens_per_s: float
    acceptance_length: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("overrides", nargs="*", default=DEFAULTS)
    options = parser.parse_args()
    config = compose(options.overrides)
    prompts = load_prompts(config)
    plan = plan_sweep(config, prompts)
    table = Table(
        "workload", "ours, tokens/s", "theirs", "ratio", "ratios of the turns", "acceptance length: ours", "theirs"
    )
    with tempfile.TemporaryDirectory() as folder:
        server = VllmServer(plan.arms[1].server, name=plan.arms[1].name, log_path=Path(folder) / "server.log")
        with server:
            server.wait_until_ready(timeout_s=READY_TIMEOUT_S)
            target = Target(base_url=server.base_url, api_key=server.api_key, model=server.model_name)
            for cell in plan.workloads:
                table.add_row(*_compare(target, cell, plan, prompts, options.turns, Path(folder)))
    Console().print(table)


def _compare(
    target: Target, cell: WorkloadCell, plan: Plan, prompts: dict[str, PromptSet], turns: int, folder: Path
) -> Sequence[str]:
    indices = [index for block in plan.blocks_of(cell.id) for index in block.prompt_indices]
    chosen = [(index, prompts[cell.dataset].prompts[index]) for index in indices]
    _ours(target, cell, chosen)  # warm-up
    ours, theirs = [], []
    for turn in range(turns):
        if turn % 2:
            theirs.append(_theirs(target, cell, chosen, folder))
            ours.append(_ours(target, cell, chosen))
        else:
            ours.append(_ours(target, cell, chosen))
            theirs.append(_theirs(target, cell, chosen, folder))
    ratios = [a.output_tokens_per_s / b.output_tokens_per_s for a, b in zip(ours, theirs, strict=True)]
    return [
        cell.name,
        f"{statistics.median(a.output_tokens_per_s for a in ours):.0f}",
        f"{statistics.median(b.output_tokens_per_s for b in theirs):.0f}",
        f"{statistics.median(ratios):.3f}",
        " ".join(f"{ratio:.3f}" for ratio in ratios),
        _length(ours),
        _length(theirs),
    ]


def _length(figures: Sequence[Figures]) -> str:
    known = [figure.acceptance_length for figure in figures if figure.acceptance_length is not None]
    return f"{statistics.fmean(known):.3f}" if known else "-"


def _ours(target: Target, cell: WorkloadCell, chosen: Sequence[tuple[int, Prompt]]) -> Figures:
    before = read_counters(target.base_url, target.api_key, timeout_s=10)
    load = run_load(target, chosen, cell)
    counters = delta(before, read_counters(target.base_url, target.api_key, timeout_s=10))
    tokens = sum(request.output_tokens or 0 for request in load.requests)
    return Figures(tokens / load.wall_s, acceptance_length(counters.spec) if counters.spec else None)


def _theirs(target: Target, cell: WorkloadCell, chosen: Sequence[tuple[int, Prompt]], folder: Path) -> Figures:
    data = write_prompts(folder / f"{cell.dataset}.jsonl", chosen)
    before = read_counters(target.base_url, target.api_key, timeout_s=10)
    done = subprocess.run(
        [
            *bench_command(target.base_url, target.model, cell, data, len(chosen)),
            *("--num-warmups", "0", "--ready-check-timeout-sec", "0"),
            *("--save-result", "--result-dir", str(folder), "--result-filename", "theirs.json"),
        ],
        check=False,
        timeout=BENCH_TIMEOUT_S,
        capture_output=True,
        text=True,
        env={**os.environ, "OPENAI_API_KEY": target.api_key or "", "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        raise RuntimeError(f"vllm bench serve ended with {done.returncode}:\n{done.stderr}")
    counters = delta(before, read_counters(target.base_url, target.api_key, timeout_s=10))
    result = json.loads((folder / "theirs.json").read_text())
    if result["completed"] != len(chosen):
        raise RuntimeError(f"vllm bench serve completed {result['completed']} of {len(chosen)} requests")
    return Figures(float(result["output_throughput"]), acceptance_length(counters.spec) if counters.spec else None)


def write_prompts(path: Path, chosen: Sequence[tuple[int, Prompt]]) -> Path:
    """The prompts as `vllm bench serve` reads its custom dataset; returns `path`."""
    path.write_text("".join(json.dumps({"prompt": prompt.messages[0].content}) + "\n" for _, prompt in chosen))
    return path


def bench_command(base_url: str, model: str, cell: WorkloadCell, data: Path, num_prompts: int) -> list[str]:
    """`vllm bench serve` over the prompts of `data`, driven as the cell says."""
    return [
        *(str(Path(sys.executable).parent / "vllm"), "bench", "serve", "--backend", "openai-chat"),
        *("--base-url", base_url, "--endpoint", "/v1/chat/completions", "--model", model),
        *("--dataset-name", "custom", "--dataset-path", str(data), "--skip-chat-template"),
        *("--custom-output-len", str(cell.output_len), "--temperature", str(cell.temperature)),
        *("--num-prompts", str(num_prompts), "--max-concurrency", str(cell.max_concurrency)),
        *("--ignore-eos", "--disable-shuffle", "--disable-tqdm"),
    ]


if __name__ == "__main__":
    main()
