"""`orchestrator status`: looks at a running sweep from another terminal, by the file that it keeps."""

import sys
import time

from rich.console import Console, Group
from rich.live import Live as LiveScreen
from rich.text import Text

from orchestrator.leaders import leaders
from orchestrator.live_text import leaders_table, live_view
from orchestrator.sweep_dir import SweepDir

REFRESH_S = 2.0


def show_status(sweep_dir: SweepDir, out: Console, *, watch: bool, as_json: bool) -> None:
    """Once, or until the sweep ends."""
    if as_json:
        live = sweep_dir.live()
        sys.stdout.write(f'{{"running": {str(live is not None).lower()}, "live": ')
        sys.stdout.write(f"{live.model_dump_json() if live else 'null'}}}\n")
        return
    if watch and sweep_dir.live():
        with LiveScreen(_view(sweep_dir), console=out, auto_refresh=False) as screen:
            while sweep_dir.live():
                screen.update(_view(sweep_dir), refresh=True)
                time.sleep(REFRESH_S)
    out.print(_view(sweep_dir))


def _view(sweep_dir: SweepDir) -> Group:
    live = sweep_dir.live()
    if live:
        return Group(Text(f"{sweep_dir.sweep_id}, as of {live.updated_utc}", style="bold"), live_view(live))
    found = leaders(sweep_dir.config(), sweep_dir.plan(), sweep_dir.ledger())
    decided = "; `orchestrator select` decides from what is measured" if sweep_dir.selection() is None else ""
    return Group(Text(f"{sweep_dir.sweep_id} is not running{decided}", style="bold"), leaders_table(found))
