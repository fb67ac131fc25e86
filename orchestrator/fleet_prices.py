"""What AWS asks for an instance type today, on demand and on the spot market."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from orchestrator.config import Hardware
from orchestrator.errors import FleetFailed
from orchestrator.fleet_aws import Aws, aws_errors

PRICE_LIST_REGION = "us-east-1"
"""The pricing service has few endpoints; this one knows the prices of all regions."""
_log = logging.getLogger(__name__)


def priced(hardware: Hardware, aws: Aws) -> Hardware:
    """The profile with today's prices, their date and source. What AWS does not tell stays as the profile has it."""
    if hardware.instance_type is None:
        return hardware
    today = datetime.now(UTC).date().isoformat()
    found: dict[str, object] = {}
    on_demand = _asked(on_demand_usd_per_hour, aws, hardware.instance_type)
    if on_demand is not None:
        source = f"AWS price list on {today}: on demand, {aws.region}, Linux"
        found |= {"usd_per_hour": on_demand, "usd_per_hour_date": today, "usd_per_hour_source": source}
    spot = _asked(spot_usd_per_hour, aws, hardware.instance_type)
    if spot is not None:
        found |= {"spot_usd_per_hour": spot, "spot_usd_per_hour_date": today}
    return hardware.model_copy(update=found)


def on_demand_usd_per_hour(aws: Aws, instance_type: str) -> float | None:
    """Linux, shared tenancy, nothing installed; None: the price list has no such instance type there."""
    wanted = {
        "instanceType": instance_type,
        "regionCode": aws.region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    products = aws.client("pricing", PRICE_LIST_REGION).get_products(
        ServiceCode="AmazonEC2",
        Filters=[{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()],
    )["PriceList"]
    prices = [
        float(dimension["pricePerUnit"]["USD"])
        for product in map(json.loads, products)
        for term in product["terms"].get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
        if dimension["unit"] == "Hrs" and "USD" in dimension["pricePerUnit"]
    ]
    return max((price for price in prices if price > 0), default=None)


def spot_usd_per_hour(aws: Aws, instance_type: str) -> float | None:
    """Of the dearest availability zone now, since AWS chooses the zone; None: not on the spot market there."""
    history = aws.client("ec2").describe_spot_price_history(
        InstanceTypes=[instance_type], ProductDescriptions=["Linux/UNIX"], StartTime=datetime.now(UTC)
    )["SpotPriceHistory"]
    latest: dict[str, dict[str, Any]] = {}
    for entry in history:
        zone = entry["AvailabilityZone"]
        if zone not in latest or entry["Timestamp"] > latest[zone]["Timestamp"]:
            latest[zone] = entry
    return max((price for entry in latest.values() if (price := float(entry["SpotPrice"])) > 0), default=None)


def _asked(ask: Callable[[Aws, str], float | None], aws: Aws, instance_type: str) -> float | None:
    """None, with a warning, where AWS does not answer: a price is no reason to stop."""
    what = ask.__name__.replace("_", " ")
    try:
        with aws_errors(f"asking AWS for {what} of {instance_type}"):
            return ask(aws, instance_type)
    except FleetFailed as error:
        _log.warning("the hardware profile's price counts: %s", error)
        return None
