"""The Ray cluster of a sweep: a fresh one on this machine, or a running one at an explicit address."""

import atexit
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
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
from tasks.lifeline import Lifeline, answers

OBJECT_STORE_BYTES = 256 * 1024 * 1024
CONNECT_TIMEOUT_S = 5.0
LAST_RESORT_S = 15.0
"""From the loss of the cluster to the end of this process, should the main thread not come back from Ray."""
KEEPALIVE = {"RAY_grpc_client_keepalive_time_ms": "10000", "RAY_grpc_client_keepalive_timeout_ms": "5000"}
"""So that a node that is cut off fails its tasks after seconds; by Ray's own setting minutes pass."""

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
        ClusterLost: the cluster's head, or the Ray of this machine, died or went out of reach.
    """
    _choose_auth(cluster)
    import ray  # reads the mode once, at import

    on_sigterm = signal.getsignal(signal.SIGTERM)
    watch = None
    try:
        if cluster.address is None:
            _start_local(ray, kinds)
        else:
            _join(ray, cluster.address)
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own handler aborts the process with a stack trace
        watch = _Watch(ray, cluster.address)
        require_nodes(kinds, _alive(), cluster.address)

        def live(hardware: Hardware) -> dict[str, str]:
            watch.require_cluster()
            return slots_of(hardware, kinds, _alive())

        yield live
    except KeyboardInterrupt:
        if watch and watch.lost:
            watch.require_cluster()
        raise
    finally:
        if watch:
            watch.lifeline.release()
        if not watch or not watch.lost:  # else it would wait a minute for what is gone
            ray.shutdown()


def _alive() -> list[RayNode]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


class _Watch:
    """Sees the cluster die before Ray does: that blocks for up to a minute, and then ends this process at once."""

    def __init__(self, ray: Any, address: str | None) -> None:
        self._address = address
        self._head = str(ray.get_runtime_context().gcs_address)
        self._servants = _servants(ray, address)
        self.lost: str | None = None
        """Why the cluster is lost, once it is."""
        self.lifeline = Lifeline(self._holds, self._cut)

    def require_cluster(self) -> None:
        """Raise ClusterLost if it is."""
        self._look_for_dead()
        if self.lost:
            raise ClusterLost(f"{self.lost}; what was measured is kept, the same command continues")

    def _holds(self) -> bool:
        return not self._look_for_dead() and answers(self._head)

    def _look_for_dead(self) -> bool:
        dead = [child.pid for child in self._servants if not _is_alive(child)]
        if dead and self._address is None:
            self.lost = (
                f"the Ray that this sweep started has died (process {dead[0]} is gone; killed, or out of memory?)"
            )
        elif dead:
            self.lost = (
                f"Ray on this machine has died (process {dead[0]} is gone), as it does when the head of the cluster at "
                f"{self._address} was restarted"
            )
        return bool(dead)

    def _cut(self) -> None:
        """Interrupt the main thread, as Ctrl-C would; where that is stuck inside Ray, end the process."""
        self.lost = self.lost or f"the head of the Ray cluster at {self._head} does not answer any more"
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(LAST_RESORT_S)
        sys.stderr.write(f"error: {self.lost}; what was measured is kept, the same command continues\n")
        sys.stderr.flush()
        os._exit(ClusterLost.exit_code)


def _servants(ray: Any, address: str | None) -> list[psutil.Process]:
    """The processes of this machine without which its Ray is lost: of a cluster that was joined, its raylet."""
    if address is None:
        return [child for child in psutil.Process().children() if child.name() in ("raylet", "gcs_server")]
    node_id = ray.get_runtime_context().get_node_id()
    return [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "raylet" and f"--node_id={node_id}" in (process.info["cmdline"] or [])
    ]


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _choose_auth(cluster: Cluster) -> None:
    """Ray takes these from the environment only; unset, they would depend on files in the user's home."""
    for name, value in KEEPALIVE.items():
        os.environ.setdefault(name, value)
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
