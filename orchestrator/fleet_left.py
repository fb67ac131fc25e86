"""What is left of a fleet, by its tag. AWS's list of tagged things has some for hours after their end, so each is asked
for at its own service."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from orchestrator.fleet_aws import TAG, Aws, Found, aws_errors, found_by, groups_of, nodes_of

_ENDED = ("terminated", "shutting-down", "deleted", "deleting", "pendingdeletion")
"""States of what needs nobody's help to go."""
_EC2: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "elastic-ip": ("describe_addresses", "AllocationIds", "Addresses"),
        "instance": ("describe_instances", "InstanceIds", "Reservations"),
        "internet-gateway": ("describe_internet_gateways", "InternetGatewayIds", "InternetGateways"),
        "launch-template": ("describe_launch_templates", "LaunchTemplateIds", "LaunchTemplates"),
        "natgateway": ("describe_nat_gateways", "NatGatewayIds", "NatGateways"),
        "route-table": ("describe_route_tables", "RouteTableIds", "RouteTables"),
        "security-group": ("describe_security_groups", "GroupIds", "SecurityGroups"),
        "security-group-rule": ("describe_security_group_rules", "SecurityGroupRuleIds", "SecurityGroupRules"),
        "subnet": ("describe_subnets", "SubnetIds", "Subnets"),
        "volume": ("describe_volumes", "VolumeIds", "Volumes"),
        "vpc": ("describe_vpcs", "VpcIds", "Vpcs"),
        "vpc-endpoint": ("describe_vpc_endpoints", "VpcEndpointIds", "VpcEndpoints"),
        "vpc-flow-log": ("describe_flow_logs", "FlowLogIds", "FlowLogs"),
    }
)
"""Kind in an ARN: the call that tells of it, the call's argument, and where its answer is."""


def left_by_tag(aws: Aws, fleet: str) -> list[str]:
    """ARNs of what carries the fleet's tag and is still there; of a kind that is not known here, what is listed."""
    with aws_errors(f"looking for what is left of fleet {fleet}"):
        pages = aws.client("resourcegroupstaggingapi").get_paginator("get_resources")
        arns = {
            str(entry["ResourceARN"])
            for page in pages.paginate(TagFilters=[{"Key": TAG, "Values": [fleet]}])
            for entry in page["ResourceTagMappingList"]
        }
        arns |= {f"arn:aws:ec2:{aws.region}::instance/{n.id}" for n in nodes_of(aws, fleet) if n.ended_utc is None}
        arns |= {f"arn:aws:autoscaling:{aws.region}::autoScalingGroup/{g.name}" for g in groups_of(aws, fleet)}
        return sorted(arn for arn in arns if not is_gone(aws, arn))


def is_gone(aws: Aws, arn: str) -> bool:
    """Whether a listed thing has ended already, or ends without anybody's help."""
    _, _, service, _, _, resource = arn.split(":", 5)
    find = _FINDERS.get(service)
    if find is None:
        return False
    found = found_by(lambda: find(aws, resource))
    return found is not None and all(_state(one).lower() in _ENDED for one in found)


def _state(found: Mapping[str, Any]) -> str:
    state = found.get("State") or found.get("KeyState") or ""
    return str(state["Name"] if isinstance(state, Mapping) else state)


def _ec2(aws: Aws, resource: str) -> Found | None:
    kind, _, name = resource.partition("/")
    if kind not in _EC2:
        return None
    call, argument, answer = _EC2[kind]
    found: Found = getattr(aws.client("ec2"), call)(**{argument: [name]})[answer]
    return [instance for one in found for instance in one["Instances"]] if kind == "instance" else found


def _group(aws: Aws, resource: str) -> Found:
    call = aws.client("autoscaling").describe_auto_scaling_groups
    return list(call(AutoScalingGroupNames=[resource.rpartition("/")[2]])["AutoScalingGroups"])


def _key(aws: Aws, resource: str) -> Found:
    return [aws.client("kms").describe_key(KeyId=resource.partition("/")[2])["KeyMetadata"]]


def _bucket(aws: Aws, resource: str) -> Found:
    return [found for found in aws.client("s3").list_buckets()["Buckets"] if found["Name"] == resource]


def _parameter(aws: Aws, resource: str) -> Found:
    wanted = {"Key": "Name", "Option": "Equals", "Values": [resource.removeprefix("parameter")]}
    return list(aws.client("ssm").describe_parameters(ParameterFilters=[wanted])["Parameters"])


def _log_group(aws: Aws, resource: str) -> Found:
    name = resource.removeprefix("log-group:").removesuffix(":*")
    found = aws.client("logs").describe_log_groups(logGroupNamePrefix=name)["logGroups"]
    return [group for group in found if group["logGroupName"] == name]


def _alarm(aws: Aws, resource: str) -> Found:
    return list(aws.client("cloudwatch").describe_alarms(AlarmNames=[resource.partition(":")[2]])["MetricAlarms"])


def _iam(aws: Aws, resource: str) -> Found | None:
    kind, name = resource.partition("/")[0], resource.rpartition("/")[2]
    if kind == "role":
        return [aws.client("iam").get_role(RoleName=name)["Role"]]
    if kind == "instance-profile":
        return [aws.client("iam").get_instance_profile(InstanceProfileName=name)["InstanceProfile"]]
    return None


_FINDERS: Mapping[str, Callable[[Aws, str], Found | None]] = MappingProxyType(
    {
        "autoscaling": _group,
        "cloudwatch": _alarm,
        "ec2": _ec2,
        "iam": _iam,
        "kms": _key,
        "logs": _log_group,
        "s3": _bucket,
        "ssm": _parameter,
    }
)
"""Service in an ARN: what finds a thing there; None of it: a kind that is not known."""
