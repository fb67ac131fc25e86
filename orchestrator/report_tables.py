"""The report's tables, as text: headers with units, figures rounded, what is missing as a dash."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from orchestrator.display import (
    DASH,
    VERDICT_TEXT,
    arm_name,
    cost,
    duration,
    identical,
    interval,
    is_best,
    listed,
    milliseconds,
    number,
    percent,
)
from orchestrator.ledger import LedgerView
from orchestrator.outputs import OutputMatch
from orchestrator.plan import Plan
from orchestrator.plots import survival_arms
from orchestrator.records import NodeInfo
from orchestrator.selection import ArmResult, Provenance, Selection, WorkloadResult
from orchestrator.time_split import TimeSplit
from orchestrator.validity import failed_visits, unstable_nodes, void_blocks

MAX_POSITIONS = 16
MAX_INCIDENTS = 50


@dataclass(frozen=True)
class TableView:
    """A table whose first column heads its row. Units are in the headers."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int] = frozenset()
    """Rows of chosen arms."""
    text_columns: frozenset[int] = frozenset()
    """Columns that hold words, not figures, so that they are set flush left."""


def title_of(workload: WorkloadResult) -> str:
    return f"{workload.dataset}, {workload.level_text}"


def _marked(arms: Iterable[ArmResult], workload: WorkloadResult) -> frozenset[int]:
    return frozenset(index for index, arm in enumerate(arms) if is_best(arm, workload))


def throughput_table(workload: WorkloadResult, has_prices: bool) -> TableView:
    has_cache = any(arm.prefix_cache_hit_rate is not None for arm in workload.arms)
    has_gains = any(arm.gain != arm.speedup for arm in workload.arms)
    headers = ["Arm", "Throughput (output tokens/s) [interval]", "Speedup (x) [interval]"]
    headers += ["Gain in the objective (x) [interval]"] if has_gains else []
    headers += ["Acceptance length (tokens/step)", "Acceptance rate (%)", "Outputs equal to baseline's (%)"]
    headers += ["Prompt tokens found in the prefix cache (%)"] if has_cache else []
    headers += ["USD per 1M output tokens"] if has_prices else []
    rows = [
        (
            arm_name(arm),
            interval(arm.output_tokens_per_s),
            interval(arm.speedup),
            *([interval(arm.gain)] if has_gains else []),
            number(arm.acceptance_length),
            percent(arm.acceptance_rate),
            identical(arm.outputs_match_baseline),
            *([percent(arm.prefix_cache_hit_rate)] if has_cache else []),
            *([cost(arm)] if has_prices else []),
            f"{arm.num_blocks:,}",
            f"{arm.num_requests:,}",
        )
        for arm in workload.arms
    ]
    caption = f"Throughput, {title_of(workload)}"
    return TableView(caption, [*headers, "Blocks", "Requests"], rows, _marked(workload.arms, workload))


def latency_table(workload: WorkloadResult) -> TableView:
    headers = ("Arm", "TTFT p50 (ms)", "TTFT p95 (ms)", "TPOT p50 (ms)", "TPOT p95 (ms)")
    rows = [
        (
            arm_name(arm),
            *(
                milliseconds(value)
                for quantiles in (arm.ttft_s, arm.tpot_s)
                for value in ((quantiles.p50, quantiles.p95) if quantiles else (None, None))
            ),
        )
        for arm in workload.arms
    ]
    caption = f"Latency, {title_of(workload)}{_without_times(workload)}"
    return TableView(caption, headers, rows, _marked(workload.arms, workload))


def _without_times(workload: WorkloadResult) -> str:
    """Why arms that were measured have a dash."""
    arms = [arm for arm in workload.arms if arm.all_at_once_share and arm.ttft_s is None]
    if not arms:
        return ""
    names = listed(f"{arm_name(arm)} ({percent(arm.all_at_once_share)} %)" for arm in arms)
    return (
        f". A dash: the client got all tokens of an answer at once, which is no measurement of these times; share of "
        f"such answers: {names}"
    )


def survival_table(workload: WorkloadResult) -> TableView | None:
    """The drawn curves, at MAX_POSITIONS positions where there are more."""
    arms = survival_arms(workload)
    if not arms:
        return None
    longest = max(len(arm.survival or ()) for arm in arms)
    steps = min(longest, MAX_POSITIONS)
    positions = sorted({round(step * (longest - 1) / max(1, steps - 1)) for step in range(steps)})
    rows = [
        (arm_name(arm), *(percent(values[at]) if at < len(values) else DASH for at in positions))
        for arm in arms
        for values in [arm.survival or ()]
    ]
    headers = ("Arm", *(str(position) for position in positions))
    caption = f"Drafts accepted up to each position (%), position from 0, {title_of(workload)}"
    return TableView(caption, headers, rows, _marked(arms, workload))


def mix_table(selection: Selection) -> TableView:
    """What one setting gains on the traffic mix, per dataset and over all of them."""
    overall = selection.mixes[-1]
    shares = ", ".join(f"{percent(share)} % at {level:g}" for level, share in overall.traffic.items())
    columns = [
        f"{mix.dataset or 'all, each weighing the same'}: gain (x) [interval]; {VERDICT_TEXT[mix.verdict].lower()}"
        for mix in selection.mixes
    ]
    measured = [at for at in range(len(overall.arms)) if any(mix.arms[at].gain for mix in selection.mixes)]
    rows = [(overall.arms[at].arm, *(interval(mix.arms[at].gain) for mix in selection.mixes)) for at in measured]
    chosen = overall.best.arm if overall.best else None
    marked = frozenset(row for row, at in enumerate(measured) if overall.arms[at].arm == chosen)
    by = "load" if any(workload.is_open_loop for workload in selection.workloads) else "concurrency"
    caption = f"One setting over the traffic mix (share of time by {by}: {shares})"
    return TableView(caption, ("Arm", *columns), rows, marked)


def confirmation_table(selection: Selection) -> TableView:
    rows = [
        (
            f"{found.arm} ({found.setting})",
            interval(found.predicted),
            interval(found.confirmed),
            found.verdict,
            found.reason,
        )
        for found in selection.confirmations
    ]
    headers = ("Setting", "Predicted gain at the mix (x) [interval]", "Measured again (x) [interval]", "Verdict", "Why")
    caption = "Recommended settings, measured again on fresh server starts"
    return TableView(caption, headers, rows, text_columns=frozenset({3, 4}))


def validity_tables(
    selection: Selection, plan: Plan, ledger: LedgerView, outputs: Sequence[OutputMatch]
) -> list[TableView]:
    words = frozenset({1})
    aside, unclosed = selection.provenance.nodes_set_aside, selection.provenance.nodes_unclosed
    tables = (
        TableView("Nodes set aside", ("Node", "Why"), list(aside.items()), text_columns=words),
        TableView("Nodes without a closing baseline", ("Node", "Why"), list(unclosed.items()), text_columns=words),
        TableView(
            "Figures may be unstable",
            ("Node", "Why"),
            [(found.node, found.reason) for found in unstable_nodes(ledger)],
            text_columns=words,
        ),
        _outputs_table(outputs),
        _void_table(plan, ledger),
        _failed_table(plan, ledger),
        _drift_table(selection),
    )
    return [table for table in tables if table.rows]


def _outputs_table(outputs: Sequence[OutputMatch]) -> TableView:
    """Where any output differs: those arms, and how well the baseline repeats itself there."""
    workloads = {match.workload.id for match in outputs if match.num_different}
    rows = [
        (
            match.workload.name,
            arm_name(match.arm),
            f"{match.num_prompts:,}",
            f"{match.num_different:,}",
            identical(match.identical_share),
            _position(match.first_position),
            _position(match.median_position),
            match.reason or DASH,
        )
        for match in outputs
        if match.num_different or (match.arm.is_baseline and match.workload.id in workloads)
    ]
    headers = (
        *("Workload", "Arm", "Prompts", "Different", "Identical (%)"),
        *("First different token", "Its median", "Reason, as far as known"),
    )
    caption = "Outputs against the opening baseline's (the baseline: its closing ones); tokens count from 0"
    return _incidents(caption, headers, rows, frozenset({1, 7}))


def _position(token: float | None) -> str:
    return DASH if token is None else f"{token:g}"


def _void_table(plan: Plan, ledger: LedgerView) -> TableView:
    rows = [
        (block.arm, block.workload, str(block.block_index), block.node, block.reason)
        for block in void_blocks(plan, ledger)
    ]
    headers = ("Arm", "Workload", "Block", "Node", "Why it does not count")
    return _incidents("Blocks that do not count", headers, rows, frozenset({1, 3, 4}))


def _failed_table(plan: Plan, ledger: LedgerView) -> TableView:
    rows = [
        (visit.arm, str(visit.attempt), visit.node, visit.error, visit.server_log or DASH)
        for visit in failed_visits(plan, ledger)
    ]
    headers = ("Arm", "Attempt", "Node", "Error", "Log (in logs/)")
    return _incidents("Visits that failed", headers, rows, frozenset({2, 3, 4}))


def _drift_table(selection: Selection) -> TableView:
    rows = [
        (
            drift.point_name,
            drift.node,
            interval(drift.closing_over_opening),
            "beyond noise" if drift.is_beyond_noise else "within noise",
            str(drift.num_blocks),
        )
        for drift in selection.drifts
    ]
    headers = ("Workload", "Node", "Closing / opening throughput (x) [interval]", "Drift", "Blocks in common")
    return _incidents("The baseline at the node's end against its start", headers, rows, frozenset({1, 3}))


def _incidents(
    caption: str, headers: Sequence[str], rows: Sequence[tuple[str, ...]], text: frozenset[int]
) -> TableView:
    if len(rows) > MAX_INCIDENTS:
        caption += f": the first {MAX_INCIDENTS} of {len(rows):,}, all are in ledger.jsonl"
    return TableView(caption, headers, rows[:MAX_INCIDENTS], text_columns=text)


def time_table(split: TimeSplit) -> TableView:
    shares = split.shares or {}
    rows = [(name, duration(seconds), percent(shares.get(name))) for name, seconds in split.parts_s.items()]
    caption = f"Node time: {duration(split.node_s)} on {split.num_nodes} node{'s' if split.num_nodes > 1 else ''}"
    return TableView(caption, ("Spent on", "Time", "Share (%)"), rows)


def prompts_table(plan: Plan) -> TableView:
    rows = [
        (name, f"{count.num_read:,}", f"{count.num_too_long:,}", f"{count.num_usable:,}")
        for name, count in plan.prompts.items()
    ]
    headers = ("Dataset", "Prompts read", "Dropped as too long for the context", "Usable")
    return TableView("Prompts", headers, rows)


def provenance_table(provenance: Provenance, ledger: LedgerView) -> TableView:
    rows = [("Plan", provenance.plan_id), ("Commit", provenance.git_commit or DASH)]
    rows += [(f"Version of {name}", version) for name, version in provenance.versions.items()]
    # As the first visit found it: later the load is the sweep's own.
    nodes = {visit.node: visit.node_info for visit in reversed(list(ledger.visits())) if visit.node_info}
    hardware = {name: value for name, value in provenance.hardware.items() if name != "nodes" or not nodes}
    rows += [(f"Hardware: {name}", _plain(value)) for name, value in hardware.items()]
    rows += [(f"Node {name}", _node(info)) for name, info in nodes.items()]
    return TableView("What was measured, and on what", ("What", "Value"), rows, text_columns=frozenset({1}))


def _node(info: NodeInfo) -> str:
    cores = f"{info.physical_cores} cores" if info.physical_cores else None
    numa = f"{info.numa_nodes} NUMA nodes" if info.numa_nodes else None
    memory = f"{number(info.memory_gb)} GB memory"
    bandwidth = f"copies {number(gb)} GB/s" if (gb := info.memory_bandwidth_gb_per_s) else None
    clock = f"{info.clock_mhz:,.0f} MHz" if info.clock_mhz else None
    pages = f"huge pages {info.transparent_hugepage}" if info.transparent_hugepage else None
    governor = f"governor {info.governor}" if info.governor else None
    load = f"load {number(info.load_average_1m)} at the start"
    wide = [flag for flag in info.isa if flag.startswith(("amx", "avx"))]  # the ledger has all, a hundred
    isa = f"ISA {' '.join(wide)}" if wide else None
    parts = (info.cpu_model, cores, numa, clock, memory, bandwidth, pages, isa, governor, f"kernel {info.kernel}", load)
    return ", ".join(filter(None, parts))


def _plain(value: JsonValue) -> str:
    if value is None:
        return DASH
    if isinstance(value, dict):
        known = {key: item for key, item in value.items() if item not in (None, [], {})}
        return ", ".join(f"{key} {_plain(item)}" for key, item in known.items())
    return value if isinstance(value, str) else json.dumps(value)
