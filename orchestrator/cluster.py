"""The Ray cluster of a sweep: a fresh one on this machine, or a running one at an explicit address."""

import atexit
import os
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.config import Cluster, Hardware
from orchestrator.errors import NodeUnavailable

OBJECT_STORE_BYTES = 256 * 1024 * 1024


@contextmanager
def ray_cluster(cluster: Cluster, hardware: Hardware) -> Iterator[None]:
    """Connect to Ray, and on leaving disconnect; a cluster started here ends with it.

    Raises:
        NodeUnavailable: no Ray answers at the address, or none of its nodes offers `hardware.node_resource`.
    """
    _choose_auth(cluster)
    import ray  # reads the mode once, at import

    try:
        if cluster.address is None:
            _start_local(ray, hardware)
        else:
            _join(ray, cluster.address)
        if not live_nodes(hardware):
            raise NodeUnavailable(
                f"no node of the Ray cluster at {cluster.address} offers the resource {hardware.node_resource!r} "
                f"that hardware={hardware.name} asks for; start workers with "
                f"`ray start --address={cluster.address} --resources='{{\"{hardware.node_resource}\": 1}}'`"
            )
        yield
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


def _name(node: dict[str, Any]) -> str:
    given = str(node["NodeName"])
    return given if given != node["NodeManagerAddress"] else str(node["NodeManagerHostname"])


def _choose_auth(cluster: Cluster) -> None:
    """Ray takes these from the environment only; unset, they would depend on files in the user's home."""
    os.environ["RAY_AUTH_MODE"] = "token" if cluster.address is None else cluster.auth_mode
    if cluster.address is None:
        os.environ["RAY_AUTH_TOKEN_PATH"] = _own_token()


@cache
def _own_token() -> str:
    """A token file for the clusters this process starts, so that nobody else on the network can use them."""
    folder = tempfile.mkdtemp(prefix="specsweep-ray-")  # mode 700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "auth_token"
    path.write_text(secrets.token_hex(32))
    return str(path)


def _start_local(ray: Any, hardware: Hardware) -> None:
    ray.init(
        address="local",
        resources={hardware.node_resource: 1},
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )


def _join(ray: Any, address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or ["no answer"])[0]
        raise NodeUnavailable(
            f"no Ray cluster answers at cluster.address={address}: {reason}; "
            "check the address and cluster.auth_mode, and that the head runs the same Ray version"
        ) from error
