"""Where a sweep runs, and where it is recorded."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from orchestrator.config.base import PositiveInt, Strict
from orchestrator.secret_values import has_credentials

IMAGE = r"^[a-z0-9][A-Za-z0-9._:/@-]*$"
"""A container image: registry/repository:tag or @sha256:digest."""


class FleetSize(Strict):
    """Workers of one hardware profile."""

    desired_size: Annotated[int, Field(ge=0)]
    max_size: PositiveInt

    @model_validator(mode="after")
    def _desired_within_maximum(self) -> Self:
        if self.desired_size > self.max_size:
            raise ValueError(f"desired_size must be at most max_size={self.max_size}, but got {self.desired_size}")
        return self


class Fleet(Strict):
    """Machines on AWS that `orchestrator fleet` makes, keeps for a while and removes: a head, and one Auto Scaling
    group of workers a hardware profile."""

    name: str = Field(default="specsweep", pattern=r"^[a-z][a-z0-9-]{0,23}$")
    """Prefix of everything's name, and the value of its tag `specsweep:fleet`."""
    region: str = Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$")
    availability_zones: tuple[Annotated[str, Field(pattern=r"^[a-z0-9-]+$")], ...] = ()
    """To choose from; empty: all of the region but Local Zones."""
    vpc_cidr: str = Field(default="10.42.0.0/16", pattern=r"^[0-9.]+/[0-9]+$")
    head_instance_type: str = Field(default="m7i.large", pattern=r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$")
    head_volume_gb: PositiveInt = 100
    head_image: str = Field(pattern=IMAGE)
    """Container image of the driver, MLflow and Ray's head, in any registry that the nodes reach."""
    worker_image: str = Field(pattern=IMAGE)
    sizes: dict[str, FleetSize] = Field(min_length=1)
    """Hardware profile -> its workers; `default` stands for every profile that is not named."""
    on_demand_base: Annotated[int, Field(ge=0)] = 0
    """Workers of a group that are on demand before any is spot."""
    spot_percentage: Annotated[int, Field(ge=0, le=100)] = 0
    """Of the workers above on_demand_base."""
    worker_volume_gb: PositiveInt = 200
    ttl_hours: float = Field(gt=0)
    """The lease: how long after `fleet up`, or after a running sweep's last renewal, the workers end by themselves."""
    max_hours: float = Field(gt=0)
    """No renewal goes beyond this age of the fleet; the head shuts itself down then."""
    head_usd_per_hour: float = Field(ge=0)
    network_usd_per_hour: float = Field(ge=0)
    """NAT gateway and its address, until `fleet down`."""
    release_at_end: bool = True
    """The end of a sweep scales the workers to zero."""
    model_mirror: str | None = Field(default=None, pattern=r"^s3://[a-z0-9.-]+(/[A-Za-z0-9._/-]*)?$")
    """Model files in S3, s3://BUCKET/PREFIX, in a bucket of yours with SSE-S3 encryption, not the fleet's own; None:
    nodes fetch from the Hugging Face hub."""
    results_bucket: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")
    """Bucket to make for results; None: named after the fleet and the account."""
    mlflow_allowed_hosts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9.*:-]+$")], ...] = ()
    """Names besides loopback and the head's own address by which MLflow may be asked."""
    hf_token_version: PositiveInt = 1
    """One more makes the next `fleet up` store HF_TOKEN anew, for nodes that boot after it. Ray's token and MLflow's
    password are replaced by `fleet down` and `fleet up`."""

    @model_validator(mode="after")
    def _lease_within_lifetime(self) -> Self:
        if self.ttl_hours > self.max_hours:
            raise ValueError(f"ttl_hours must be at most max_hours={self.max_hours:g}, but got {self.ttl_hours:g}")
        return self

    @property
    def fixed_usd_per_hour(self) -> float:
        """What the fleet costs without workers."""
        return self.head_usd_per_hour + self.network_usd_per_hour

    def size_of(self, profile: str) -> FleetSize | None:
        return self.sizes.get(profile) or self.sizes.get("default")


class Cluster(Strict):
    aws: Fleet | None = None
    """The fleet that the nodes belong to; None: they are somebody else's to start and end."""
    budget_usd: float | None = Field(default=None, gt=0)
    """What machines may cost: a sweep whose estimate lies above it is not started. None: no limit."""
    address: str | None = None
    """HOST:PORT of a running Ray's GCS; None starts a fresh Ray on this machine for the sweep."""
    auth_mode: Literal["disabled", "token"] = "disabled"
    silence_grace_s: float = Field(default=60, gt=0)
    """How long a node may be silent beyond what its work can take before the visit is measured elsewhere."""
    node_return_s: float = Field(default=120, ge=0)
    """How long the end of a sweep waits for a node that left and has no closing baseline; after that its arms count
    with the opening one."""

    @property
    def is_this_machine(self) -> bool:
        return self.address is None and self.aws is None

    @property
    def model_mirror(self) -> str | None:
        """Where nodes fetch models from in place of the hub; see Fleet."""
        return self.aws.model_mirror if self.aws else None

    @field_validator("address")
    @classmethod
    def _explicit(cls, address: str | None) -> str | None:
        host, _, port = (address or "h:1").rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(
                f"address must be HOST:PORT (never 'auto', which may join a stranger's cluster), but got {address!r}"
            )
        return address


class Tracking(Strict):
    uri: str | None = "sqlite:///mlflow.db"
    """MLflow tracking URI; None records nothing there."""
    experiment: str = "speculative-decoding"

    @field_validator("uri")
    @classmethod
    def _no_credentials(cls, uri: str | None) -> str | None:
        """It is written to config.yaml, and shown by `ps`."""
        if uri and has_credentials(uri):
            raise ValueError(
                "a tracking URI must not hold a user or password; set MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD in the environment instead"
            )
        return uri
