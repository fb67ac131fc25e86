"""The Ray cluster of a sweep: a fresh one on this machine, or a running one at an explicit address."""

import atexit
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from orchestrator.config import Cluster, Hardware
from orchestrator.errors import ClusterLost, NodeUnavailable

OBJECT_STORE_BYTES = 256 * 1024 * 1024
CONNECT_TIMEOUT_S = 5.0

LiveNodes = Callable[[], dict[str, str]]
"""See `live_nodes`; raises ClusterLost once the cluster that was started here is dead."""


@contextmanager
def ray_cluster(cluster: Cluster, hardware: Hardware) -> Iterator[LiveNodes]:
    """Connect to Ray, and on leaving disconnect; a cluster started here ends with it. Yields what tells its nodes.

    Raises:
        NodeUnavailable: no Ray answers at the address, or none of its nodes offers `hardware.node_resource`.
    """
    _choose_auth(cluster)
    import ray  # reads the mode once, at import

    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        if cluster.address is None:
            _start_local(ray, hardware)
        else:
            _join(ray, cluster.address)
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own handler aborts the process with a stack trace
        servants = _servants() if cluster.address is None else []
        if not live_nodes(hardware):
            raise NodeUnavailable(
                f"no node of the Ray cluster at {cluster.address} offers the resource {hardware.node_resource!r} "
                f"that hardware={hardware.name} asks for; start workers with "
                f"`ray start --address={cluster.address} --resources='{{\"{hardware.node_resource}\": 1}}'`"
            )

        def live() -> dict[str, str]:
            _require_running(servants)
            return live_nodes(hardware)

        yield live
    finally:
        ray.shutdown()


def live_nodes(hardware: Hardware) -> dict[str, str]:
    """Node name -> Ray node id of all live nodes of that kind.

    The name stays the same over restarts of Ray (set with `ray start --node-name`, else the host's name), since
    figures are paired by it.
    """
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get(hardware.node_resource, 0) >= 1]
    names = Counter(_name(node) for node in nodes)
    return {
        _name(node) if names[_name(node)] == 1 else f"{_name(node)}-{node['NodeID'][:8]}": node["NodeID"]
        for node in nodes
    }


def _servants() -> list[psutil.Process]:
    """The processes without which the Ray started here is lost."""
    return [child for child in psutil.Process().children() if child.name() in ("raylet", "gcs_server")]


def _require_running(servants: list[psutil.Process]) -> None:
    """Ray itself notices late (15 s), and then ends this process at once, with nothing kept in order."""
    dead = [child.pid for child in servants if not child.is_running() or child.status() == psutil.STATUS_ZOMBIE]
    if dead:
        raise ClusterLost(
            f"the Ray that this sweep started has died (process {dead[0]} is gone; killed, or out of memory?); "
            "what was measured is kept, the same command continues"
        )


def _name(node: dict[str, Any]) -> str:
    given = str(node["NodeName"])
    return given if given != node["NodeManagerAddress"] else str(node["NodeManagerHostname"])


def _choose_auth(cluster: Cluster) -> None:
    """Ray takes these from the environment only; unset, they would depend on files in the user's home."""
    os.environ["RAY_AUTH_MODE"] = "token" if cluster.address is None else cluster.auth_mode
    if cluster.address is None:
        os.environ["RAY_AUTH_TOKEN_PATH"] = _own_token()
        # Off, Ray's servers listen on loopback alone (RAY_ENABLE... is what Ray calls it on every system).
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


@cache
def _own_token() -> str:
    """A token file for the clusters this process starts, so that nobody else on the network can use them."""
    folder = tempfile.mkdtemp(prefix="specsweep-ray-")  # mode 700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "auth_token"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return str(path)


def _start_local(ray: Any, hardware: Hardware) -> None:
    # Its default of 15 would put anything else on this machine before the engine. Ray wants this name as it is.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    ray.init(
        address="local",
        resources={hardware.node_resource: 1},
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )


def _join(ray: Any, address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        # Ray would try for minutes, and print about it.
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or ["no answer"])[0]
        raise NodeUnavailable(
            f"no Ray cluster answers at cluster.address={address}: {reason}; "
            "check the address and cluster.auth_mode, and that the head runs the same Ray version"
        ) from error
