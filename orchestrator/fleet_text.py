"""A fleet's state, for people."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from rich.console import Console
from rich.table import Table

from orchestrator.fleet import FleetStatus, usd
from orchestrator.fleet_money import FleetNode


def print_status(status: FleetStatus, out: Console) -> None:
    """What runs, what it costs, and when it ends by itself."""
    if status.nodes:
        out.print(_table(status))
    for line in _lines(status):
        out.print(line, soft_wrap=True, highlight=False, markup=False)


def _table(status: FleetStatus) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("node", "workers of", "type", "market", "state", "age"):
        table.add_column(name, no_wrap=True)
    for node in status.nodes:
        table.add_row(
            node.id,
            node.group.removeprefix(f"{status.name}-") if node.group else "(head)",
            node.instance_type,
            node.market.replace("_", " "),
            node.state,
            _age(node, status.asked_utc),
        )
    return table


def _lines(status: FleetStatus) -> Iterable[str]:
    for group in status.groups:
        end = f"to zero at {_minute(group.lease_end_utc)}" if group.lease_end_utc else "NO LEASE: nothing ends it"
        yield (
            f"Group {group.name}: {group.in_service} in service, {group.desired_size} wanted, at most "
            f"{group.max_size}; {end}"
        )
    if status.head_id is None:
        workers = "" if status.groups else ", and no workers: it is down"
        yield f"Fleet {status.name} in {status.region} has no head{workers}"
    elif status.head_ends_utc:
        yield f"Head {status.head_id} shuts itself down at {_minute(status.head_ends_utc)}"
    if status.network_since_utc and status.head_id is None:
        hourly = usd(status.network_usd_per_hour)
        yield f"Its NAT gateway costs {hourly} an hour until `orchestrator fleet down`"
    if status.nodes or status.network_since_utc:
        budget = "" if status.budget_usd is None else f" of {usd(status.budget_usd)}"
        hourly = usd(status.usd_per_hour)
        yield f"Cost: {usd(status.usd_so_far)}{budget} so far, {hourly} an hour (without traffic and storage)"


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _age(node: FleetNode, now: datetime) -> str:
    minutes = round(timedelta(hours=node.hours(now)).total_seconds() / 60)
    return f"{minutes // 60}:{minutes % 60:02} h"
