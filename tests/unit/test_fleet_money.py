"""What a fleet costs, and how far its lease may reach."""

from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.config import Fleet, FleetSize, Hardware
from orchestrator.fleet_money import (
    FleetNode,
    Market,
    fleet_usd_per_hour,
    group_usd_per_hour,
    lease_end,
    merged,
    running_usd_per_hour,
    spent_usd,
)

NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)
FLEET = Fleet(
    region="us-east-1",
    head_image="own/head:1",
    worker_image="own/worker:1",
    sizes={"default": FleetSize(desired_size=1, max_size=4)},
    ttl_hours=4,
    max_hours=24,
    head_usd_per_hour=0.4,
    network_usd_per_hour=0.1,
)
XEON = Hardware(name="xeon", instance_type="r8i.16xlarge", usd_per_hour=4, spot_usd_per_hour=1)
UNPRICED = Hardware(name="new", instance_type="r9i.16xlarge")


def fleet(**changes: object) -> Fleet:
    return FLEET.model_copy(update=changes)


def hours(count: float) -> timedelta:
    return timedelta(hours=count)


def worker(
    name: str, age_hours: float, *, market: Market = "on_demand", ended_after: float | None = None, type_: str = ""
) -> FleetNode:
    launched = NOW - hours(age_hours)
    return FleetNode(
        id=name,
        role="worker",
        group="specsweep-xeon",
        instance_type=type_ or "r8i.16xlarge",
        market=market,
        state="running" if ended_after is None else "terminated",
        launched_utc=launched,
        ended_utc=None if ended_after is None else launched + hours(ended_after),
    )


def head(age_hours: float) -> FleetNode:
    return worker("i-head", age_hours, type_="m7i.large").model_copy(update={"role": "head", "group": None})


@pytest.mark.parametrize(
    ("num_nodes", "base", "spot_percentage", "usd"),
    [
        (3, 0, 0, 12),
        (3, 0, 100, 3),
        (3, 1, 100, 6),
        (3, 0, 50, 9),  # AWS rounds in favour of on demand: two and one
        (1, 2, 100, 4),
        (0, 1, 50, 0),
    ],
)
def test_group_is_priced_as_aws_mixes_markets(num_nodes: int, base: int, spot_percentage: int, usd: float) -> None:
    mixed = fleet(on_demand_base=base, spot_percentage=spot_percentage)

    assert group_usd_per_hour(mixed, XEON, num_nodes) == usd


def test_spot_node_without_a_spot_price_counts_as_on_demand() -> None:
    unknown = XEON.model_copy(update={"spot_usd_per_hour": None})

    assert group_usd_per_hour(fleet(spot_percentage=100), unknown, 2) == 8


def test_unknown_price_is_no_price_rather_than_nothing() -> None:
    assert fleet_usd_per_hour(FLEET, [(XEON, 1)]) == 4.5
    assert fleet_usd_per_hour(FLEET, [(XEON, 1), (UNPRICED, 1)]) is None
    assert fleet_usd_per_hour(FLEET, [(UNPRICED, 0)]) == 0.5


def test_cost_counts_every_node_from_launch_to_end() -> None:
    nodes = [head(3), worker("a", 3), worker("b", 3, ended_after=1), worker("c", 2, market="spot")]

    assert spent_usd(FLEET, [XEON], nodes, NOW) == pytest.approx(3 * 0.5 + 3 * 4 + 1 * 4 + 2 * 1)
    assert running_usd_per_hour(FLEET, [XEON], nodes) == pytest.approx(0.5 + 4 + 1)


def test_network_costs_until_it_is_gone_also_when_the_head_has_ended() -> None:
    ended = [head(10).model_copy(update={"ended_utc": NOW - hours(6)})]

    assert spent_usd(FLEET, [XEON], ended, NOW) == pytest.approx(4 * 0.5)
    assert spent_usd(FLEET, [XEON], ended, NOW, network_since=NOW - hours(10)) == pytest.approx(4 * 0.4 + 10 * 0.1)
    assert running_usd_per_hour(FLEET, [XEON], ended) == 0
    assert running_usd_per_hour(FLEET, [XEON], ended, has_network=True) == pytest.approx(0.1)
    assert running_usd_per_hour(FLEET, [XEON], [head(1)], has_network=True) == pytest.approx(0.5)


def test_cost_of_a_type_that_no_profile_prices_is_not_known() -> None:
    assert spent_usd(FLEET, [XEON], [worker("a", 1, type_="c7i.large")], NOW) is None


def test_lease_is_ttl_from_now_until_the_fleets_age_cuts_it() -> None:
    assert lease_end(FLEET, NOW, NOW - hours(1)) == NOW + hours(4)
    assert lease_end(FLEET, NOW, NOW - hours(22)) == NOW + hours(2)
    assert lease_end(FLEET, NOW, NOW - hours(30)) == NOW


def test_lease_ends_when_the_budget_would_be_spent() -> None:
    assert lease_end(FLEET, NOW, NOW, budget_usd=20, spent=10, usd_per_hour=5) == NOW + hours(2)
    assert lease_end(FLEET, NOW, NOW, budget_usd=100, spent=10, usd_per_hour=5) == NOW + hours(4)
    assert lease_end(FLEET, NOW, NOW, budget_usd=20, spent=25, usd_per_hour=5) == NOW


@pytest.mark.parametrize(("spent", "usd_per_hour"), [(None, 5), (10, None), (10, 0)])
def test_budget_cannot_cut_the_lease_while_costs_are_unknown(spent: float | None, usd_per_hour: float | None) -> None:
    assert lease_end(FLEET, NOW, NOW, budget_usd=1, spent=spent, usd_per_hour=usd_per_hour) == NOW + hours(4)


def test_node_that_ec2_no_longer_tells_of_is_kept_as_ended() -> None:
    before = [worker("a", 3), worker("b", 3, ended_after=1)]

    nodes = {node.id: node for node in merged(before, [worker("c", 0)], NOW)}

    assert set(nodes) == {"a", "b", "c"}
    assert (nodes["a"].state, nodes["a"].ended_utc) == ("terminated", NOW)
    assert nodes["b"].hours(NOW) == pytest.approx(1)
    assert nodes["c"].ended_utc is None


def test_node_seen_again_is_as_last_seen() -> None:
    assert merged([worker("a", 3)], [worker("a", 3, ended_after=2)], NOW) == [worker("a", 3, ended_after=2)]


def test_node_that_two_saw_end_ended_when_the_first_of_them_saw_it() -> None:
    on_the_head, noticed_later = worker("a", 9, ended_after=3), worker("a", 9, ended_after=8)

    assert merged([on_the_head], [noticed_later], NOW) == [on_the_head]
    assert merged([noticed_later], [on_the_head], NOW) == [on_the_head]
