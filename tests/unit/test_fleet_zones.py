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
        ({"a": HEAD, "b": WORKER, "c": WORKER}, ("a", "b")),
        ({"a": BOTH, "b": WORKER}, ("a", "b")),
    ],
)
def test_head_lies_where_workers_can_lie_too(
    fleet: Fleet, offered: dict[str, set[str]], chosen: tuple[str, ...]
) -> None:
    assert choose_zones(sorted(offered), offered, fleet, ["r8i.16xlarge"]) == chosen


@pytest.mark.parametrize(
    ("offered", "missing"), [({"a": HEAD, "b": HEAD}, "r8i.16xlarge"), ({"a": WORKER}, "m7i.large"), ({}, "m7i.large")]
)
def test_type_that_no_zone_has_is_said(fleet: Fleet, offered: dict[str, set[str]], missing: str) -> None:
    with pytest.raises(ConfigError, match=rf"{missing}: not offered in any of .*us-east-1; choose"):
        choose_zones(sorted(offered), offered, fleet, ["r8i.16xlarge"])


def test_only_zones_to_choose_from_are_taken(fleet: Fleet) -> None:
    assert choose_zones(["b"], {"a": BOTH, "b": BOTH}, fleet, ["r8i.16xlarge"]) == ("b",)
