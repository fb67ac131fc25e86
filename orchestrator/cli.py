"""The command line: `orchestrator sweep | plan | models | select | report | record`."""

import logging
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from orchestrator.compose import compose
from orchestrator.config import SweepConfig
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.plan_text import print_plan
from orchestrator.selection import Selection
from orchestrator.sweep_dir import SweepDir, find_sweep
from orchestrator.terminal import recommendation_text, verdict_table

app = typer.Typer(
    name="orchestrator",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Find, per workload, whether speculative decoding pays on your CPUs, and with which num_speculative_tokens.",
    epilog="Exit codes: 0 done, 2 the configuration is wrong and nothing was started, 3 the run failed (what was "
    "measured is kept), 130 or 143 interrupted (the same command continues).",
)
INTERRUPTED, TERMINATED = 130, 143
out = Console(soft_wrap=False)
err = Console(stderr=True, soft_wrap=True)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Hydra overrides, for example sweep=xeon_dflash workload.max_concurrency=[1,8]", metavar="KEY=VALUE"
    ),
]
ConfigDir = Annotated[Path | None, typer.Option(help="A folder with your own hardware/, model/, dataset/ ... files")]
Where = Annotated[str | None, typer.Argument(help="A sweep's folder or name; the latest if not given", metavar="SWEEP")]
ResultsDir = Annotated[Path, typer.Option(help="The folder that holds the sweeps")]
TrackingUri = Annotated[str | None, typer.Option(help="Another MLflow than the one the sweep was configured with")]


@app.command()
def sweep(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Measure, select and report. Run again after an interruption, it continues."""
    # Ray, MLflow and transformers load only where something runs.
    from orchestrator.sweep import require_complete, run_sweep

    config = _compose(overrides, config_dir)
    sweep_dir, selection = run_sweep(config, out, _typed_command())
    _print_selection(selection, sweep_dir)
    require_complete(sweep_dir)


@app.command()
def plan(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Show arms, workloads, blocks and each arm's server command; start nothing."""
    print_plan(_compose(overrides, config_dir), out, err)


@app.command()
def models(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON")] = False,
) -> None:
    """List the models that can be chosen, their drafters, and which hardware profiles they fit on."""
    from orchestrator.catalogue import catalogue_json, catalogue_table, read_catalogue

    catalogue = read_catalogue(overrides or [], config_dir)
    if as_json:
        typer.echo(catalogue_json(catalogue))
    else:
        out.print(catalogue_table(catalogue))


@app.command()
def select(where: Where = None, results_dir: ResultsDir = Path("results")) -> None:
    """Decide again from a sweep's ledger, also while it is running; writes selection.json and the report."""
    found = find_sweep(results_dir, where)
    _decide(found)


@app.command()
def report(where: Where = None, results_dir: ResultsDir = Path("results")) -> None:
    """Write report.html and report.md again from a sweep's selection."""
    from orchestrator.report import write_report

    found = find_sweep(results_dir, where)
    selection = found.selection()
    if selection is None:
        raise ConfigError(f"{found.path} has no selection.json yet; `orchestrator select` makes one from its ledger")
    for path in write_report(found.path, selection, found.plan(), found.ledger()):
        out.print(str(path), soft_wrap=True, highlight=False)


@app.command()
def record(where: Where = None, results_dir: ResultsDir = Path("results"), tracking_uri: TrackingUri = None) -> None:
    """Bring MLflow in line with a sweep's folder, for example after it was down."""
    from orchestrator.record import mirror

    found = find_sweep(results_dir, where)
    tracking = found.config().tracking
    if tracking_uri is not None:
        tracking = tracking.model_copy(update={"uri": tracking_uri})
    if tracking.uri is None:
        raise ConfigError(
            f"{found.path / 'config.yaml'}: tracking.uri is null, so there is no MLflow to record in; "
            "name one with --tracking-uri"
        )
    mirror(found.path, tracking)
    out.print(f"{found.sweep_id} is recorded in MLflow", highlight=False)


def main() -> None:
    """Entry point: errors in one line on stderr, exit codes as the help says."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    sigterm = _Sigterm()
    signal.signal(signal.SIGTERM, sigterm)
    try:
        app(standalone_mode=True)
    except SystemExit as ended:
        if ended.code != INTERRUPTED:  # Typer turns Ctrl-C into this
            raise
        err.print("interrupted: what was measured is kept; the same command continues", highlight=False)
        sys.exit(TERMINATED if sigterm.received else INTERRUPTED)
    except OrchestratorError as error:
        err.print(f"error: {error}", style="red", markup=False, highlight=False)
        sys.exit(error.exit_code)


class _Sigterm:
    """Ends the command as Ctrl-C does, with all left in order: of what a handler may raise, Ray changes the rest."""

    received = False

    def __call__(self, number: int, frame: object) -> NoReturn:
        self.received = True
        raise KeyboardInterrupt


def _compose(overrides: list[str] | None, config_dir: Path | None) -> SweepConfig:
    return compose(overrides or [], config_dir)


def _decide(found: SweepDir) -> None:
    from orchestrator.sweep import decide_and_report

    selection = decide_and_report(found, f"orchestrator select {shlex.quote(os.fspath(found.path))}")
    _print_selection(selection, found)


def _print_selection(selection: Selection, sweep_dir: SweepDir) -> None:
    out.print(verdict_table(selection))
    out.print(recommendation_text(selection), soft_wrap=True, highlight=False, markup=False)
    out.print(f"Report: {sweep_dir.path / 'report.html'}", soft_wrap=True, highlight=False)


def _typed_command() -> str:
    return shlex.join(["orchestrator", *sys.argv[1:]])
