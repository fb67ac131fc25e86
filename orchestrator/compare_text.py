"""`orchestrator compare`: reads two sweeps' folders and prints how they differ."""

from collections.abc import Sequence

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.compare_sweeps import (
    Change,
    GainChange,
    Measured,
    Row,
    SweepComparison,
    compare_sweeps,
    config_differences,
)
from orchestrator.config import SelectionRules
from orchestrator.display import DASH, interval, number
from orchestrator.errors import ConfigError
from orchestrator.ledger import LedgerView
from orchestrator.one_engine import measured_with
from orchestrator.selection import Interval
from orchestrator.sweep_dir import SweepDir
from orchestrator.terminal import plain_table

STYLES: dict[Change | GainChange, str] = {
    "slower": "bold red",
    "less": "bold red",
    "faster": "bold green",
    "more": "bold green",
    "same": "",
    "open": "yellow",
    "other nodes": "dim",
}
MAX_NAMES = 6


def compare_folders(a: SweepDir, b: SweepDir) -> SweepComparison:
    """B against A by the selection rules of B.

    Raises:
        ConfigError: they have nothing in common.
    """
    rules = b.config().selection
    sides = [_measured(sweep, rules) for sweep in (a, b)]
    written = [yaml.safe_load((sweep.path / "config.yaml").read_text(encoding="utf-8")) for sweep in (a, b)]
    differences = config_differences(a.config(), b.config(), written)
    engines = (_engines(a.ledger()), _engines(b.ledger()))
    if engines[0] != engines[1]:
        differences["engine"] = engines
    contents_a, contents_b = (measured_with(sweep.ledger().visits()).local_models for sweep in (a, b))
    for model in contents_a.keys() & contents_b.keys():
        if contents_a[model] != contents_b[model]:
            differences[f"files of {model}"] = contents_a[model], contents_b[model]
    compared = compare_sweeps(sides[0], sides[1], rules, differences)
    if not compared.rows:
        names = [", ".join(workload.name for workload in sweep.plan().workloads) for sweep in (a, b)]
        raise ConfigError(
            f"{a.sweep_id} and {b.sweep_id} measured no arm of the same name on the same workload with at least two "
            f"blocks each (workloads: {names[0]}; and {names[1]})"
        )
    return compared


def _measured(sweep: SweepDir, rules: SelectionRules) -> Measured:
    ledger = sweep.ledger()
    return Measured.of(str(sweep.path.resolve()), sweep.plan(), ledger.valid_blocks(), rules, ledger.visits())


def print_comparison(compared: SweepComparison, a: str, b: str, out: Console) -> None:
    """The regressions first, in words; then every figure: gains, which need no common node, before tokens/s."""
    out.print(Text(f"A: {a}\nB: {b}"), soft_wrap=True)
    for key, (left, right) in compared.differences.items():
        out.print(Text(f"   {key}: {left} → {right}"), soft_wrap=True)
    if compared.nodes_a != compared.nodes_b:
        out.print(Text(f"   nodes: {_some(compared.nodes_a)} → {_some(compared.nodes_b)}"), soft_wrap=True)
    if compared.objective != "throughput":
        out.print(Text(f"   compared in selection.objective={compared.objective}"))
    out.print()
    for change, sentence in SENTENCES.items():
        found = [(row, ratio) for row, ratio in _changes(compared.rows, change) if ratio]
        named = ", ".join(f"{row.arm} on {row.workload} ({interval(ratio)}x)" for row, ratio in found) or "none"
        out.print(Text(f"{sentence}: {named}", style=STYLES[change] if found else ""), soft_wrap=True)
    if other := [row for row in compared.rows if row.change == "other nodes"]:
        out.print(
            f"Not comparable: tokens/s of {len(other)} of {len(compared.rows)} rows. A and B ran them on other nodes, "
            "and what nodes differ by cannot be known from one node a sweep. Gains can: each is against the baseline "
            "of its own node.",
            highlight=False,
        )
    out.print(_gains_table(compared.rows))
    out.print(_rates_table(compared.rows))
    if any(row.is_paired for row in compared.rows):
        out.print(
            "A → B is each sweep's own mean over all its blocks; the ratio beside it is of the blocks that both have.",
            highlight=False,
        )
    if not all(row.is_paired for row in compared.rows):
        out.print("* other prompts in A and B, so that the means are compared and not the blocks", highlight=False)
    for side, names in (("A", compared.only_in_a), ("B", compared.only_in_b)):
        if names:
            out.print(Text(f"Only in {side}: {_some(names)}"), soft_wrap=True)


SENTENCES: dict[Change | GainChange, str] = {
    "less": "Gains less on its baseline in B",
    "more": "Gains more on its baseline in B",
    "slower": "Slower in B",
    "faster": "Faster in B",
}


def _changes(rows: Sequence[Row], change: Change | GainChange) -> list[tuple[Row, Interval | None]]:
    gains = [(row, row.gain_ratio) for row in rows if row.gain_change == change]
    return gains if change in ("less", "more") else [(row, row.ratio) for row in rows if row.change == change]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


def _gains_table(rows: Sequence[Row]) -> Table:
    table = _table("gain on the\nbaseline, A → B", "B's gain / A's", "B gains")
    for row in rows:
        if row.gain_change:
            gains = f"{number(row.speedup_a)}→{number(row.speedup_b)}"
            _add(table, row, gains, row.gain_ratio, row.gain_change)
    return table


def _rates_table(rows: Sequence[Row]) -> Table:
    table = _table("tokens/s\nin A → B", "B / A", "B is")
    for row in rows:
        _add(table, row, f"{number(row.tokens_per_s_a)}→{number(row.tokens_per_s_b)}", row.ratio, row.change)
    return table


def _table(figures: str, ratio: str, change: str) -> Table:
    table = plain_table()
    for header in ("workload", "arm"):
        table.add_column(header, no_wrap=True)
    for header in (figures, ratio):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column(change, no_wrap=True)
    return table


def _add(table: Table, row: Row, figures: str, ratio: Interval | None, change: Change | GainChange) -> None:
    shown = f"{interval(ratio)}{'' if row.is_paired or ratio is None else '*'}"
    table.add_row(row.workload, row.arm, figures, shown, Text(change, style=STYLES[change]))


def _engines(ledger: LedgerView) -> str:
    return ", ".join(sorted({visit.engine_version for visit in ledger.visits() if visit.engine_version})) or DASH
