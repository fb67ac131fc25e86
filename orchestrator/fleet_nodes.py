"""The machines that a fleet had, in a file: EC2 forgets an ended one within an hour, and the budget must not."""

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter

from orchestrator.fleet_money import FleetNode, merged

NODES = "nodes.json"
_NODES = TypeAdapter(list[FleetNode])


def remembered(path: Path) -> list[FleetNode]:
    """None where there is no file."""
    return _NODES.validate_json(path.read_bytes()) if path.exists() else []


def remember(path: Path, seen: Sequence[FleetNode], now: datetime) -> list[FleetNode]:
    """What `path` tells and what EC2 was `seen` to tell; kept in `path`."""
    nodes = merged(remembered(path), seen, now)
    if nodes:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")  # another sweep on this head may read it meanwhile
        temporary.write_bytes(_NODES.dump_json(nodes, indent=1))
        temporary.replace(path)
    return nodes
