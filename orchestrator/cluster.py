"""The Ray cluster of a sweep: a fresh one on this machine, or a running one at an explicit address."""

import atexit
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from orchestrator.config import Cluster, Hardware
from orchestrator.errors import ClusterLost, NodeUnavailable
from orchestrator.node_kinds import RayNode, require_nodes, slots_of
from tasks.cpu_binding import num_numa_nodes

OBJECT_STORE_BYTES = 256 * 1024 * 1024
CONNECT_TIMEOUT_S = 5.0

LiveNodes = Callable[[Hardware], dict[str, str]]
"""Slot -> Ray node id of what is alive of that hardware (see node_kinds); raises ClusterLost once the cluster that was
started here is dead."""


@contextmanager
def ray_cluster(cluster: Cluster, kinds: Sequence[Hardware]) -> Iterator[LiveNodes]:
    """Connect to Ray, and on leaving disconnect; a cluster started here ends with it. Yields what tells its nodes.

    Args:
        kinds: the hardware to measure on; a cluster started here has one.

    Raises:
        NodeUnavailable: no Ray answers at the address, a hardware has no node there, or a node is of two.
    """
    _choose_auth(cluster)
    import ray  # reads the mode once, at import

    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        if cluster.address is None:
            _start_local(ray, kinds)
        else:
            _join(ray, cluster.address)
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own handler aborts the process with a stack trace
        servants = _servants() if cluster.address is None else []
        require_nodes(kinds, _alive(), cluster.address)

        def live(hardware: Hardware) -> dict[str, str]:
            _require_running(servants)
            return slots_of(hardware, kinds, _alive())

        yield live
    finally:
        ray.shutdown()


def _alive() -> list[RayNode]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


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


def _start_local(ray: Any, kinds: Sequence[Hardware]) -> None:
    if len(kinds) > 1:
        raise NodeUnavailable(
            f"this machine is not {' and '.join(kind.name for kind in kinds)} at once; "
            "measure them on a cluster: cluster=address cluster.address=HOST:PORT"
        )
    [hardware] = kinds
    # Its default of 15 would put anything else on this machine before the engine. Ray wants this name as it is.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    ray.init(
        address="local",
        resources={hardware.node_resource: num_numa_nodes() if hardware.server_per == "numa_node" else 1},
        labels=hardware.node_labels,
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
    except (OSError, OverflowError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
        reason = (str(error).splitlines() or ["no answer"])[0]
        raise NodeUnavailable(
            f"no Ray cluster answers at cluster.address={address}: {reason}; "
            "check the address, cluster.auth_mode and its token (RAY_AUTH_TOKEN_PATH), and that the head runs the same "
            "Ray version"
        ) from error
