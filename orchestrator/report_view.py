"""What the report says, as figures and tables; the templates only lay it out."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.config import Model
from orchestrator.confirmation_text import not_taken
from orchestrator.display import DASH, DecisionRow, decision_row, duration, interval, percent
from orchestrator.drift_text import drift_warning
from orchestrator.ledger import LedgerView
from orchestrator.outputs import OutputMatch
from orchestrator.plan import Plan
from orchestrator.plot_map import best_map
from orchestrator.plot_style import Plot
from orchestrator.plots import axis_name, concurrency_lines, concurrency_plot, survival_plot, throughput_plot
from orchestrator.report_tables import (
    TableView,
    confirmation_table,
    latency_table,
    mix_table,
    prompts_table,
    provenance_table,
    survival_table,
    throughput_table,
    time_table,
    title_of,
    validity_tables,
)
from orchestrator.report_why import roofline_table, step_table
from orchestrator.report_words import by_dataset, crossover_sentence, decision_sentences, next_commands, repeat_command
from orchestrator.roofline import achieved
from orchestrator.selection import Crossover, Selection, WorkloadResult
from orchestrator.time_split import TimeSplit, time_split
from orchestrator.unfinished import unfinished_text
from orchestrator.validity import Unstable, failed_visits, unstable_nodes, void_blocks


@dataclass(frozen=True)
class WorkloadView:
    anchor: str
    title: str
    decision: DecisionRow
    why: str | None
    plots: Sequence[Plot]
    tables: Sequence[TableView]


@dataclass(frozen=True)
class ConcurrencyView:
    dataset: str
    crossover: str | None
    """Where speculation stops paying, in words; None where the selection is of before it told."""
    plots: Sequence[Plot]
    table: TableView


@dataclass(frozen=True)
class ReportView:
    selection: Selection
    plan: Plan
    in_short: Sequence[str]
    """The decision in sentences."""
    decisions: Sequence[DecisionRow]
    has_prices: bool
    workloads: Sequence[WorkloadView]
    concurrency: Sequence[ConcurrencyView]
    best_k: TableView | None
    best_map: Plot | None
    mixes: TableView | None
    confirmations: TableView | None
    not_taken: Sequence[str]
    """What was measured again and is not what is recommended, in sentences."""
    roofline: TableView | None
    """None where weights, bandwidth or step times are not known."""
    outputs_summary: str | None
    """Whether the outputs equal the baseline's; None where nothing was measured that compares."""
    validity: Sequence[TableView]
    time: TableView
    split: TimeSplit
    prompts: TableView
    provenance: TableView
    repeat_command: str | None
    """What was typed to measure; None where that is not known."""
    next_commands: str
    incidents: bool
    """Whether a block was void or a visit failed."""
    warnings: Sequence[str]
    """What to know before any figure."""

    @property
    def time_summary(self) -> str:
        """The split in a sentence: what the sweep cost besides what cannot be avoided."""
        outside = percent(self.split.outside_share)
        return (
            f"The driver ran for {duration(self.split.wall_s)} of wall time. "
            f"Outside server starts and load: {outside} % of node time (the aim is under 10 %)."
        )

    @property
    def noise_summary(self) -> str | None:
        """What the intervals count with besides the scatter between blocks."""
        noise = self.selection.visit_noise
        if noise is None:
            return None
        return (
            f"Two starts of the same server are taken to differ by {percent(noise)} % in standard deviation, and every "
            "interval counts with that. Opening and closing baseline are interpolated to the time of each arm."
        )

    @property
    def plots(self) -> list[Plot]:
        groups = [*(part.plots for part in self.workloads), *(part.plots for part in self.concurrency)]
        return [*([self.best_map] if self.best_map else []), *(plot for group in groups for plot in group)]


def build_view(
    selection: Selection,
    plan: Plan,
    ledger: LedgerView,
    outputs: Sequence[OutputMatch],
    model: Model | None,
    command: str | None = None,
) -> ReportView:
    """`command`: what was typed last to measure; None: what the ledger knows of it."""
    prices = (arm.usd_per_million_output_tokens for workload in selection.workloads for arm in workload.arms)
    has_prices = any(price is not None for price in prices)
    workloads = [_workload_view(workload, has_prices) for workload in selection.workloads]
    groups = by_dataset(selection)
    crossovers = {found.dataset: found for found in selection.crossovers}
    concurrency = [_concurrency_view(group, crossovers.get(group[0].dataset)) for group in groups if len(group) > 1]
    sessions, visits = ledger.sessions(), ledger.visits()
    roofline = achieved(model, selection.workloads, visits) if model else []
    split = time_split(sessions, visits, ledger.blocks())
    return ReportView(
        selection=selection,
        plan=plan,
        in_short=decision_sentences(selection),
        decisions=[workload.decision for workload in workloads],
        has_prices=has_prices,
        workloads=workloads,
        concurrency=concurrency,
        best_k=_best_k_table(selection) if concurrency else None,
        best_map=best_map(groups, "best-setting") if concurrency else None,
        mixes=mix_table(selection) if selection.mixes else None,
        confirmations=confirmation_table(selection) if selection.confirmations else None,
        not_taken=not_taken(selection),
        roofline=roofline_table(roofline) if roofline else None,
        validity=validity_tables(selection, plan, ledger, outputs),
        outputs_summary=_outputs_summary(plan, outputs),
        time=time_table(split),
        split=split,
        prompts=prompts_table(plan),
        provenance=provenance_table(selection.provenance, ledger),
        repeat_command=repeat_command(command, [each.command for each in sessions if each.command]),
        next_commands=next_commands(selection.sweep_id),
        incidents=bool(void_blocks(plan, ledger) or failed_visits(plan, ledger)),
        warnings=_warnings(selection, unstable_nodes(ledger)),
    )


def _warnings(selection: Selection, unstable: Sequence[Unstable]) -> list[str]:
    provenance, drifted = selection.provenance, drift_warning(selection.drifts)
    unfinished = [unfinished_text(selection.unfinished)] if selection.unfinished else []
    aside = [f"Node {node} was set aside: {reason}." for node, reason in provenance.nodes_set_aside.items()]
    unclosed = [f"Node {node} {reason}." for node, reason in provenance.nodes_unclosed.items()]
    reasons = "; ".join(f"on {found.node} {found.reason}" for found in unstable)
    shaken = [drifted] if drifted else []
    found = [*unfinished, *selection.warnings, *aside, *unclosed, *shaken]
    return found + ([f"Figures may be unstable: {reasons}."] if unstable else [])


def _outputs_summary(plan: Plan, outputs: Sequence[OutputMatch]) -> str | None:
    if all(cell.temperature > 0 for cell in plan.workloads):
        return "Outputs are sampled, at a temperature above 0, so they are not compared with the baseline's."
    if not outputs:
        return None
    num_prompts, num_different = (
        sum(numbers) for numbers in zip(*((match.num_prompts, match.num_different) for match in outputs), strict=True)
    )
    if not num_different:
        return f"All {num_prompts:,} outputs compared at temperature 0 equal the opening baseline's."
    return f"{num_different:,} of {num_prompts:,} outputs compared at temperature 0 differ from the opening baseline's."


def slug(text: str) -> str:
    """A name that is safe in file names, anchors and URLs."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "-" for letter in text)


def _workload_view(workload: WorkloadResult, has_prices: bool) -> WorkloadView:
    anchor, title = slug(f"{workload.dataset}-{workload.level_label}"), title_of(workload)
    plots = [
        throughput_plot(workload, f"{anchor}-throughput", title),
        survival_plot(workload, f"{anchor}-survival", title),
    ]
    tables = [
        throughput_table(workload, has_prices),
        latency_table(workload),
        step_table(workload),
        survival_table(workload),
    ]
    return WorkloadView(
        anchor=anchor,
        title=title,
        decision=decision_row(workload),
        why=workload.why,
        plots=[plot for plot in plots if plot],
        tables=[table for table in tables if table],
    )


def _concurrency_view(workloads: Sequence[WorkloadResult], crossover: Crossover | None) -> ConcurrencyView:
    dataset = workloads[0].dataset
    plot = concurrency_plot(workloads, crossover, slug(f"{dataset}-concurrency"), dataset)
    levels = [workload.level for workload in workloads]
    rows = [
        (name, *(interval(points.get(level)) for level in levels))
        for name, points in concurrency_lines(workloads).items()
    ]
    headers = ("Arm", *(f"At {level:g}: speedup (x) [interval]" for level in levels))
    table = TableView(f"Speedup over {axis_name(workloads)}, {dataset}", headers, rows)
    words = crossover_sentence(workloads, crossover) if crossover else None
    return ConcurrencyView(dataset, words, [plot] if plot else [], table)


def _best_k_table(selection: Selection) -> TableView:
    levels = sorted({workload.level for workload in selection.workloads})
    rows = []
    for group in by_dataset(selection):
        cells = {workload.level: _best_k_cell(workload) for workload in group}
        rows.append((group[0].dataset, *(cells.get(level, DASH) for level in levels)))
    axis = axis_name(selection.workloads)
    headers = ("Dataset", *(f"{axis.capitalize()} {level:g}" for level in levels))
    return TableView(f"Best setting and its speedup (x), by dataset and {axis}", headers, rows)


def _best_k_cell(workload: WorkloadResult) -> str:
    row = decision_row(workload)
    if workload.verdict != "speculate":
        return row.verdict_text.lower()
    return f"{row.best}, {row.speedup.split(' ')[0]}"
