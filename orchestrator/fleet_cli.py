"""`orchestrator fleet up | status | sweep | scale | down`: machines on AWS, for as long as a sweep needs them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from orchestrator.command_line import typed_command
from orchestrator.compose import compose

if TYPE_CHECKING:
    from orchestrator.fleet import Context, FleetStatus

fleet_app = typer.Typer(
    no_args_is_help=True,
    help="Machines on AWS for a sweep, which end by themselves: docs/fleet.md.",
    epilog="Every command takes the sweep's own overrides: orchestrator fleet up sweep=xeon_dflash cluster=aws "
    "cluster.aws.head_image=... cluster.aws.worker_image=...",
)
out = Console(soft_wrap=False)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Hydra overrides, for example sweep=xeon_dflash cluster=aws", metavar="KEY=VALUE"),
]
ConfigDir = Annotated[Path | None, typer.Option(help="A folder with your own hardware/, model/, cluster/ ... files")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs")]
DeleteResults = Annotated[bool, typer.Option("--delete-results", help="Delete the bucket with all results, too")]
NumNodes = Annotated[int, typer.Argument(min=0, help="Workers of the hardware profile", metavar="N")]


@fleet_app.command()
def up(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Make the fleet with a lease, and wait until its workers can measure. Run again, it brings it in line."""
    from orchestrator.fleet import up as bring_up

    _show(bring_up(_context(overrides, config_dir)))


@fleet_app.command()
def status(overrides: Overrides = None, config_dir: ConfigDir = None, as_json: AsJson = False) -> None:
    """Show nodes, cost so far, and when everything ends by itself."""
    from orchestrator.fleet import status as ask

    found = ask(_context(overrides, config_dir))
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        _show(found)


@fleet_app.command()
def sweep(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Start the sweep on the fleet's head, and say how to follow it."""
    from orchestrator.fleet_sweep import start_sweep
    from orchestrator.preview import preview

    config = compose(overrides or [], config_dir)
    start_sweep(_context(overrides, config_dir), config, preview(config).expected, typed_command())


@fleet_app.command()
def scale(num_nodes: NumNodes, overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Have N workers, with a lease from now."""
    from orchestrator.fleet import resize

    _show(resize(_context(overrides, config_dir), num_nodes))


@fleet_app.command()
def down(overrides: Overrides = None, config_dir: ConfigDir = None, delete_results: DeleteResults = False) -> None:
    """Remove the fleet and verify that nothing is left. A bucket with results stays."""
    from orchestrator.fleet_down import down as take_down

    take_down(_context(overrides, config_dir), delete_results)


def _context(overrides: list[str] | None, config_dir: Path | None) -> "Context":
    from orchestrator.fleet import context  # boto3 takes a second to import

    return context(compose(overrides or [], config_dir), out)


def _show(found: "FleetStatus") -> None:
    from orchestrator.fleet_text import print_status

    print_status(found, out)
