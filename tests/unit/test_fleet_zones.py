"""A fleet lies in zones that have its machines."""

import pytest

from orchestrator.compose import compose
from orchestrator.config import Fleet
from orchestrator.errors import ConfigError
from orchestrator.fleet_zones import choose_zones
from tests.unit.test_fleet import AWS

BOTH, HEAD, WORKER = {"m7i.large", "r8i.16xlarge"}, {"m7i.large"}, {"r8i.16xlarge"}


@pytest.fixture
def fleet() -> Fleet:
    found = compose(AWS).cluster.aws
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ({"a": BOTH, "b": BOTH, "c": BOTH}, ("a", "b")),
        ({"a": HEAD, "b": BOTH, "c": BOTH}, ("b", "c")),
        ({"a": set(), "b": BOTH, "c": HEAD}, ("b",)),
        ({"a": WORKER, "b": BOTH}, ("b",)),
    ],
)
def test_fleet_lies_where_its_head_and_its_workers_can(
    fleet: Fleet, offered: dict[str, set[str]], chosen: tuple[str, ...]
) -> None:
    assert choose_zones(sorted(offered), offered, fleet, sorted(BOTH)) == chosen


@pytest.mark.parametrize("offered", [{"a": HEAD, "b": HEAD}, {"a": WORKER}, {}, {"a": HEAD, "b": WORKER}])
def test_types_that_no_zone_has_together_are_said(fleet: Fleet, offered: dict[str, set[str]]) -> None:
    wanted = r"m7i\.large and r8i\.16xlarge: not offered together in any zone of us-east-1 \(.*; choose"
    with pytest.raises(ConfigError, match=wanted) as said:
        choose_zones(["a", "b"], offered, fleet, sorted(BOTH))
    for zone in ("a", "b"):
        assert f"{zone}: {', '.join(offered.get(zone, ())) or 'none'}" in str(said.value)


def test_only_zones_to_choose_from_are_taken(fleet: Fleet) -> None:
    assert choose_zones(["b"], {"a": BOTH, "b": BOTH}, fleet, sorted(BOTH)) == ("b",)
