"""In which zones a fleet's network lies: those that have its instance types, which not every zone of a region has."""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

from orchestrator.config import Fleet
from orchestrator.errors import ConfigError
from orchestrator.fleet_aws import Aws, aws_errors

NUM_ZONES = 2
"""A second one gives AWS a choice where the first has no machine left."""


def find_zones(aws: Aws, fleet: Fleet, worker_types: Sequence[str], made: Sequence[str] = ()) -> tuple[str, ...]:
    """Where the network is to lie, the head's zone first; see `choose_zones`. Local and Wavelength Zones count only
    where `cluster.aws.availability_zones` names them.

    Args:
        made: where it lies already, and stays: another choice would remake it.

    Raises:
        ConfigError: no zone has what is asked for.
    """
    named = fleet.availability_zones
    if made and named and not set(made) <= set(named):
        raise ConfigError(
            f"fleet {fleet.name} lies in {', '.join(made)}, but cluster.aws.availability_zones={','.join(named)}; "
            "another choice takes `orchestrator fleet down` and `fleet up`"
        )
    types = sorted({fleet.head_instance_type, *worker_types})
    with aws_errors("asking which zones have the instance types"):
        ec2 = aws.client("ec2")
        pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": types}]
        )
        offered: defaultdict[str, set[str]] = defaultdict(set)
        for offer in (offer for page in pages for offer in page["InstanceTypeOfferings"]):
            offered[offer["Location"]].add(offer["InstanceType"])
        usual = ec2.describe_availability_zones(
            Filters=[
                {"Name": "state", "Values": ["available"]},
                {"Name": "opt-in-status", "Values": ["opt-in-not-required"]},
            ]
        )["AvailabilityZones"]
    zones = tuple(made) or named or tuple(sorted(zone["ZoneName"] for zone in usual))
    chosen = choose_zones(zones, offered, fleet, types)
    return tuple(made) or chosen


def choose_zones(
    zones: Sequence[str], offered: Mapping[str, Set[str]], fleet: Fleet, types: Sequence[str]
) -> tuple[str, ...]:
    """The first `NUM_ZONES` that have all `types`: a group also asks the head's zone for workers.

    Args:
        zones: to choose from.
        offered: zone -> instance types.
        types: the head's and the workers'.
    """
    having = [zone for zone in zones if offered.get(zone, set()) >= set(types)]
    if not having:
        known = [f"{zone}: {', '.join(sorted(offered.get(zone, set()) & set(types))) or 'none'}" for zone in zones]
        raise ConfigError(
            f"{' and '.join(types)}: not offered together in any zone of {fleet.region} ({'; '.join(known)}); choose "
            "cluster.aws.region, cluster.aws.availability_zones or another instance type (the head's is "
            "cluster.aws.head_instance_type)"
        )
    return tuple(having[:NUM_ZONES])
