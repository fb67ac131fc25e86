"""`orchestrator status`: a running sweep from another terminal, by the file that it keeps; one that has ended, by its
folder."""

import json
import sys
import time

from rich.console import Console, Group, RenderableType
from rich.live import Live as LiveScreen
from rich.text import Text

from orchestrator.display import recommendation_scope
from orchestrator.leaders import leaders
from orchestrator.live_text import leaders_table, live_view
from orchestrator.outcome import Outcome, outcome
from orchestrator.policies import policy_for
from orchestrator.sweep_dir import SweepDir
from orchestrator.terminal import verdict_table

REFRESH_S = 2.0
PIPED_WIDTH = 100
"""Columns where there is no terminal."""


def show_status(sweep_dir: SweepDir, out: Console, *, watch: bool, as_json: bool) -> None:
    """Once, or until the sweep ends."""
    if as_json:
        sys.stdout.write(json.dumps(_status_data(sweep_dir), indent=2) + "\n")
        return
    if watch and sweep_dir.live():
        with LiveScreen(_running_view(sweep_dir, out), console=out, auto_refresh=False, transient=True) as screen:
            while sweep_dir.live():
                screen.update(_running_view(sweep_dir, out), refresh=True)
                time.sleep(REFRESH_S)
    found = outcome(sweep_dir)
    out.print(_running_view(sweep_dir, out) if found.state == "running" else _ended_view(sweep_dir, found))


def _status_data(sweep_dir: SweepDir) -> dict[str, object]:
    found, live, selection = outcome(sweep_dir), sweep_dir.live(), sweep_dir.selection()
    verdicts = [
        {"workload": each.point_name, "verdict": each.verdict, "best": each.best.arm if each.best else None}
        for each in (selection.workloads if selection else ())
    ]
    return {
        "sweep_id": sweep_dir.sweep_id,
        "folder": str(sweep_dir.path),
        "running": found.state == "running",
        **found.model_dump(mode="json"),
        "live": live.model_dump(mode="json") if live else None,
        "verdicts": verdicts,
        "report": _report(sweep_dir),
    }


def _report(sweep_dir: SweepDir) -> str | None:
    path = sweep_dir.path / "report.html"
    return str(path) if path.exists() else None


def _running_view(sweep_dir: SweepDir, out: Console) -> Group:
    live = sweep_dir.live()
    if live is None:
        return Group(Text(f"{sweep_dir.sweep_id} is starting", style="bold"))
    title = Text(f"{sweep_dir.sweep_id}, as of {live.updated_utc}", style="bold")
    return Group(
        title,
        live_view(
            live,
            width=out.width if out.is_terminal else PIPED_WIDTH,
            height=out.height - 2 if out.is_terminal else None,
        ),
    )


def _ended_view(sweep_dir: SweepDir, found: Outcome) -> Group:
    """What was decided, where it is finished; else who leads, and how to go on."""
    parts: list[RenderableType] = [Text(_ending(sweep_dir, found), style="bold")]
    selection, report = sweep_dir.selection(), _report(sweep_dir)
    if selection and found.state != "interrupted":
        parts += [verdict_table(selection), Text(recommendation_scope(selection))]
    else:
        config, plan, ledger = sweep_dir.config(), sweep_dir.plan(), sweep_dir.ledger()
        parts.append(leaders_table(leaders(config, plan, ledger, policy_for(config).dropped(plan, ledger))))
    if found.state != "finished":
        parts.append(Text(f"To continue: {found.command or 'the same command again'}", overflow="fold"))
    if report:
        as_of = f" (as of {selection.created_utc})" if selection and found.state == "interrupted" else ""
        parts.append(Text(f"Report: {report}{as_of}", overflow="fold"))
    elif found.state != "finished":
        parts.append(Text("`orchestrator select` decides, and reports, from what is measured"))
    return Group(*parts)


def _ending(sweep_dir: SweepDir, found: Outcome) -> str:
    if found.state == "finished":
        return f"{sweep_dir.sweep_id}: finished, {found.num_done} blocks"
    done = f"{sweep_dir.sweep_id}: {found.state} after {found.num_done} of at most {found.num_blocks} blocks"
    return f"{done}: {found.reason}" if found.reason else done
