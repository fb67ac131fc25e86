"""AWS as the fleet needs it: clients, and what belongs to a fleet by its tag. The one home of boto3 among the fleet's
modules; credentials and endpoint are boto3's own (environment, profile, instance role)."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from orchestrator.config import Strict
from orchestrator.errors import FleetFailed
from orchestrator.fleet_money import FleetNode

Found = list[dict[str, Any]]
"""Of AWS's answer."""

TAG = "specsweep:fleet"
"""Of everything that `fleet up` makes; its value is the fleet's name."""
_GROUP_TAG = "aws:autoscaling:groupName"
_ENDED = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
_ABSENT = re.compile(r"NotFound|NoSuch|does not exist|not found", re.IGNORECASE)
_GONE_INSTANCES = ("terminated", "shutting-down")


class Group(Strict):
    """An Auto Scaling group."""

    name: str
    desired_size: int
    max_size: int
    in_service: tuple[str, ...]
    """Ids of its instances that AWS calls InService."""


class Aws:
    """Clients for one region."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._session = boto3.Session(region_name=region)
        self._clients: dict[tuple[str, str], Any] = {}

    def client(self, service: str, region: str | None = None) -> Any:
        """One a service, made when it is first asked for."""
        key = (service, region or self.region)
        if key not in self._clients:
            config = Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 2})
            self._clients[key] = self._session.client(service, region_name=key[1], config=config)
        return self._clients[key]

    @property
    def is_emulated(self) -> bool:
        return emulation() is not None


def emulation() -> str | None:
    """The endpoint that stands for AWS; None: AWS itself."""
    return os.environ.get("AWS_ENDPOINT_URL") or None


@contextmanager
def aws_errors(doing: str) -> Iterator[None]:
    """Raise FleetFailed with what was being done, where AWS refuses or cannot be reached."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise FleetFailed(f"{doing}: {str(error).splitlines()[0]}") from error


def found_by(ask: Callable[[], Found | None]) -> Found | None:
    """What `ask()` finds; nothing where AWS answers that it knows no such thing."""
    try:
        return ask()
    except ClientError as error:
        if _ABSENT.search(str(error)):
            return []
        raise


def groups_of(aws: Aws, fleet: str) -> list[Group]:
    """The fleet's Auto Scaling groups, by name."""
    with aws_errors(f"looking for the groups of fleet {fleet}"):
        pages = aws.client("autoscaling").get_paginator("describe_auto_scaling_groups")
        found = [group for page in pages.paginate(Filters=_tag_filter(fleet)) for group in page["AutoScalingGroups"]]
    return sorted((_group(group) for group in found if "Status" not in group), key=lambda group: group.name)


def nodes_of(aws: Aws, fleet: str) -> list[FleetNode]:
    """Its machines, head first, then by launch; ended ones as long as EC2 tells of them."""
    with aws_errors(f"looking for the machines of fleet {fleet}"):
        pages = aws.client("ec2").get_paginator("describe_instances")
        found = [
            _node(instance)
            for page in pages.paginate(Filters=_tag_filter(fleet))
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]
    return sorted(found, key=lambda node: (node.role, node.group or "", node.launched_utc, node.id))


def network_since(aws: Aws, fleet: str) -> datetime | None:
    """When its NAT gateway was made, which is billed until `fleet down`; None: there is none."""
    with aws_errors(f"looking for the NAT gateway of fleet {fleet}"):
        found = aws.client("ec2").describe_nat_gateways(Filter=_tag_filter(fleet))["NatGateways"]
    made = [gateway["CreateTime"] for gateway in found if gateway["State"] in ("pending", "available")]
    return min(made).astimezone(UTC) if made else None


def head_of(nodes: Sequence[FleetNode]) -> FleetNode | None:
    """The newest head that is not ended."""
    heads = [node for node in nodes if node.role == "head" and node.ended_utc is None]
    return max(heads, key=lambda node: node.launched_utc, default=None)


def _tag_filter(fleet: str) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{TAG}", "Values": [fleet]}]


def _group(group: dict[str, Any]) -> Group:
    return Group(
        name=group["AutoScalingGroupName"],
        desired_size=group["DesiredCapacity"],
        max_size=group["MaxSize"],
        in_service=tuple(i["InstanceId"] for i in group["Instances"] if i["LifecycleState"] == "InService"),
    )


def _node(instance: dict[str, Any]) -> FleetNode:
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
    state = instance["State"]["Name"]
    return FleetNode(
        id=instance["InstanceId"],
        role="worker" if _GROUP_TAG in tags else "head",
        group=tags.get(_GROUP_TAG),
        instance_type=instance["InstanceType"],
        market="spot" if instance.get("InstanceLifecycle") == "spot" else "on_demand",
        state=state,
        launched_utc=instance["LaunchTime"].astimezone(UTC),
        ended_utc=_ended(instance) if state in (*_GONE_INSTANCES, "stopped") else None,
    )


def _ended(instance: dict[str, Any]) -> datetime:
    """By the reason that EC2 gives; now where it gives no time, which counts too much rather than too little."""
    match = _ENDED.search(instance.get("StateTransitionReason", ""))
    return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) if match else datetime.now(UTC)
