"""Adaptive search against the exhaustive grid on the real engine, in turn, on this machine.

    .venv/bin/python -m benchmarks.adaptive_against_grid [--dir FOLDER] [OVERRIDE ...]

The demo pair, k in {0..15} x code, math, chat x concurrency {1, 4}; OVERRIDE changes that, as on the command line of
`orchestrator sweep`. Both sweeps confirm what they recommend. Prints, per workload, both choices and what the grid's
own measurements say the adaptive choice loses (as noisy as the grid: with its interval), and the machine time of both.
Run again in the same folder it goes on where it stopped.
"""

import argparse
import math
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from orchestrator.compare import Comparisons, compare_cells
from orchestrator.config import SelectionRules
from orchestrator.estimate import Paired, difference, estimate_all
from orchestrator.ledger import Ledger
from orchestrator.measured import fold
from orchestrator.records import WorkloadCell
from orchestrator.selection import Selection, WorkloadResult
from orchestrator.sweep_dir import SweepDir, find_sweep

GRID = "speculation.num_speculative_tokens=[" + ",".join(map(str, range(1, 16))) + "]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path("results"))
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    sweeps = {strategy: run(strategy, options.dir, options.overrides) for strategy in ("adaptive", "grid")}
    Console(soft_wrap=True).print(table(sweeps["adaptive"], sweeps["grid"]), markup=False, highlight=False)


def run(strategy: str, results_dir: Path, overrides: list[str]) -> SweepDir:
    """The sweep of that name; one that is complete is not measured again."""
    name = f"{strategy}-k0-15"
    if not (results_dir / name).exists() or "selection.json" not in {
        path.name for path in find_sweep(results_dir, name).path.iterdir()
    }:
        orchestrator = str(Path(sys.executable).with_name("orchestrator"))
        keys = [f"name={name}", f"search={strategy}", f"results_dir={results_dir}", "tracking=none", GRID, *overrides]
        subprocess.run([orchestrator, "sweep", *keys], check=True)
    return find_sweep(results_dir, name)


def table(adaptive: SweepDir, grid: SweepDir) -> str:
    """Markdown: a row per workload, then the sums."""
    rules = grid.config().selection
    ours, theirs = _selection(adaptive), _selection(grid)
    found = compare_cells(grid.plan(), fold(Ledger(grid.ledger_path).valid_blocks(), rules).cells, rules)
    lines = [
        "| workload | adaptive | grid | adaptive's choice by the grid's figures: loses % [95 % interval] |",
        "| --- | --- | --- | --- |",
    ]
    for cell, mine, other in zip(found.plan.workloads, ours.workloads, theirs.workloads, strict=True):
        lines.append(f"| {cell.name} | {_choice(mine)} | {_choice(other)} | {_loss(found, cell, mine, other, rules)} |")
    seconds = [_machine_s(sweep) for sweep in (adaptive, grid)]
    starts = [len(Ledger(sweep.ledger_path).visits()) for sweep in (adaptive, grid)]
    took = [f"{time:.0f} s in {number} server starts" for time, number in zip(seconds, starts, strict=True)]
    ratio = seconds[0] / seconds[1]
    return "\n".join([*lines, "", f"machine time: adaptive {took[0]}, grid {took[1]}; ratio {ratio:.3f}"])


def _selection(sweep: SweepDir) -> Selection:
    return Selection.model_validate_json((sweep.path / "selection.json").read_bytes())


def _choice(found: WorkloadResult) -> str:
    return found.best.arm if found.best else "undecided"


def _loss(
    found: Comparisons, cell: WorkloadCell, mine: WorkloadResult, other: WorkloadResult, rules: SelectionRules
) -> str:
    """An undecided workload runs the baseline."""
    names = {arm.name: arm.id for arm in found.plan.arms}
    chosen, best = (each.best.arm if each.best else "none" for each in (mine, other))
    if chosen == best:
        return "0"
    paired = found.paired(cell.id)
    itself = {block.id: Paired(0.0, {}) for block in found.plan.blocks_of(cell.id)}
    left, right = (paired.get(names[name], itself) for name in (best, chosen))
    ahead = estimate_all({"ahead": difference(left, right)}).get("ahead")
    if ahead is None:
        return "-"
    half = ahead.half_width(found.noise, rules.confidence)
    low, mean, high = (100 * (1 - math.exp(-value)) for value in (ahead.mean - half, ahead.mean, ahead.mean + half))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _machine_s(sweep: SweepDir) -> float:
    return math.fsum(visit.wall_s for visit in Ledger(sweep.ledger_path).visits())


if __name__ == "__main__":
    main()
