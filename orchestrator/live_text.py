"""What a sweep is doing, as a table: on the terminal that runs it, and on any other (`orchestrator status`)."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.display import DASH, duration, interval, number
from orchestrator.leaders import Leader
from orchestrator.live import Live
from orchestrator.terminal import STYLES

BAR_WIDTH = 30
MAX_DROPPED = 4


def live_view(live: Live) -> Group:
    """What runs on which node, who leads on each workload, and what is left."""
    parts: list[RenderableType] = [_running(live)]
    if any(leader.num_measured for leader in live.leaders):
        parts.append(leaders_table(live.leaders))
    bar = Table.grid(padding=(0, 2))
    total = max(live.num_blocks, live.num_done)
    bar.add_row(ProgressBar(total=total, completed=live.num_done, width=BAR_WIDTH), Text(progress_text(live)))
    return Group(*parts, bar)


def progress_text(live: Live) -> str:
    """`12 of at most 60 blocks, at most about 3 min 20 s left; 0.4 node hours, 1.78 USD so far`."""
    at_most = "at most " if live.is_at_most else ""
    text = f"{live.num_done} of {at_most}{live.num_blocks} blocks"
    if live.left_s is not None:
        text += f", {at_most}about {duration(live.left_s)} left"
    if live.usd is not None:
        text += f"; {number(live.usd)} USD so far"
    return text


def _running(live: Live) -> Table:
    table = Table.grid(padding=(0, 2))
    for visit in live.running:
        cells = (visit.node, visit.arm, visit.phase, f"{visit.num_done}/{visit.num_blocks}", visit.last)
        table.add_row(*map(Text, (*cells, duration(round(visit.running_s)))))
    return table


def leaders_table(leaders: Sequence[Leader]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for header in ("workload", "best so far"):
        table.add_column(header, no_wrap=True)
    table.add_column("speedup", justify="right", no_wrap=True)
    for header in ("if it ended now", "not measured further"):
        table.add_column(header)
    for leader in leaders:
        table.add_row(
            Text(leader.workload),
            Text(leader.arm or DASH),
            Text(interval(leader.speedup)),
            Text(leader.verdict, style=STYLES[leader.verdict]),
            Text(_dropped(leader)),
        )
    return table


def _dropped(leader: Leader) -> str:
    by_reason: dict[str, list[str]] = {}
    for arm, why in leader.dropped.items():
        by_reason.setdefault(why, []).append(arm)
    return "; ".join(f"{_enumerated(arms)}: {why}" for why, arms in by_reason.items())


def _enumerated(arms: Sequence[str]) -> str:
    more = f" and {len(arms) - MAX_DROPPED} more" if len(arms) > MAX_DROPPED else ""
    return ", ".join(arms[:MAX_DROPPED]) + more
