"""What a sweep is expected to take, as `plan` prints it."""

from rich.table import Table

from orchestrator.display import number
from orchestrator.forecast import Forecast, Spending
from orchestrator.terminal import plain_table
from orchestrator.token_time import Range

NODES = (1, 2, 4, 8)
MOST_HOURS_IN_MINUTES = 2


def forecast_table(expected: Forecast) -> Table:
    """By number of nodes: what is typical, and in brackets what it takes at most."""
    table = plain_table("Expected, before anything is measured: typical (at most)")
    unit, per_hour = ("min", 60) if expected.at_most(1).wall_h.high < MOST_HOURS_IN_MINUTES else ("h", 1)
    table.add_column("nodes", justify="right", no_wrap=True)
    for header in (f"wall time, {unit}", f"machine time, {unit}"):
        table.add_column(header)
    hardware = expected.hardware
    prices = {"USD": hardware.usd_per_hour, "USD on spot": hardware.spot_usd_per_hour}
    for header in (name for name, price in prices.items() if price is not None):
        table.add_column(header)
    for nodes in sorted({*NODES, expected.num_nodes or 1}):
        if nodes in (1, expected.num_nodes) or nodes <= expected.num_arms:
            table.add_row(str(nodes), *_cells(expected.typical(nodes), expected.at_most(nodes), per_hour))
    return table


def basis_text(expected: Forecast) -> str:
    """What the estimate rests on, in a sentence."""
    visits = f"{expected.typical_arms} of at most {expected.num_arms} arms" if expected.num_arms else "the baseline"
    return f"Typical is {visits} and two visits of the baseline a node. It rests on {'; '.join(expected.basis)}."


def _cells(typical: Spending, most: Spending, per_hour: int) -> list[str]:
    pairs = [(typical.wall_h, most.wall_h), (typical.machine_h, most.machine_h)]
    cells = [_cell(usual.scaled(per_hour), at_most.scaled(per_hour)) for usual, at_most in pairs]
    for usual, at_most in ((typical.usd, most.usd), (typical.spot_usd, most.spot_usd)):
        if usual is not None and at_most is not None:
            cells.append(_cell(usual, at_most))
    return cells


def _cell(typical: Range, most: Range) -> str:
    return f"{number(typical.low)} to {number(typical.high)} ({number(most.high)})"
