"""Which node is of which hardware, and how many servers it runs at once. Pure functions of what Ray tells of its nodes.

A server has a slot: the node, or one NUMA node of it. Figures are paired by the slot's name, as if it were a node.
"""

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.config import Hardware
from orchestrator.errors import NodeUnavailable

MAX_NAMED = 5
"""Nodes that an error lists."""
NUMA = "/numa"
"""Between a node's name and the number of its NUMA node, in a slot's name."""

RayNode = Mapping[str, Any]
"""An item of `ray.nodes()`."""


def slots_of(hardware: Hardware, kinds: Sequence[Hardware], nodes: Sequence[RayNode]) -> dict[str, str]:
    """Slot -> Ray node id of the `nodes` that are of that hardware and of no other of `kinds`.

    A slot is called as its node is, or `<node>/numa0`, `<node>/numa1`, ... The name stays the same over restarts of Ray
    (set with `ray start --node-name`, else the host's name).
    """
    own = [node for node in nodes if _kinds_of(node, kinds) == [hardware.name]]
    names = Counter(_name(node) for node in own)
    return {
        slot: node["NodeID"]
        for node in own
        for slot in _slots(
            _name(node) if names[_name(node)] == 1 else f"{_name(node)}-{node['NodeID'][:8]}",
            hardware,
            int(node["Resources"][hardware.node_resource]),
        )
    }


def numa_index(slot: str, hardware: Hardware) -> int | None:
    """Which of the node's NUMA nodes the slot is, counted from 0; None where it is the whole node."""
    return int(slot.rpartition(NUMA)[2]) if hardware.server_per == "numa_node" else None


def require_nodes(kinds: Sequence[Hardware], nodes: Sequence[RayNode], address: str | None) -> None:
    """Raise NodeUnavailable where a hardware has no node, or a node is of two."""
    for node in nodes:
        claims = _kinds_of(node, kinds)
        if len(claims) > 1:
            raise NodeUnavailable(
                f"node {_described(node, kinds)} is of hardware={' and of hardware='.join(claims)} alike; "
                "give each profile node_labels of its own, and the node those of one (`ray start --labels`)"
            )
    for hardware in kinds:
        if not slots_of(hardware, kinds, nodes):
            raise NodeUnavailable(_nothing_of(hardware, kinds, nodes, address))


def _slots(name: str, hardware: Hardware, units: int) -> list[str]:
    return [f"{name}{NUMA}{index}" for index in range(units)] if hardware.server_per == "numa_node" else [name]


def _kinds_of(node: RayNode, kinds: Sequence[Hardware]) -> list[str]:
    """Names of the hardware whose resource the node offers and whose labels it carries."""
    labels = _labels(node)
    return [
        kind.name
        for kind in kinds
        if node["Resources"].get(kind.node_resource, 0) >= 1 and kind.node_labels.items() <= labels.items()
    ]


def _labels(node: RayNode) -> dict[str, str]:
    """Without those that Ray sets itself."""
    return {key: value for key, value in (node.get("Labels") or {}).items() if not key.startswith("ray.io/")}


def _name(node: RayNode) -> str:
    given = str(node["NodeName"])
    return given if given != node["NodeManagerAddress"] else str(node["NodeManagerHostname"])


def _nothing_of(hardware: Hardware, kinds: Sequence[Hardware], nodes: Sequence[RayNode], address: str | None) -> str:
    labels = ",".join(f"{key}={value}" for key, value in hardware.node_labels.items())
    named = "; ".join(_described(node, kinds) for node in nodes[:MAX_NAMED])
    more = f"; and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
    return (
        f"no node of the Ray cluster at {address} offers the resource {hardware.node_resource!r} "
        f"{f'and carries the labels {labels} ' if labels else ''}that hardware={hardware.name} asks for; "
        f"start workers with `{_start_command(hardware, labels, address)}` (live nodes: {named}{more})"
    )


def _start_command(hardware: Hardware, labels: str, address: str | None) -> str:
    units: int | str = 1
    if hardware.server_per == "numa_node":
        units = hardware.numa_nodes or "NUMA_NODES"
    resources = json.dumps({hardware.node_resource: units})
    words = ["RAY_worker_niceness=0 ray start", f"--address={address}", f"--resources={shlex.quote(resources)}"]
    return " ".join(words + ([f"--labels={shlex.quote(labels)}"] if labels else []))


def _described(node: RayNode, kinds: Sequence[Hardware]) -> str:
    resources = sorted({kind.node_resource for kind in kinds} & node["Resources"].keys())
    offers = ", ".join(f"{name} {node['Resources'][name]:g}" for name in resources) or "without the resource"
    labels = ", ".join(f"{key}={value}" for key, value in sorted(_labels(node).items())) or "no labels"
    return f"{_name(node)} ({offers}; {labels})"
