"""A kind of node."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from orchestrator.config.base import PositiveInt, Strict


class Hardware(Strict):
    """One kind of node. `None` means: detected on the node, or not known."""

    name: str
    node_resource: str = "xeon_node"
    """Ray custom resource that a node of this kind offers once for each server it can run; a visit takes one."""
    node_labels: dict[str, str] = Field(default_factory=dict)
    """Ray labels that a node of this kind carries (`ray start --labels`), so that one cluster may have several kinds.
    A node with more labels counts too."""
    server_per: Literal["node", "numa_node"] = "node"
    """`numa_node`: a server for each of a node's NUMA nodes, all at the same time, each on its own cores and memory.
    The node then offers node_resource once for each."""
    reserved_cores: Annotated[int, Field(ge=0)] = 0
    """Physical cores per server, its last ones, kept free of the engine's threads: for the load generator, which runs
    on nothing else, and for the engine's scheduler and Ray. 0 with server_per=node leaves the binding to vLLM, which
    keeps one for its scheduler."""
    physical_cores: PositiveInt | None = None
    numa_nodes: PositiveInt | None = None
    memory_gb: float | None = Field(default=None, gt=0)
    memory_mt_per_s: PositiveInt | None = None
    memory_channels: PositiveInt | None = None
    isa: tuple[str, ...] = ()
    """CPU flags, as in /proc/cpuinfo, that the node must have (for example amx_bf16)."""
    max_other_cpu_share: float | None = Field(default=0.1, gt=0, le=1)
    """Share of the node's CPUs that processes besides the engine and its load generator may use while a block runs;
    above it the block is void. Ray, the driver and the kernel took 0.02 to 0.08 CPUs on a quiet machine with two.
    None: no limit, as where server.command starts the engine outside its own process tree (`docker run`)."""
    node_tolerance: float | None = Field(default=0.15, gt=0, lt=1)
    """Share by which a node's baseline may be slower than the fleet's before the node is set aside (its probed memory
    bandwidth by twice that). None: no node is ever set aside."""
    instance_type: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$")
    """EC2's name of this kind of node, which `fleet up` starts; None: a machine of your own."""
    usd_per_hour: float | None = Field(default=None, gt=0)
    """What an hour costs on demand."""
    usd_per_hour_date: str | None = None
    usd_per_hour_source: str | None = None
    spot_usd_per_hour: float | None = Field(default=None, gt=0)
    """What an hour of a spot node costs: `fleet sweep` writes AWS's price of that day here."""
    spot_usd_per_hour_date: str | None = None

    @field_validator("node_labels")
    @classmethod
    def _as_ray_takes_them(cls, labels: dict[str, str]) -> dict[str, str]:
        word = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
        for key, value in labels.items():
            if not re.fullmatch(rf"([A-Za-z0-9.-]{{1,253}}/)?{word}", key) or not re.fullmatch(word, value):
                raise ValueError(
                    "a label's key and value are letters, digits, - _ and . (up to 63), the key with an optional "
                    f"PREFIX/, but got {key!r}: {value!r}"
                )
            if key.startswith("ray.io/"):
                raise ValueError(f"Ray sets the labels ray.io/... itself, but got {key!r}")
        return labels

    @model_validator(mode="after")
    def _price_can_be_divided(self) -> Self:
        if self.server_per == "numa_node" and self.usd_per_hour is not None and self.numa_nodes is None:
            raise ValueError("server_per=numa_node shares usd_per_hour among the node's servers: set numa_nodes")
        return self

    @property
    def servers_per_node(self) -> int:
        """At the same time; 1 where the profile does not know its NUMA nodes."""
        return (self.numa_nodes or 1) if self.server_per == "numa_node" else 1

    @property
    def usd_per_server_hour(self) -> float | None:
        """What one server costs: with a server per NUMA node its share of the node."""
        return None if self.usd_per_hour is None else self.usd_per_hour / self.servers_per_node

    @property
    def spot_usd_per_server_hour(self) -> float | None:
        return None if self.spot_usd_per_hour is None else self.spot_usd_per_hour / self.servers_per_node

    @property
    def memory_bandwidth_gb_per_s(self) -> float | None:
        """Peak of all channels: MT/s x 8 bytes x channels / 1000."""
        if self.memory_mt_per_s is None or self.memory_channels is None:
            return None
        return self.memory_mt_per_s * 8 * self.memory_channels / 1000
