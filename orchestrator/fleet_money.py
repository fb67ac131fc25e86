"""What a fleet's machines have cost, what they cost by the hour, and how long its lease may become. Dollars and UTC."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Literal

from orchestrator.config import Fleet, Hardware, Strict

Market = Literal["on_demand", "spot"]


class FleetNode(Strict):
    """One machine of a fleet, as EC2 tells it."""

    id: str
    role: Literal["head", "worker"]
    group: str | None
    """Its Auto Scaling group; None for the head."""
    instance_type: str
    market: Market
    state: str
    """EC2's: pending, running, shutting-down, terminated, stopping, stopped."""
    launched_utc: datetime
    ended_utc: datetime | None = None
    """None while it is billed."""

    def hours(self, now: datetime) -> float:
        """Billed so far."""
        return max(0.0, ((self.ended_utc or now) - self.launched_utc).total_seconds() / 3600)


def price_of(hardware: Hardware, market: Market) -> float | None:
    """Dollars an hour; a spot node whose price is not known counts as on demand, which it never exceeds."""
    if market == "spot" and hardware.spot_usd_per_hour is not None:
        return hardware.spot_usd_per_hour
    return hardware.usd_per_hour


def group_usd_per_hour(fleet: Fleet, hardware: Hardware, num_nodes: int) -> float | None:
    """Of `num_nodes` workers, mixed as AWS mixes them: the spot share is rounded down. None: a price is missing."""
    above_base = max(0, num_nodes - fleet.on_demand_base)
    num_on_demand = num_nodes - above_base + ceil(above_base * (100 - fleet.spot_percentage) / 100)
    parts = [(num_on_demand, price_of(hardware, "on_demand")), (num_nodes - num_on_demand, price_of(hardware, "spot"))]
    return _sum(count * price if price is not None else None for count, price in parts if count)


def fleet_usd_per_hour(fleet: Fleet, workers: Sequence[tuple[Hardware, int]]) -> float | None:
    """Of the whole fleet with that many workers of each profile; None: a price is missing."""
    groups = _sum(group_usd_per_hour(fleet, hardware, number) for hardware, number in workers)
    return None if groups is None else fleet.fixed_usd_per_hour + groups


def spent_usd(
    fleet: Fleet,
    profiles: Sequence[Hardware],
    nodes: Sequence[FleetNode],
    now: datetime,
    network_since: datetime | None = None,
) -> float | None:
    """Launch times x prices of all nodes and of the network.

    None: a worker is of a type that no profile prices.

    Args:
        network_since: when the NAT gateway that is there was made; None: it lived as long as the heads.
    """
    by_type = {hardware.instance_type: hardware for hardware in profiles}
    head_hours = sum(node.hours(now) for node in nodes if node.role == "head")
    network_hours = max(head_hours, (now - (network_since or now)).total_seconds() / 3600)

    def cost(node: FleetNode) -> float | None:
        if node.role == "head":
            return node.hours(now) * fleet.head_usd_per_hour
        hardware = by_type.get(node.instance_type)
        price = price_of(hardware, node.market) if hardware else None
        return None if price is None else node.hours(now) * price

    return _sum([*(cost(node) for node in nodes), network_hours * fleet.network_usd_per_hour])


def running_usd_per_hour(
    fleet: Fleet, profiles: Sequence[Hardware], nodes: Iterable[FleetNode], *, has_network: bool = False
) -> float | None:
    """Of the nodes that are billed now, and of a network without a head; None: a worker's price is missing."""
    now = datetime.now(UTC)
    begun = now - timedelta(hours=1)
    hour = [node.model_copy(update={"launched_utc": begun}) for node in nodes if not node.ended_utc]
    return spent_usd(fleet, profiles, hour, now, begun if has_network else None)


def lease_end(
    fleet: Fleet,
    now: datetime,
    born: datetime,
    budget_usd: float | None = None,
    spent: float | None = None,
    usd_per_hour: float | None = None,
) -> datetime:
    """When the workers are to end by themselves: after ttl_hours, but not beyond max_hours from the fleet's birth, nor
    beyond the hour in which the budget would be spent. Without known costs the budget cannot shorten it."""
    ends = [now + timedelta(hours=fleet.ttl_hours), born + timedelta(hours=fleet.max_hours)]
    if budget_usd is not None and spent is not None and usd_per_hour:
        ends.append(now + timedelta(hours=(budget_usd - spent) / usd_per_hour))
    return max(now, min(ends))


def merged(known: Iterable[FleetNode], seen: Iterable[FleetNode], now: datetime) -> list[FleetNode]:
    """Nodes by id: as last seen, and those that EC2 no longer tells of, which it does about an hour after their end.

    Of two ends the earlier counts: the later one is when somebody noticed.
    """
    before, found = {node.id: node for node in known}, {node.id: node for node in seen}
    gone = [
        node if node.ended_utc else node.model_copy(update={"state": "terminated", "ended_utc": now})
        for node in before.values()
        if node.id not in found
    ]
    return [*gone, *(_ended_first(node, before.get(node.id)) for node in found.values())]


def _ended_first(node: FleetNode, before: FleetNode | None) -> FleetNode:
    ends = [each.ended_utc for each in (node, before) if each and each.ended_utc]
    return node.model_copy(update={"ended_utc": min(ends)}) if node.ended_utc else node


def _sum(parts: Iterable[float | None]) -> float | None:
    """None where one is missing."""
    total = 0.0
    for part in parts:
        if part is None:
            return None
        total += part
    return total
