"""A fleet's life: up, its state, its size, down. Sweeps on it are started by `fleet_sweep`."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from orchestrator.config import Fleet, FleetSize, Hardware, Strict, SweepConfig
from orchestrator.errors import ConfigError, FleetFailed
from orchestrator.fleet_aws import (
    Aws,
    Group,
    aws_errors,
    emulation,
    groups_of,
    head_of,
    network_since,
    nodes_of,
)
from orchestrator.fleet_head import nodes_alive_in_ray
from orchestrator.fleet_lease import lease_of, scale, set_lease
from orchestrator.fleet_left import left_by_tag
from orchestrator.fleet_money import (
    FleetNode,
    fleet_usd_per_hour,
    lease_end,
    running_usd_per_hour,
    spent_usd,
)
from orchestrator.fleet_nodes import NODES, remember
from orchestrator.fleet_prices import priced
from orchestrator.fleet_terraform import Terraform, tfvars
from orchestrator.fleet_zones import find_zones

READY_TIMEOUT_S = 1200.0
"""An instance boots in about a minute; the rest is for pulling vLLM's image."""
POLL_S = 5.0
LEAST_LEASE_H = 0.5
"""A node that ends sooner has hardly fetched its image."""
_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com/([^:@]+)(?::([^@]+)|@(sha256:.+))")


class GroupStatus(Strict):
    name: str
    desired_size: int
    max_size: int
    in_service: int
    lease_end_utc: datetime | None
    """None: nothing ends it by itself."""


class FleetStatus(Strict):
    """What `fleet status` tells; times in UTC."""

    name: str
    region: str
    asked_utc: datetime
    head_id: str | None
    head_ends_utc: datetime | None
    """When the head shuts itself down."""
    groups: tuple[GroupStatus, ...]
    nodes: tuple[FleetNode, ...]
    """Ended ones too."""
    workers_end_utc: datetime | None
    """When the last group goes to zero by itself; None: there is none, or one has no lease."""
    usd_per_hour: float | None
    usd_so_far: float | None
    """Launch times x prices; traffic, storage and taxes are not in it."""
    budget_usd: float | None
    network_since_utc: datetime | None
    """Since when the NAT gateway is billed, which only `fleet down` ends; None: there is none."""
    network_usd_per_hour: float


@dataclass(frozen=True)
class Context:
    """What every command on a fleet needs."""

    fleet: Fleet
    profiles: tuple[Hardware, ...]
    workers: tuple[tuple[Hardware, FleetSize], ...]
    budget_usd: float | None
    aws: Aws
    terraform: Terraform
    folder: Path
    console: Console


def context(config: SweepConfig, console: Console, root: Path = Path("fleets")) -> Context:
    """From a configuration with `cluster=aws`; nothing is asked of AWS yet.

    Raises:
        ConfigError: no fleet is described, or the hardware profile does not fit one.
    """
    fleet = config.cluster.aws
    if fleet is None:
        raise ConfigError("no fleet is described here; choose cluster=aws, or a file of your own with a part `aws`")
    hardware = config.hardware
    size = fleet.size_of(hardware.name)
    if hardware.instance_type is None:
        raise ConfigError(f"hardware={hardware.name} names no instance_type, so AWS cannot start it; choose another")
    if not _PROFILE.fullmatch(hardware.name):
        raise ConfigError(f"hardware.name must be letters, digits, - and _ for a fleet, but got {hardware.name!r}")
    if size is None:
        raise ConfigError(
            f"cluster.aws.sizes has no entry for {hardware.name} and no `default`; "
            f"give cluster.aws.sizes.{hardware.name}={{desired_size:1,max_size:1}}"
        )
    folder = root / fleet.name
    return Context(
        fleet=fleet,
        profiles=(hardware,),
        workers=((hardware, size),),
        budget_usd=config.cluster.budget_usd,
        aws=Aws(fleet.region),
        terraform=Terraform(folder, console),
        folder=folder,
        console=console,
    )


def up(ctx: Context, ready_timeout_s: float = READY_TIMEOUT_S) -> FleetStatus:
    """Make the fleet, or bring it in line with a changed configuration; give it a lease; wait until it can measure.

    Raises:
        ConfigError: nothing was started.
        FleetFailed: what is there stays, with its lease; `fleet down` removes it.
    """
    fleet, say = ctx.fleet, ctx.console.print
    zones = preflight(ctx)
    workers = [(priced(hardware, ctx.aws), size) for hardware, size in ctx.workers]
    hourly = _require_budget(ctx, workers)
    say(
        f"Fleet {fleet.name} in {fleet.region}: "
        + ", ".join(f"{size.desired_size} x {hardware.instance_type}" for hardware, size in workers)
        + f", {usd(hourly)} an hour; the workers end by themselves {fleet.ttl_hours:g} h from now",
        highlight=False,
        soft_wrap=True,
    )
    _require_lease(ctx, _desired(ctx))
    ctx.terraform.apply(tfvars(ctx.fleet, ctx.workers, zones, emulation()))
    _start_workers(ctx)
    _wait_ready(ctx, ready_timeout_s)
    return status(ctx)


def _start_workers(ctx: Context) -> None:
    """First the lease, then the workers: whoever is killed in between leaves none without an end."""
    wanted = _desired(ctx)
    renew(ctx, wanted)
    for group in groups_of(ctx.aws, ctx.fleet.name):
        if group.desired_size < wanted:
            scale(ctx.aws, group, wanted)


def _desired(ctx: Context) -> int:
    """Workers that the configuration asks for; a fleet has one profile."""
    [(_, size)] = ctx.workers
    return size.desired_size


def preflight(ctx: Context) -> tuple[str, ...]:
    """What can be known to fail before anything is made; the zones that the fleet is to lie in.

    Raises:
        ConfigError: with what to change.
    """
    ctx.terraform.require()
    try:
        with aws_errors("checking AWS credentials"):
            ctx.aws.client("sts").get_caller_identity()
    except FleetFailed as error:
        raise ConfigError(f"{error}; `aws sts get-caller-identity` must work here first") from error
    if not ctx.terraform.has_state and (left := left_by_tag(ctx.aws, ctx.fleet.name)):
        raise ConfigError(
            f"{ctx.fleet.region} has a fleet named {ctx.fleet.name} already ({len(left)} resources, as {left[0]}), but "
            f"{ctx.folder} has no state of it; run from the folder that made it, or give cluster.aws.name=ANOTHER"
        )
    zones = zones_of(ctx)
    for image in (ctx.fleet.head_image, ctx.fleet.worker_image):
        _require_image(ctx.aws, image)
    return zones


def renew(ctx: Context, num_nodes: int = 0) -> datetime | None:
    """Set the lease of all groups to ttl_hours from now, within max_hours and budget. None: there is no group.

    Args:
        num_nodes: workers that there will be, where that is more than there are.
    """
    groups = groups_of(ctx.aws, ctx.fleet.name)
    return set_lease(ctx.aws, groups, _lease_end(ctx, num_nodes)) if groups else None


def _lease_end(ctx: Context, num_nodes: int) -> datetime:
    now = datetime.now(UTC)
    nodes = known_nodes(ctx)
    head = head_of(nodes)
    network = network_since(ctx.aws, ctx.fleet.name)
    running = running_usd_per_hour(ctx.fleet, ctx.profiles, nodes, has_network=network is not None)
    asked = fleet_usd_per_hour(ctx.fleet, [(hardware, num_nodes) for hardware in ctx.profiles])
    return lease_end(
        ctx.fleet,
        now,
        head.launched_utc if head else now,
        ctx.budget_usd,
        spent_usd(ctx.fleet, ctx.profiles, nodes, now, network),
        None if running is None or asked is None else max(running, asked),
    )


def _require_lease(ctx: Context, num_nodes: int) -> None:
    """ConfigError where that many workers would have to end before they have measured anything."""
    end = _lease_end(ctx, num_nodes)
    left_h = (end - datetime.now(UTC)).total_seconds() / 3600
    if num_nodes and left_h < min(LEAST_LEASE_H, ctx.fleet.ttl_hours) - 0.01:
        network = network_since(ctx.aws, ctx.fleet.name)
        spent = spent_usd(ctx.fleet, ctx.profiles, known_nodes(ctx), datetime.now(UTC), network)
        raise ConfigError(
            f"{num_nodes} workers could run for {max(0.0, 60 * left_h):.0f} min only: {usd(spent)} of "
            f"cluster.budget_usd={ctx.budget_usd} are spent, and cluster.aws.max_hours={ctx.fleet.max_hours:g} end the "
            "fleet; raise the budget, ask for fewer, or begin anew by `orchestrator fleet down`"
        )


def status(ctx: Context) -> FleetStatus:
    """Of a fleet that may be up, partly up or down."""
    now = datetime.now(UTC)
    profiles = [priced(hardware, ctx.aws) for hardware in ctx.profiles]
    nodes = known_nodes(ctx)
    groups = groups_of(ctx.aws, ctx.fleet.name)
    ends = [lease_of(ctx.aws, group) for group in groups]
    network = network_since(ctx.aws, ctx.fleet.name)
    head = head_of(nodes)
    return FleetStatus(
        name=ctx.fleet.name,
        region=ctx.fleet.region,
        asked_utc=now,
        head_id=head.id if head else None,
        head_ends_utc=head.launched_utc + timedelta(hours=ctx.fleet.max_hours) if head else None,
        groups=tuple(_group_status(group, end) for group, end in zip(groups, ends, strict=True)),
        nodes=tuple(nodes),
        workers_end_utc=max(known) if (known := [end for end in ends if end]) and None not in ends else None,
        usd_per_hour=running_usd_per_hour(ctx.fleet, profiles, nodes, has_network=network is not None),
        usd_so_far=spent_usd(ctx.fleet, profiles, nodes, now, network),
        budget_usd=ctx.budget_usd,
        network_since_utc=network,
        network_usd_per_hour=ctx.fleet.network_usd_per_hour,
    )


def resize(ctx: Context, num_nodes: int) -> FleetStatus:
    """Set how many workers of the hardware profile there are; with a lease from now, unless there were more."""
    name = ctx.terraform.outputs().get("asg_names", {}).get(ctx.profiles[0].name)
    group = next((group for group in groups_of(ctx.aws, ctx.fleet.name) if group.name == name), None)
    if group is None:
        raise ConfigError(f"fleet {ctx.fleet.name} has no group of {ctx.profiles[0].name}; run `orchestrator fleet up`")
    if num_nodes > group.max_size:
        raise ConfigError(
            f"{group.name} takes at most {group.max_size} nodes, but got {num_nodes}; "
            "raise its max_size in cluster.aws.sizes and run `orchestrator fleet up` again"
        )
    if num_nodes > group.desired_size:
        _require_lease(ctx, num_nodes)
    if num_nodes >= group.desired_size:
        renew(ctx, num_nodes)
    scale(ctx.aws, group, num_nodes)
    return status(ctx)


def known_nodes(ctx: Context) -> list[FleetNode]:
    """Every machine that the fleet had, as far as it was looked at from here: EC2 soon forgets those that ended."""
    return remember(ctx.folder / NODES, nodes_of(ctx.aws, ctx.fleet.name), datetime.now(UTC))


def _require_budget(ctx: Context, workers: Sequence[tuple[Hardware, FleetSize]]) -> float | None:
    """Dollars an hour at the desired sizes; ConfigError where even the first lease would cost more than the budget."""
    hourly = fleet_usd_per_hour(ctx.fleet, [(hardware, size.desired_size) for hardware, size in workers])
    if ctx.budget_usd is None:
        return hourly
    if hourly is None:
        raise ConfigError("cluster.budget_usd needs the price of every node: set hardware.usd_per_hour")
    cost = hourly * ctx.fleet.ttl_hours
    if cost > ctx.budget_usd:
        raise ConfigError(
            f"this fleet costs {usd(hourly)} an hour, {usd(cost)} in its first {ctx.fleet.ttl_hours:g} h, but "
            f"cluster.budget_usd={ctx.budget_usd:g}; lower desired_size or cluster.aws.ttl_hours, or raise the budget"
        )
    return hourly


def zones_of(ctx: Context) -> tuple[str, ...]:
    """Where the network lies already, else where the instance types are."""
    made = ctx.terraform.outputs().get("availability_zones", ())
    return find_zones(ctx.aws, ctx.fleet, [str(hardware.instance_type) for hardware in ctx.profiles], made)


def _require_image(aws: Aws, image: str) -> None:
    """Of ECR; whether another registry has an image, only the nodes can tell."""
    match = _ECR.fullmatch(image)
    if match is None:
        return
    account, region, repository, tag, digest = match.groups()
    wanted = {"imageTag": tag} if tag else {"imageDigest": digest}
    try:
        with aws_errors(f"looking for the image {image}"):
            aws.client("ecr", region).describe_images(registryId=account, repositoryName=repository, imageIds=[wanted])
    except FleetFailed as error:
        raise ConfigError(f"{error}; build and push it first: see docs/fleet.md") from error


def _wait_ready(ctx: Context, timeout_s: float) -> None:
    """Until every wanted worker is InService and alive in Ray, which an emulation of AWS has none of."""
    deadline = time.monotonic() + timeout_s
    with ctx.console.status("waiting for the workers ...") as shown:
        while True:
            missing = _not_ready(ctx)
            if not missing:
                return
            shown.update(f"waiting: {missing}")
            if time.monotonic() > deadline:
                raise FleetFailed(
                    f"not ready after {timeout_s / 60:.0f} min: {missing}{_why_no_instances(ctx)}; the lease ends the "
                    "workers; `orchestrator fleet status` shows them, `orchestrator fleet up` waits again"
                )
            time.sleep(POLL_S)


def _not_ready(ctx: Context) -> str | None:
    """What is still missing, in a sentence."""
    groups = groups_of(ctx.aws, ctx.fleet.name)
    wanted = sum(group.desired_size for group in groups)
    in_service = {name for group in groups for name in group.in_service}
    if not groups or len(in_service) < wanted:
        return f"{len(in_service)} of {wanted} workers are InService"
    if ctx.aws.is_emulated:
        return None
    outputs = ctx.terraform.outputs()
    try:
        alive = nodes_alive_in_ray(ctx.aws, outputs["head_instance_id"], outputs["ray_address"])
    except FleetFailed as error:
        return f"{wanted} workers are InService, but Ray cannot be asked yet ({error})"
    joined = len(in_service & alive)
    return None if joined >= wanted else f"{joined} of {wanted} workers are alive in Ray"


def _why_no_instances(ctx: Context) -> str:
    """The newest failure of each group's scaling, in AWS's words: quota, capacity, permissions."""
    reasons = []
    for group in groups_of(ctx.aws, ctx.fleet.name):
        with aws_errors(f"reading the activities of {group.name}"):
            activities = ctx.aws.client("autoscaling").describe_scaling_activities(
                AutoScalingGroupName=group.name, MaxRecords=10
            )["Activities"]
        failed = [activity for activity in activities if activity["StatusCode"] == "Failed"]
        reasons += [f"; {group.name}: {activity['StatusMessage']}" for activity in failed[:1]]
    return "".join(reasons)


def _group_status(group: Group, end: datetime | None) -> GroupStatus:
    return GroupStatus(
        name=group.name,
        desired_size=group.desired_size,
        max_size=group.max_size,
        in_service=len(group.in_service),
        lease_end_utc=end,
    )


def usd(amount: float | None) -> str:
    """For people."""
    return "an unknown price" if amount is None else f"${amount:,.2f}"
