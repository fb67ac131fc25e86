"""In which zones a fleet's network lies: those that have its instance types, which not every zone of a region has."""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

from orchestrator.config import Fleet
from orchestrator.errors import ConfigError
from orchestrator.fleet_aws import Aws, aws_errors

NUM_ZONES = 2
"""A second one gives AWS a choice where the first has no machine left."""


def find_zones(aws: Aws, fleet: Fleet, worker_types: Sequence[str]) -> tuple[str, ...]:
    """The head's zone, then another for workers; see `choose_zones`. Local and Wavelength Zones count only where
    `cluster.aws.availability_zones` names them.

    Raises:
        ConfigError: no zone has what is asked for.
    """
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
    zones = fleet.availability_zones or tuple(sorted(zone["ZoneName"] for zone in usual))
    return choose_zones(zones, offered, fleet, worker_types)


def choose_zones(
    zones: Sequence[str], offered: Mapping[str, Set[str]], fleet: Fleet, worker_types: Sequence[str]
) -> tuple[str, ...]:
    """At most `NUM_ZONES`, the head's first: best one that has the workers' types, too.

    Args:
        zones: to choose from.
        offered: zone -> instance types.
    """

    def having(*types: str) -> list[str]:
        return [zone for zone in zones if offered.get(zone, set()) >= set(types)]

    head, workers = having(fleet.head_instance_type), having(*worker_types)
    for types, found in (([fleet.head_instance_type], head), (worker_types, workers)):
        if not found:
            raise ConfigError(
                f"{', '.join(types)}: not offered in any of {', '.join(zones) or 'no zones'} of {fleet.region}; "
                "choose cluster.aws.region or another instance type"
            )
    first = next((zone for zone in head if zone in workers), head[0])
    return (first, *[zone for zone in workers if zone != first][: NUM_ZONES - 1])
