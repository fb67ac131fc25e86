"""What a sweep is doing, as a table: on the terminal that runs it, and on any other (`orchestrator status`).

The most important comes first, since a terminal that is too small cuts what is last.
"""

import re
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.display import DASH, duration, interval, number
from orchestrator.leaders import Leader
from orchestrator.live import Live, RunningVisit
from orchestrator.terminal import STYLES

BAR_WIDTH = 30
MAX_DROPPED = 4
MAX_LEFT_OUT = 2
"""Of a workload."""
PROGRESS_LINES = 2
AROUND_LEADERS = 4
"""Lines of their table besides the rows: headers, the rule below them, an empty one before and after."""
ROOM_FOR_CTRL_C = 3
"""Columns: a terminal writes ^C behind the last line, and in the next one where there is no room; that line would be
left when the view is taken off."""
WIDTH_FOR_REASONS = 72
"""Below it nothing is left for the leaders' last column beside the others."""
SHORT_S = 600
"""From here on seconds are shown; before they would only be restless."""

_ONLY_K = re.compile(r"(?P<kind>.+-k)(?P<k>\d+)")


def live_view(live: Live, *, width: int = 100, height: int | None = None) -> Group:
    """How far it is, what runs on which node, who leads on each workload; in `height` lines where that is given."""
    parts: list[RenderableType] = [_progress(live)]
    has_leaders = any(leader.num_measured or leader.dropped for leader in live.leaders)
    left = None if height is None else height - PROGRESS_LINES
    most_running = len(live.running) if left is None else max(1, left // 2 if has_leaders else left)
    parts.append(_running(live.running, most_running, width - ROOM_FOR_CTRL_C))
    max_rows = None if left is None else left - min(len(live.running), most_running) - AROUND_LEADERS
    if has_leaders and (max_rows is None or max_rows > 0):
        parts.append(leaders_table(live.leaders, width=width, max_rows=max_rows))
    return Group(*parts)


def progress_text(live: Live) -> str:
    """`12 of at most 60 blocks, about 3 min 20 s left (at most 5 min 10 s); 1.78 USD so far`."""
    return ", ".join(filter(None, [_done_text(live), _left_text(live, " ({})")])) + _cost_text(live)


def _progress(live: Live) -> Table:
    """Two lines that fit 60 columns."""
    bar = Table.grid(padding=(0, 2))
    total = max(live.num_blocks, live.num_done)
    bar.add_row(ProgressBar(total=total, completed=live.num_done, width=BAR_WIDTH), Text(_done_text(live)))
    whole = Table.grid()
    whole.add_column(no_wrap=True, overflow="ellipsis")
    whole.add_row(bar)
    unknown = "time left is not known yet" if live.num_done < live.num_blocks else "all is measured"
    whole.add_row(Text(f"{_left_text(live, ', {}') or unknown}{_cost_text(live)}"))
    return whole


def _done_text(live: Live) -> str:
    return f"{live.num_done} of {'at most ' if live.is_at_most else ''}{live.num_blocks} blocks"


def _left_text(live: Live, at_most: str) -> str:
    if live.left_s is None:
        return ""
    left = f"about {_rough(live.left_s)} left"
    if live.at_most_left_s is None or _rough(live.at_most_left_s) == _rough(live.left_s):
        return left
    return left + at_most.format(f"at most {_rough(live.at_most_left_s)}")


def _cost_text(live: Live) -> str:
    return "" if live.usd is None else f"; {number(live.usd)} USD so far"


def _rough(seconds: float) -> str:
    """`1 h 05 min`, `12 min`, `3 min 20 s`, `40 s`"""
    if seconds >= SHORT_S:
        minutes = round(seconds / 60)
        return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
    return duration(round(seconds)) if seconds >= 60 else f"{round(seconds)} s"


def _running(running: Sequence[RunningVisit], most: int, width: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.width = width
    for _ in range(4):
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column(no_wrap=True, justify="right")
    shown = running if len(running) <= most else running[: most - 1]
    for visit in shown:
        cells = (visit.node, visit.arm, visit.phase, f"{visit.num_done}/{visit.num_blocks}", visit.last)
        table.add_row(*map(Text, (*cells, _rough(visit.running_s))))
    if len(shown) < len(running):
        table.add_row(Text(f"and {len(running) - len(shown)} more"))
    return table


def leaders_table(leaders: Sequence[Leader], *, width: int = 100, max_rows: int | None = None) -> Table:
    """One row a workload; below it the arms that are faster and may not be chosen, as far as there is room for them."""
    is_cut, has_reasons = max_rows is not None, width >= WIDTH_FOR_REASONS
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
        width=width - ROOM_FOR_CTRL_C if is_cut and has_reasons else None,
    )
    for header in ("workload", "best so far"):
        table.add_column(header, no_wrap=True)
    table.add_column("speedup", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    if has_reasons:
        table.add_column("not measured further", no_wrap=is_cut, ratio=1 if is_cut else None)
    for cells in _rows(leaders, max_rows):
        table.add_row(*cells[: len(table.columns)])
    return table


def _rows(leaders: Sequence[Leader], max_rows: int | None) -> list[list[Text]]:
    shown = leaders if max_rows is None or len(leaders) <= max_rows else leaders[: max(0, max_rows - 1)]
    room = MAX_LEFT_OUT * len(shown) if max_rows is None else max_rows - len(shown)
    rows = []
    for leader in shown:
        rows.append(_leader_row(leader))
        below = _left_out_rows(leader)[: min(room, MAX_LEFT_OUT)] if len(shown) == len(leaders) else []
        rows += below
        room -= len(below)
    if len(shown) < len(leaders):
        rows.append([Text(f"and {len(leaders) - len(shown)} more")])
    return rows


def _leader_row(leader: Leader) -> list[Text]:
    verdict = Text(leader.verdict, style=STYLES[leader.verdict])
    arm, speedup = Text(leader.arm or DASH), Text(interval(leader.speedup))
    return [Text(leader.workload), arm, speedup, verdict, Text(_dropped(leader))]


def _left_out_rows(leader: Leader) -> list[list[Text]]:
    """Those that would lead if they might be chosen."""
    least = leader.speedup.mean if leader.speedup else 0.0
    return [
        [Text(cell, style="dim") for cell in ("", each.arm, interval(each.speedup), "left out", _why(each.why))]
        for each in leader.left_out
        if each.speedup.mean > least
    ]


def _why(refused: str) -> str:
    return refused.removeprefix("is left out: ")


def _dropped(leader: Leader) -> str:
    by_reason: dict[str, list[str]] = {}
    for arm, why in leader.dropped.items():
        by_reason.setdefault(why, []).append(arm)
    return "; ".join(f"{_enumerated(arms)}: {why}" for why, arms in by_reason.items())


def _enumerated(arms: Sequence[str]) -> str:
    """`dflash-k1,3,7 and 2 more`: names that differ in k alone share the rest."""
    names: dict[str, list[str]] = {}
    for arm in arms[:MAX_DROPPED]:
        same = _ONLY_K.fullmatch(arm)
        names.setdefault(same["kind"] if same else arm, []).append(same["k"] if same else "")
    more = f" and {len(arms) - MAX_DROPPED} more" if len(arms) > MAX_DROPPED else ""
    return ", ".join(kind + ",".join(ks) for kind, ks in names.items()) + more
