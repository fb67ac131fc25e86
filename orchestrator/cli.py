"""The command line: `orchestrator sweep | plan | models | doctor | select | report | record | fleet | ...`."""

import errno
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from orchestrator.command_line import typed_command
from orchestrator.compose import compose, compose_all
from orchestrator.config import SweepConfig, Tracking
from orchestrator.confirmation_text import not_taken
from orchestrator.display import arm_name, recommendation_scope
from orchestrator.ending import INTERRUPTED, EndInOrder, leave_ray_behind
from orchestrator.errors import ClusterLost, ConfigError, OrchestratorError
from orchestrator.fleet_cli import fleet_app
from orchestrator.hardware_comparison import compare_hardware
from orchestrator.help_text import examples
from orchestrator.plan_text import print_preview
from orchestrator.preview import preview, preview_data
from orchestrator.selection import Selection, Unfinished
from orchestrator.suggest import explain
from orchestrator.sweep_dir import SweepDir, find_measured, find_sweep, write_comparison, writing
from orchestrator.terminal import check_text, commands_text, hardware_table, verdict_table
from orchestrator.unfinished import unfinished_text

app = typer.Typer(
    name="orchestrator",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Find, per workload, whether speculative decoding pays on your CPUs, and with which num_speculative_tokens.",
    epilog="Exit codes: 0 done, 2 the configuration is wrong and nothing was started, 3 the run failed (what was "
    "measured is kept), 130 or 143 interrupted (the same command continues).",
)
app.add_typer(fleet_app, name="fleet")
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
Survival = Annotated[
    str | None,
    typer.Option(help="Share of drafts accepted up to each position, of a drafter to price: 0.86,0.78,0.70"),
]
AcceptanceLength = Annotated[
    str | None,
    typer.Option(help="Or only its acceptance length and the k that it was published for: 6.93@15", metavar="LENGTH@K"),
]
Watch = Annotated[
    bool, typer.Option("--watch", help="Go on until the sweep ends; Ctrl-C stops watching, not the sweep")
]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts")]
TrackingUri = Annotated[str | None, typer.Option(help="Another MLflow than the one the sweep was configured with")]


@app.command(
    epilog=examples(
        "sweep", "sweep sweep=xeon_dflash workload.max_concurrency=[1,8,32]", "sweep --config-dir my_conf sweep=mine"
    )
)
def sweep(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Measure, select and report. Run again after an interruption, it continues.

    hardware=[A,B] makes a sweep of each kind of node, all at the same time, and compares them.
    """
    _measure(compose_all(overrides or [], config_dir), typed_command())


@app.command(epilog=examples("plan sweep=xeon_dflash", "plan model=qwen3_8b hardware=r8i_16xlarge server=xeon --json"))
def plan(overrides: Overrides = None, config_dir: ConfigDir = None, as_json: AsJson = False) -> None:
    """Show arms, workloads, blocks, memory, hours, dollars and each arm's server command; start nothing."""
    configs = compose_all(overrides or [], config_dir)
    if as_json:
        _print_json([preview_data(preview(config)) for config in configs])
        return
    for config in configs:
        _print_heading(config, configs)
        print_preview(preview(config), out, err)


@app.command(epilog=examples("models", "models server=xeon --json"))
def models(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """List the models that can be chosen, their drafters, and which hardware profiles they fit on."""
    from orchestrator.catalogue import catalogue_json, catalogue_table, read_catalogue

    catalogue = read_catalogue(overrides or [], config_dir)
    if as_json:
        typer.echo(catalogue_json(catalogue))
    else:
        out.print(catalogue_table(catalogue, out))


@app.command(epilog=examples("doctor", "doctor sweep=xeon_dflash"))
def doctor(overrides: Overrides = None, config_dir: ConfigDir = None, as_json: AsJson = False) -> None:
    """Check this machine for a sweep: engine, CPU, memory, disk, hub, MLflow, Ray. Changes nothing.

    Exit code 2 where a check fails; a warning says what it leads to.
    """
    from orchestrator.arms import baseline_arm
    from orchestrator.doctor import diagnose

    config = compose(overrides or [], config_dir)
    checks = []
    for check in diagnose(config, baseline_arm(config).server):
        checks.append(check)
        if not as_json:
            out.print(check_text(check), soft_wrap=True, highlight=False)
    if as_json:
        _print_json([check.model_dump() for check in checks])
    if any(check.status == "failure" for check in checks):
        raise typer.Exit(ConfigError.exit_code)


@app.command(epilog=examples("status --watch", "status demo --json"))
def status(
    where: Where = None, results_dir: ResultsDir = Path("results"), watch: Watch = False, as_json: AsJson = False
) -> None:
    """What a running sweep is doing: nodes, leaders so far, time and cost. From any terminal that sees its folder."""
    from orchestrator.status import show_status

    show_status(find_sweep(results_dir, where), out, watch=watch, as_json=as_json)


@app.command(epilog=examples("select", "select demo --json"))
def select(where: Where = None, results_dir: ResultsDir = Path("results"), as_json: AsJson = False) -> None:
    """Decide again from a sweep's ledger, also while it is running; writes selection.json and the report."""
    from orchestrator.sweep import decide_and_report

    found = find_measured(results_dir, where)
    with writing(str(found.path)):
        selection = decide_and_report(found)
    if as_json:
        _print_json(selection.model_dump(mode="json"))
    else:
        _print_selection(selection, found)


@app.command(epilog=examples("report", "report demo"))
def report(where: Where = None, results_dir: ResultsDir = Path("results")) -> None:
    """Write report.html and report.md again from a sweep's selection."""
    from orchestrator.report import what_was_written, write_report
    from orchestrator.sweep import unfinished_now

    found = find_measured(results_dir, where)
    selection = found.selection()
    if selection is None:
        raise ConfigError(f"{found.path} has no selection.json yet; `orchestrator select` makes one from its ledger")
    unfinished = selection.unfinished or unfinished_now(found)  # what was selected by an earlier version does not tell
    selection = selection.model_copy(update={"unfinished": unfinished})
    _say_unfinished(unfinished)
    with writing(str(found.path)):
        paths = write_report(found.path, selection, found.plan(), found.ledger(), found.config().model)
    out.print(what_was_written(paths), soft_wrap=True, highlight=False, markup=False)


@app.command(epilog=examples("record", "record demo --tracking-uri http://127.0.0.1:5000"))
def record(where: Where = None, results_dir: ResultsDir = Path("results"), tracking_uri: TrackingUri = None) -> None:
    """Bring MLflow in line with a sweep's folder, for example after it was down."""
    from orchestrator.record import mirror as record_in_mlflow

    found = find_sweep(results_dir, where)
    tracking = found.config().tracking
    if tracking_uri is not None:
        try:
            tracking = Tracking(uri=tracking_uri, experiment=tracking.experiment)
        except ValidationError as error:
            raise ConfigError(f"--tracking-uri: {explain(error)}") from error
    if tracking.uri is None:
        raise ConfigError(
            f"{found.path / 'config.yaml'}: tracking.uri is null, so there is no MLflow to record in; "
            "name one with --tracking-uri"
        )
    record_in_mlflow(found.path, tracking)
    out.print(f"{found.sweep_id} is recorded in MLflow", highlight=False)


@app.command(epilog=examples("export", "export demo --arm dflash-k7 --output deploy"))
def export(
    where: Where = None,
    results_dir: ResultsDir = Path("results"),
    arm: Annotated[str | None, typer.Option(help="Another arm than the recommended one, for example dflash-k7")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder to write to; deploy/ in the sweep's if not given")] = None,
) -> None:
    """Write what platforms take: a vLLM config file, a Compose file, a systemd unit, a Kubernetes Deployment."""
    from orchestrator.export import export_files
    from orchestrator.sweep import unfinished_now

    found = find_measured(results_dir, where)
    exported = export_files(found, arm, output)
    _say_unfinished(unfinished_now(found))
    out.print(f"Exported {arm_name(exported.arm)}, {exported.why}", soft_wrap=True, highlight=False, markup=False)
    for path in exported.paths:
        out.print(str(path), soft_wrap=True, highlight=False)


@app.command(epilog=examples("example"))
def example(results_dir: ResultsDir = Path("results")) -> None:
    """Copy the shipped example, a measured demo sweep, to results/example: something to try select and report on."""
    from orchestrator.example import copy_example, next_steps

    with writing(f"--results-dir {results_dir}"):
        folder = copy_example(results_dir)
    out.print(next_steps(folder, results_dir), soft_wrap=True, highlight=False, markup=False)


@app.command(epilog=examples("compare demo mine", "compare demo mine --json"))
def compare(
    first: Annotated[str, typer.Argument(help="A sweep's folder or name", metavar="A")],
    second: Annotated[str, typer.Argument(help="The one it is compared with", metavar="B")],
    results_dir: ResultsDir = Path("results"),
    as_json: AsJson = False,
) -> None:
    """Two sweeps on the workloads they share: which arms became faster or slower, with intervals.

    For another engine version, instance type or drafter. Gains compare between any nodes; tokens per second on nodes
    that both had, or where there are several.
    """
    from orchestrator.compare_text import compare_folders, print_comparison

    a, b = find_measured(results_dir, first), find_measured(results_dir, second)
    compared = compare_folders(a, b)
    if as_json:
        _print_json(compared.model_dump(mode="json"))
    else:
        print_comparison(compared, a.sweep_id, b.sweep_id, out)


@app.command("break-even", epilog=examples("break-even", "break-even demo --acceptance-length 6.93@15"))
def break_even(
    where: Where = None,
    results_dir: ResultsDir = Path("results"),
    survival: Survival = None,
    acceptance_length: AcceptanceLength = None,
    as_json: AsJson = False,
) -> None:
    """The acceptance length below which speculation loses on a sweep's hardware, per k and concurrency.

    With another drafter's published acceptance it predicts that drafter's speedup here, without running it.
    """
    from orchestrator.break_even import break_evens
    from orchestrator.break_even_text import break_even_table, parse_profile
    from orchestrator.measured import fold

    found = find_measured(results_dir, where)
    profile = parse_profile(survival, acceptance_length)
    cells = fold(found.ledger().valid_blocks(), found.config().selection).cells
    rows = break_evens(found.plan(), cells, profile)
    if as_json:
        _print_json([row.model_dump() for row in rows])
    else:
        out.print(break_even_table(rows, found.sweep_id, bool(profile)))


@app.command(epilog=examples("mirror --config-dir my_conf sweep=mine cluster=mine"))
def mirror(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Fill cluster.aws.model_mirror with the files of the model and its drafters, from the hub or this machine's cache.

    An object that is there already is left, never overwritten.
    """
    from tasks.model_files import fill_mirror

    config = compose(overrides or [], config_dir)
    if config.cluster.model_mirror is None:
        raise ConfigError(
            "there is no mirror to fill; name one: cluster=aws cluster.aws.model_mirror=s3://BUCKET/PREFIX"
        )
    models = {config.model.target: config.model.revision}
    models |= {drafter.model: drafter.revision for drafter in config.model.drafters.values()}
    for uri in fill_mirror(models, config.cluster.model_mirror):
        out.print(f"mirrored to {uri}", soft_wrap=True, highlight=False)


@fleet_app.command("run", hidden=True)
def run_on_head(uri: Annotated[str, typer.Argument(metavar="S3_URI")]) -> None:
    """What `fleet sweep` starts on the head: the sweep whose configuration and prompts it has put at S3_URI."""
    from orchestrator.fleet_copies import fetch_earlier
    from orchestrator.fleet_sweep import fetched_sweep

    config, command = fetched_sweep(uri)
    fetch_earlier(config, out)
    _measure([config], command)


UNCUT = 10_000
"""Columns of what no terminal shows."""


def main() -> None:
    """Entry point: errors in one line on stderr, exit codes as the help says."""
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = UNCUT
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    end = EndInOrder()
    try:
        app(standalone_mode=True)
    except SystemExit as ended:
        if ended.code != INTERRUPTED:  # Typer turns Ctrl-C into this
            raise
        sys.exit(end.exit_code)
    except OrchestratorError as error:
        err.print(f"error: {error}", style="red", markup=False, highlight=False)
        if isinstance(error, ClusterLost):
            leave_ray_behind(error.exit_code)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        text = f"error: {error}; what was measured is kept: make room, the same command continues"
        err.print(text, style="red", markup=False, highlight=False)
        sys.exit(OrchestratorError.exit_code)


def _measure(configs: Sequence[SweepConfig], command: str) -> None:
    """`command` is what was typed for it."""
    # Ray, MLflow and transformers load only where something runs.
    from orchestrator.sweep import require_complete, run_sweeps

    try:
        finished = run_sweeps(configs, out, command)
    except KeyboardInterrupt:
        text = f"interrupted: what was measured is kept; the same command continues: {command}"
        err.print(text, markup=False, highlight=False)
        raise
    for config, (sweep_dir, selection) in zip(configs, finished, strict=True):
        _print_heading(config, configs)
        _print_selection(selection, sweep_dir)
    if len(configs) > 1:
        _print_comparison(configs, [selection for _, selection in finished])
    require_complete([sweep_dir for sweep_dir, _ in finished])


def _print_json(data: object) -> None:
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def _print_heading(config: SweepConfig, configs: Sequence[SweepConfig]) -> None:
    """Which of several sweeps comes next."""
    if len(configs) > 1:
        out.print(f"\n{config.name}", style="bold", highlight=False)


def _print_comparison(configs: Sequence[SweepConfig], selections: Sequence[Selection]) -> None:
    by_hardware = {config.hardware.name: selection for config, selection in zip(configs, selections, strict=True)}
    comparison = compare_hardware(by_hardware)
    base = configs[0].name.removesuffix(f"-{configs[0].hardware.name}")
    path = write_comparison(Path(configs[0].results_dir), base, comparison)
    out.print(hardware_table(comparison))
    out.print(f"Comparison: {path}", soft_wrap=True, highlight=False)


def _print_selection(selection: Selection, sweep_dir: SweepDir) -> None:
    out.print(verdict_table(selection))
    for sentence in (recommendation_scope(selection), *not_taken(selection)):
        out.print(sentence, highlight=False, markup=False)
    if selection.recommendation:
        text = f"\n{commands_text(selection.recommendation)}"
        out.print(text, soft_wrap=True, highlight=False, markup=False)
    out.print(f"Report: {sweep_dir.path / 'report.html'}", soft_wrap=True, highlight=False)


def _say_unfinished(found: Unfinished | None) -> None:
    """On stderr: what these commands print are the files they write."""
    if found:
        err.print(unfinished_text(found), style="yellow", markup=False, highlight=False)
