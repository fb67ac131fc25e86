"""The end of a fleet: workers at once, then everything, but never results that nobody has asked to delete."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from orchestrator.errors import FleetFailed
from orchestrator.fleet import Context, known_nodes, usd
from orchestrator.fleet_aws import Aws, aws_errors, groups_of, network_since, nodes_of
from orchestrator.fleet_lease import release
from orchestrator.fleet_left import left_by_tag
from orchestrator.fleet_money import spent_usd
from orchestrator.fleet_nodes import NODES

KEPT = ("aws_s3_bucket", "aws_kms_key.", "aws_kms_alias.")
"""Beginnings of addresses: the bucket with its settings, and the key without which nobody can read what is in it."""
LISTED_TIMEOUT_S = 120.0
"""AWS lists what is deleted for a while."""
POLL_S = 5.0
BILLED = (":instance/", ":natgateway/", ":volume/", ":elastic-ip/", ":autoscaling:", ":s3:::", ":kms:")
"""In ARNs of what costs something as long as it is there."""


def down(ctx: Context, delete_results: bool = False, listed_timeout_s: float = LISTED_TIMEOUT_S) -> None:
    """Remove the fleet; a bucket with results stays, with its key, unless `delete_results`. Can be repeated, and
    without Terraform's state ends at least what is billed by the hour.

    Raises:
        FleetFailed: something is left; the message says what.
    """
    fleet, say = ctx.fleet, ctx.console.print
    nodes, network = known_nodes(ctx), network_since(ctx.aws, fleet.name)
    _end_machines(ctx.aws, fleet.name)
    by_terraform = ctx.terraform.has_state
    if by_terraform:
        kept = _destroy(ctx, delete_results)
        advice = "the same command tries again"
    else:
        _end_by_tag(ctx.aws, fleet.name)
        kept, advice = [], f"{ctx.folder} has no state of it, so remove that by hand"
    left = _left(ctx.aws, fleet.name, kept, listed_timeout_s)
    cost = spent_usd(fleet, ctx.profiles, known_nodes(ctx), datetime.now(UTC), network)
    say(f"{len(nodes)} machines in all, {usd(cost)} by launch times and prices", highlight=False)
    if left and by_terraform and not any(part in arn for arn in left for part in BILLED):
        say(
            f"AWS still has {', '.join(left)}: it costs nothing, and Terraform removed all it made, so AWS is late or "
            "somebody else gave it the tag",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )
    elif left:
        raise FleetFailed(f"still there with the tag of fleet {fleet.name}: {', '.join(left)}; {advice}")
    if nodes:
        (ctx.folder / NODES).rename(ctx.folder / f"nodes-{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}.json")
    elsewhere = " else" if kept or left else ""
    say(f"Fleet {fleet.name} is down: nothing{elsewhere} with its tag is left", highlight=False)


def _destroy(ctx: Context, delete_results: bool) -> list[str]:
    """By Terraform. ARNs of what stays: the bucket where it has results, and its keys."""
    ctx.terraform.require()
    bucket = ctx.terraform.results_bucket()
    if bucket is None or _is_empty(ctx.aws, bucket):
        ctx.terraform.destroy()
        return []
    if delete_results:
        _empty(ctx.aws, bucket)
        ctx.terraform.destroy()
        return []
    keys = _keys_of(ctx.aws, bucket)
    ctx.terraform.destroy(keep=[address for address in ctx.terraform.addresses() if address.startswith(KEPT)])
    ctx.console.print(
        f"Results stay in s3://{bucket}, with the key that opens them ($1 a month); "
        "`orchestrator fleet down --delete-results` deletes both",
        highlight=False,
        soft_wrap=True,
    )
    return [f"arn:aws:s3:::{bucket}", *keys]


def _left(aws: Aws, fleet: str, kept: Sequence[str], timeout_s: float) -> list[str]:
    deadline = time.monotonic() + timeout_s
    while (left := [arn for arn in left_by_tag(aws, fleet) if arn not in kept]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


def _is_empty(aws: Aws, bucket: str) -> bool:
    """Old versions count as results; a bucket that is not there is empty."""
    with aws_errors(f"looking into the bucket {bucket}"):
        s3 = aws.client("s3")
        if all(found["Name"] != bucket for found in s3.list_buckets()["Buckets"]):
            return True
        return "Versions" not in s3.list_object_versions(Bucket=bucket, MaxKeys=1)


def _empty(aws: Aws, bucket: str) -> None:
    with aws_errors(f"emptying the bucket {bucket}"):
        s3 = aws.client("s3")
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
            found = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
            objects = [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in found]
            if objects:
                s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})


def _keys_of(aws: Aws, bucket: str) -> list[str]:
    """ARNs of the keys that the bucket encrypts with."""
    with aws_errors(f"reading the encryption of {bucket}"):
        rules = aws.client("s3").get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    found: list[dict[str, Any]] = [rule["ApplyServerSideEncryptionByDefault"] for rule in rules]
    return [str(rule["KMSMasterKeyID"]) for rule in found if "KMSMasterKeyID" in rule]


def _end_machines(aws: Aws, fleet: str) -> None:
    """All at once, and wait for it: as its last act the head copies what it holds to the bucket."""
    release(aws, fleet)
    running = [node for node in nodes_of(aws, fleet) if node.ended_utc is None]
    heads = [node.id for node in running if node.role == "head"]
    with aws_errors(f"ending the machines of fleet {fleet}"):
        if heads:
            aws.client("ec2").terminate_instances(InstanceIds=heads)
            aws.client("ec2").get_waiter("instance_terminated").wait(InstanceIds=heads)


def _end_by_tag(aws: Aws, fleet: str) -> None:
    """What costs by the hour besides, found by tag: groups with their workers, NAT gateways."""
    with aws_errors(f"ending what fleet {fleet} pays for"):
        for group in groups_of(aws, fleet):
            aws.client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=group.name, ForceDelete=True)
        for arn in left_by_tag(aws, fleet):
            if ":natgateway/" in arn:
                aws.client("ec2").delete_nat_gateway(NatGatewayId=arn.rpartition("/")[2])
