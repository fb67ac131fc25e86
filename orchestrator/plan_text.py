"""A preview as `orchestrator plan` prints it."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from orchestrator.forecast_text import basis_text, forecast_table
from orchestrator.plan import Plan
from orchestrator.preview import Preview, server_command
from orchestrator.terminal import plain_table


def print_preview(found: Preview, out: Console, err: Console) -> None:
    """Arms with their server commands, workloads, counts, memory, hours and dollars; warnings to `err`."""
    plan = found.plan
    out.print(_arms(plan))
    out.print(_workloads(plan))
    at_most = "at most " if found.may_stop_early else ""
    out.print(
        f"plan {plan.id}: {len(plan.arms)} arms x {len(plan.workloads)} workloads; {_proposals(found)}"
        f"on one node {at_most}{found.num_server_starts} server starts (the baseline first and last), "
        f"{found.num_blocks} blocks, {found.num_requests} requests"
        f"{'; then up to two more starts, to confirm what is recommended' if found.confirms else ''}",
        highlight=False,
    )
    out.print(f"memory: {found.memory.fit}: {found.memory}", highlight=False, markup=False)
    if found.expected:
        out.print(forecast_table(found.expected))
        out.print(basis_text(found.expected), highlight=False, markup=False)
    else:
        out.print(found.no_estimate, highlight=False, markup=False)
    for warning in found.warnings:
        err.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
    for arm in plan.arms:
        settings = "".join(f" {key}={value}" for key, value in arm.settings.items())
        out.print(f"\n{arm.name}{settings}", style="bold", soft_wrap=True, highlight=False, markup=False)
        out.print(server_command(arm), soft_wrap=True, highlight=False, markup=False)


def _proposals(found: Preview) -> str:
    num_planned = len(found.plan.arms) - 1
    if found.num_arms == num_planned:
        return ""
    return f"at most {found.num_arms} of {num_planned} besides the baseline are proposed; "


def _arms(plan: Plan) -> Table:
    table = plain_table(f"Arms on {plan.baseline.hardware}")
    table.add_column("arm", overflow="fold")
    table.add_column("id", no_wrap=True)
    for arm in plan.arms:
        table.add_row(arm.name, arm.id)
    return table


def _workloads(plan: Plan) -> Table:
    """The level of load is in a workload's name."""
    table = plain_table("Workloads")
    table.add_column("workload", overflow="fold")
    for header in ("id", "output", "blocks x\nrequests", "prompts\n(too long)"):
        table.add_column(header, no_wrap=True)
    for cell in plan.workloads:
        blocks, prompts = plan.blocks_of(cell.id), plan.prompts[cell.dataset]
        table.add_row(
            cell.name,
            cell.id,
            f"{'' if cell.ignore_eos else '≤ '}{cell.output_len}",
            f"{len(blocks)} x {_range([len(block.requests) for block in blocks])}",
            f"{prompts.num_usable} ({prompts.num_too_long})",
        )
    return table


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
