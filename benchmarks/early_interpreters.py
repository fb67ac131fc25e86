"""A server whose interpreters start side by side against plain `vllm serve`, in turns: start time and throughput.

    .venv/bin/python -m benchmarks.early_interpreters [--turns 3]

The padded demo target with DFlash k = 7 on the code prompts, at one and at four streams, caches warmed first. Prints
every turn and the median ratios early / plain. A ratio of starts below 1 is the gain; those of throughput should be 1.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from orchestrator.compose import compose
from orchestrator.inputs import load_prompts
from orchestrator.plan import Plan, PromptSet, plan_sweep
from tasks.load import Target, run_load
from tasks.server import VllmServer

OVERRIDES = ["model=demo_deep", "dataset@datasets=[demo_code]", "speculation.num_speculative_tokens=[7]"]
READY_TIMEOUT_S = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    config = compose(OVERRIDES)
    prompts = load_prompts(config)
    plan = plan_sweep(config, prompts)
    plain = (str(Path(sys.executable).parent / "vllm"),)
    measure(plan, prompts, None)  # warms the caches, and learns what the children are given
    table = Table(
        "turn", "start, s: early", "plain", *(f"{cell.name}, tokens/s: early, plain" for cell in plan.workloads)
    )
    ratios = []
    for turn in range(options.turns):
        order = (None, plain) if turn % 2 == 0 else (plain, None)
        found = {command: measure(plan, prompts, command) for command in order}
        pairs = list(zip(found[None], found[plain], strict=True))
        ratios.append([early / other for early, other in pairs])
        table.add_row(str(turn), *(f"{each:.1f}" for each in pairs[0]), *(f"{e:.0f}, {p:.0f}" for e, p in pairs[1:]))
    medians = [f"{statistics.median(column):.3f}" for column in zip(*ratios, strict=True)]
    table.add_row("median ratio", medians[0], "", *medians[1:])
    Console(soft_wrap=True).print(table)


def measure(plan: Plan, prompts: Mapping[str, PromptSet], command: tuple[str, ...] | None) -> list[float]:
    """Seconds until the server is ready, then tokens/s on each workload."""
    spec = plan.arms[1].server.model_copy(update={"command": command})
    with tempfile.TemporaryDirectory() as folder:
        server = VllmServer(spec, name="early" if command is None else "plain", log_path=Path(folder) / "server.log")
        with server:
            found = [server.wait_until_ready(timeout_s=READY_TIMEOUT_S)]
            target = Target(base_url=server.base_url, api_key=server.api_key, model=server.model_name)
            for cell in plan.workloads:
                usable = prompts[cell.dataset].prompts
                chosen = [(at, usable[at]) for block in plan.blocks_of(cell.id) for at in block.prompt_indices]
                run_load(target, chosen[:4], cell)
                load = run_load(target, chosen, cell)
                found.append(sum(request.output_tokens or 0 for request in load.requests) / load.wall_s)
    return found


if __name__ == "__main__":
    main()
