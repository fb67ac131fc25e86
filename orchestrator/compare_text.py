"""`orchestrator compare`: reads two sweeps' folders and prints how they differ."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.compare_sweeps import Change, Measured, Row, SweepComparison, compare_sweeps, config_differences
from orchestrator.display import DASH, interval, number
from orchestrator.errors import ConfigError
from orchestrator.ledger import LedgerView
from orchestrator.sweep_dir import SweepDir

STYLES: dict[Change, str] = {"slower": "bold red", "faster": "bold green", "same": "", "open": "yellow"}
MAX_NAMES = 6


def compare_folders(a: SweepDir, b: SweepDir) -> SweepComparison:
    """B against A by the selection rules of B.

    Raises:
        ConfigError: they have nothing in common.
    """
    rules = b.config().selection
    sides = [Measured.of(sweep.plan(), sweep.ledger().valid_blocks(), rules) for sweep in (a, b)]
    differences = config_differences(a.config(), b.config())
    engines = (_engines(a.ledger()), _engines(b.ledger()))
    if engines[0] != engines[1]:
        differences["engine"] = engines
    compared = compare_sweeps(sides[0], sides[1], rules, differences)
    if not compared.rows:
        names = [", ".join(workload.name for workload in sweep.plan().workloads) for sweep in (a, b)]
        raise ConfigError(
            f"{a.sweep_id} and {b.sweep_id} measured no arm of the same name on the same workload with at least two "
            f"blocks each (workloads: {names[0]}; and {names[1]})"
        )
    return compared


def print_comparison(compared: SweepComparison, a: str, b: str, out: Console) -> None:
    """The regressions first, in words; then every figure."""
    out.print(Text(f"A: {a}\nB: {b}"), soft_wrap=True)
    for key, (left, right) in compared.differences.items():
        out.print(Text(f"   {key}: {left} → {right}"), soft_wrap=True)
    if compared.objective != "throughput":
        out.print(Text(f"   compared in selection.objective={compared.objective}"))
    out.print()
    for change, verb in (("slower", "Slower in B"), ("faster", "Faster in B")):
        found = [row for row in compared.rows if row.change == change]
        out.print(Text(f"{verb}: {_named(found)}", style=STYLES[change] if found else ""), soft_wrap=True)  # type: ignore[index]
    out.print(_table(compared.rows))
    if not all(row.is_paired for row in compared.rows):
        out.print("* other prompts in A and B, so that the means are compared and not the blocks", highlight=False)
    for side, names in (("A", compared.only_in_a), ("B", compared.only_in_b)):
        if names:
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            out.print(Text(f"Only in {side}: {', '.join(names[:MAX_NAMES])}{more}"), soft_wrap=True)


def _named(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row.arm} on {row.workload} ({interval(row.ratio)}x)" for row in rows) or "none"


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for header in ("workload", "arm"):
        table.add_column(header, no_wrap=True)
    for header in ("tokens/s\nin A → B", "B / A", "gain\nin A → B"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("B is", no_wrap=True)
    for row in rows:
        table.add_row(
            row.workload,
            row.arm,
            f"{number(row.tokens_per_s_a)}→{number(row.tokens_per_s_b)}",
            f"{interval(row.ratio)}{'' if row.is_paired else '*'}",
            f"{number(row.speedup_a)}→{number(row.speedup_b)}" if row.speedup_a or row.speedup_b else DASH,
            Text(row.change, style=STYLES[row.change]),
        )
    return table


def _engines(ledger: LedgerView) -> str:
    return ", ".join(sorted({visit.engine_version for visit in ledger.visits() if visit.engine_version})) or DASH
