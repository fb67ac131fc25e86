"""`orchestrator break-even`: its input and its table."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from orchestrator.break_even import BreakEven, geometric_profile
from orchestrator.display import number
from orchestrator.errors import ConfigError


def parse_profile(survival: str | None, acceptance_length: str | None) -> tuple[float, ...]:
    """The survival profile that the options name; empty where they name none.

    Raises:
        ConfigError: it cannot be read, or is no survival profile.
    """
    if survival and acceptance_length:
        raise ConfigError("give --survival or --acceptance-length, not both")
    if acceptance_length:
        return _from_length(acceptance_length)
    if not survival:
        return ()
    try:
        profile = tuple(float(part) for part in survival.split(","))
    except ValueError:
        raise ConfigError(f"--survival: numbers with commas between, such as 0.86,0.78, but got {survival!r}") from None
    if any(not 0 <= share <= 1 for share in profile) or sorted(profile, reverse=True) != list(profile):
        raise ConfigError(f"--survival: shares from 0 to 1, each at most the one before it, but got {survival!r}")
    return profile


def _from_length(text: str) -> tuple[float, ...]:
    length, _, k = text.partition("@")
    if not k:
        raise ConfigError(
            f"--acceptance-length: {text!r} was reached at some num_speculative_tokens, and says nothing of other ones "
            f"without it; write both as LENGTH@K, such as {length}@15"
        )
    try:
        numbers = float(length), int(k)
    except ValueError:
        raise ConfigError(
            f"--acceptance-length: LENGTH@K, a number and a whole one, such as 6.93@15, but got {text!r}"
        ) from None
    try:
        return geometric_profile(*numbers)
    except ValueError as error:
        raise ConfigError(f"--acceptance-length: {error}, but got {text!r}") from error


def break_even_table(rows: Sequence[BreakEven], sweep_id: str, is_priced: bool) -> Table:
    title = f"Tokens a step must yield to break even, from the step times of {sweep_id}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("concurrency", justify="right")
    table.add_column("arm", no_wrap=True)
    table.add_column("break-even\ntokens/step", justify="right")
    table.add_column("over workloads", justify="right")
    if is_priced:
        table.add_column("speedup, predicted\n(not measured)", justify="right")
    for row in rows:
        cells = [
            str(row.max_concurrency),
            row.arm,
            number(row.break_even_acceptance_length),
            f"{number(row.least)} to {number(row.most)}",
        ]
        table.add_row(*cells, *([number(row.predicted_speedup)] if is_priced else []))
    return table
