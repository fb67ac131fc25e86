"""The result in a terminal. Made for 100 columns, whole at 80, and readable without colour."""

import json

from rich import box
from rich.table import Table
from rich.text import Text

from orchestrator.check import Check
from orchestrator.display import (
    arm_name,
    decision_row,
    headline,
    interval,
    is_best,
    milliseconds,
    number,
    percent,
    workload_name,
)
from orchestrator.drift_text import drift_warning
from orchestrator.hardware_comparison import HardwareComparison
from orchestrator.selection import Recommendation, Selection, Verdict
from orchestrator.unfinished import unfinished_text

MAX_NAMED = 4
"""Arms whose outputs differ; the report has them all."""
STYLES: dict[Verdict, str] = {"speculate": "bold green", "baseline": "bold cyan", "undecided": "bold yellow"}


def verdict_table(selection: Selection) -> Table:
    """One row per workload, and the reasons below it: in a column of their own they would not fit 80 columns."""
    figures = _table("workload", "verdict", "best", right=("speedup", "tokens/s", "accept.\nlength"))
    reasons = Table.grid(padding=(0, 2))
    for workload in selection.workloads:
        row, style = decision_row(workload), STYLES[workload.verdict]
        rate = row.baseline_tokens_per_s
        if workload.verdict == "speculate":
            rate += f" → {row.best_tokens_per_s}"
        figures.add_row(
            Text(row.workload),
            Text(workload.verdict, style=style),
            Text(row.best),
            Text(row.speedup),
            Text(rate),
            Text(row.acceptance_length),
        )
        reasons.add_row(Text(f" {row.workload}"), Text(row.reason))
    whole = Table.grid()
    if selection.unfinished:
        whole.add_row(Text(f" {unfinished_text(selection.unfinished)}", style="bold yellow"))
    whole.add_row(Text(f" {headline(selection)}", style="bold"))
    if selection.simulated:
        whole.add_row(Text(" Simulated: no engine was measured.", style="bold yellow"))
    for warning in selection.warnings:
        whole.add_row(Text(f" {warning}", style="yellow"))
    for node, reason in selection.provenance.nodes_set_aside.items():
        whole.add_row(Text(f" Node {node} was set aside: {reason}.", style="yellow"))
    for node, reason in selection.provenance.nodes_unclosed.items():
        whole.add_row(Text(f" Node {node} {reason}.", style="yellow"))
    if drifted := drift_warning(selection.drifts):
        whole.add_row(Text(f" {drifted}", style="yellow"))
    whole.add_row(figures)
    whole.add_row(reasons)
    different = _different_outputs(selection)
    if different:
        whole.add_row(Text(f" {different}", style="yellow"))
    return whole


def _different_outputs(selection: Selection) -> str | None:
    """None where every output compared is the baseline's."""
    arms = [
        f"{arm_name(arm)} on {workload_name(workload)} ({percent(1 - arm.outputs_match_baseline)} %)"
        for workload in selection.workloads
        for arm in workload.arms
        if arm.outputs_match_baseline is not None and arm.outputs_match_baseline < 1
    ]
    if not arms:
        return None
    more = f" and {len(arms) - MAX_NAMED} more" if len(arms) > MAX_NAMED else ""
    return f"Outputs differ from the baseline's: {', '.join(arms[:MAX_NAMED])}{more}; the report says where."


def hardware_table(comparison: HardwareComparison) -> Table:
    """One row per workload and hardware, the cheapest first."""
    table = _table("workload", "hardware", "verdict", "setting", right=("speedup", "tokens/s", "USD per\n1M tokens"))
    for workload in comparison.workloads:
        name = workload.name
        for figure in workload.figures:
            cells = [
                name,
                figure.hardware,
                figure.verdict,
                arm_name(figure.best) if figure.best else "baseline",
                number(figure.speedup.mean if figure.speedup else None),
                number(figure.output_tokens_per_s.mean if figure.output_tokens_per_s else None),
                number(figure.usd_per_million_output_tokens),
            ]
            table.add_row(*map(Text, cells), style=STYLES[figure.verdict] if figure is workload.figures[0] else "")
            name = ""
    return table


def arms_table(selection: Selection) -> Table:
    """Every arm, grouped by workload; `*` marks the chosen one."""
    table = _table("arm", right=("tokens/s", "speedup", "accept.\nlength", "TTFT\nms", "TPOT\nms", "blocks"))
    for workload in selection.workloads:
        table.add_row(Text(workload_name(workload), style="bold"))
        for arm in workload.arms:
            best = is_best(arm, workload)
            cells = [
                f"  {arm_name(arm)}{' *' if best else ''}",
                interval(arm.output_tokens_per_s),
                number(arm.speedup.mean if arm.speedup else None),
                number(arm.acceptance_length),
                milliseconds(arm.ttft_s.p50 if arm.ttft_s else None),
                milliseconds(arm.tpot_s.p50 if arm.tpot_s else None),
                str(arm.num_blocks),
            ]
            table.add_row(*map(Text, cells), style="bold" if best else "")
    return table


def commands_text(recommendation: Recommendation) -> str:
    """The commands to deploy. Print it unwrapped (`soft_wrap=True`), so that it can be copied."""
    config = recommendation.speculative_config
    flag = f"--speculative-config '{json.dumps(config)}'\n\n" if config is not None else ""
    return f"{flag}{recommendation.vllm_serve}\n\nOr in a container:\n\n{recommendation.docker_run}\n"


MARKS = {"ok": ("OK  ", "green"), "warning": ("WARN", "yellow"), "failure": ("FAIL", "bold red")}


def check_text(check: Check) -> Text:
    """One line of `orchestrator doctor`, and what follows from it where it is not in order."""
    mark, style = MARKS[check.status]
    text = Text.assemble((mark, style), f"  {check.name:<17} {check.finding}")
    return text if check.advice is None else text.append(f"\n{'':<6}{'':<17} → {check.advice}")


def plain_table(title: str | None = None) -> Table:
    """As narrow as its cells allow: lines under the header only, one blank between columns."""
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )


def _table(*left: str, right: tuple[str, ...]) -> Table:
    table = plain_table()
    for header in left:
        table.add_column(header, no_wrap=True)
    for header in right:
        table.add_column(header, justify="right")
    return table
