"""The command line: exit codes, one-line errors on stderr, help with examples."""

import importlib
import json
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.compose import names_in, to_yaml
from orchestrator.config import SweepConfig
from orchestrator.errors import SweepFailed
from orchestrator.ledger import Ledger
from orchestrator.sweep_dir import SweepDir, open_sweep
from tests.unit.builders import block_record, make_config, plan_of, write_all

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Run]:
    """main() as typed: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["orchestrator", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, shown.out, shown.err

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield call
    for number, handler in before.items():  # main() sets its own
        signal.signal(number, handler)


@pytest.fixture
def measured(tmp_path: Path) -> SweepDir:
    config = make_config(results_dir=tmp_path / "results")
    with open_sweep(config, plan_of(config)) as (sweep, _):
        write_all(Ledger(sweep.ledger_path), plan_of(config))
    return sweep


def sweep_that(monkeypatch: pytest.MonkeyPatch, behaviour: Callable[..., Any]) -> None:
    monkeypatch.setattr(importlib.import_module("orchestrator.sweep"), "run_sweeps", behaviour)


def raises(error: BaseException) -> Callable[..., Any]:
    def behaviour(*_: object) -> None:
        raise error

    return behaviour


@pytest.mark.parametrize("command", ["plan", "sweep"])
def test_help_shows_an_example_of_an_override(command: str) -> None:
    shown = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "120"})

    assert shown.exit_code == 0
    assert "workload.max_concurrency=[1,8]" in shown.stdout


def test_help_lists_the_commands_and_exit_codes(run: Run) -> None:
    code, out, err = run("--help")

    assert (code, err) == (0, "")
    assert all(command in out for command in ("sweep", "plan", "select", "report", "record"))
    assert re.search(r"0 done, 2 the configuration is wrong .* 3 the run failed", out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", "model=demoo"), "error: no model named demoo; known: .*did you mean demo"),
        (("plan", "speculation.num_speculative_token=4"), "error: .*did you mean .*num_speculative_tokens"),
        (("plan", "speculation.num_speculative_tokens=16"), r"error: .*at most block_size - 1 = 15 .* but got 16"),
        (("sweep", "workload.temperature=-1"), "error: workload.temperature"),
        (
            ("plan", "name=été-ß"),
            "error: 'name=été-ß': .* no key or sweep's name has it .* letters a to z, digits",
        ),
        (("plan", 'name="été-ß"'), "error: name: a sweep's name has the letters a to z .* but got 'été-ß'"),
        (("plan", "name=-a"), "error: name: .*begins with a letter or digit"),
        (("plan", "--config-dir", "nowhere"), "error: nowhere: no such folder"),
        (("select",), "error: no sweep yet in .*run `orchestrator sweep` first"),
        (("report", "other"), "error: no sweep 'other' in "),
        (("record", "other"), "error: no sweep 'other' in "),
    ],
)
def test_wrong_configuration_is_one_line_on_stderr_and_exit_code_2(
    run: Run, words: tuple[str, ...], message: str
) -> None:
    code, out, err = run(*words)

    assert (code, out) == (2, "")
    assert re.match(message, err)
    assert err.count("\n") == 1


def test_output_that_no_terminal_shows_is_not_cut(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "out", Console())
    monkeypatch.delenv("COLUMNS")

    _, out, _ = run("models")

    assert any(all(name in line for name in names_in("hardware")) for line in out.splitlines()[1:])


@pytest.mark.parametrize("words", [("swep",), ("plan", "--no-such-option")])
def test_wrong_command_is_exit_code_2(run: Run, words: tuple[str, ...]) -> None:
    code, _, err = run(*words)

    assert code == 2
    assert words[-1] in err


def test_failed_run_is_one_line_on_stderr_and_exit_code_3(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep_that(monkeypatch, raises(SweepFailed("none: [bold]crashed[/bold]")))

    assert run("sweep") == (3, "", "error: none: [bold]crashed[/bold]\n")


def test_interruption_says_that_the_same_command_continues_and_is_exit_code_130(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_that(monkeypatch, raises(KeyboardInterrupt()))

    code, _, err = run("sweep")

    assert code == 130
    assert "the same command continues" in err


def test_a_second_ctrl_c_ends_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[object] = []

    def interrupted(*_: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            handlers.append(signal.getsignal(signal.SIGINT))

    monkeypatch.setattr("os.write", lambda *_: 0)  # pytest's stderr is no file
    monkeypatch.setattr("sys.stderr.fileno", lambda: 2, raising=False)
    sweep_that(monkeypatch, interrupted)

    code, _, err = run("sweep")

    assert (code, handlers) == (130, [signal.SIG_DFL])
    assert "the same command continues" in err


def test_sigterm_ends_as_ctrl_c_does_and_is_exit_code_143(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep_that(monkeypatch, lambda *_: signal.raise_signal(signal.SIGTERM))

    code, _, err = run("sweep")

    assert code == 143
    assert "the same command continues" in err


@pytest.mark.usefixtures("run")
def test_error_that_nobody_raised_on_purpose_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep_that(monkeypatch, raises(ZeroDivisionError("a bug")))
    monkeypatch.setattr("sys.argv", ["orchestrator", "sweep"])

    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_sweep_ends_with_the_verdicts_and_knows_the_command_to_repeat(
    run: Run, monkeypatch: pytest.MonkeyPatch, measured: SweepDir
) -> None:
    decide = importlib.import_module("orchestrator.sweep").decide_and_report
    seen: list[tuple[SweepConfig, str]] = []

    def behaviour(configs: Sequence[SweepConfig], console: object, command: str) -> object:
        seen.extend((config, command) for config in configs)
        return [(measured, decide(measured))]

    sweep_that(monkeypatch, behaviour)
    code, out, _ = run("sweep", "name=mine", "workload.max_concurrency=[1,2]")

    assert code == 0
    assert "code@c1" in out
    assert str(measured.path / "report.html") in out
    [(config, command)] = seen
    assert config.workload.max_concurrency == (1, 2)
    assert command == "orchestrator sweep name=mine 'workload.max_concurrency=[1,2]'"


def test_select_decides_again_from_the_ledger(run: Run, measured: SweepDir) -> None:
    code, out, _ = run("select")

    assert code == 0
    assert "code@c1" in out
    selection = measured.selection()
    assert selection is not None
    assert selection.workloads[0].verdict == "undecided"  # equally fast blocks do not exclude a gain of 1 %


def test_report_before_any_selection_says_how_to_get_one(run: Run, measured: SweepDir) -> None:
    code, _, err = run("report")

    assert code == 2
    assert "has no selection.json yet; `orchestrator select` makes one" in err


def test_report_is_written_again_from_the_selection(run: Run, measured: SweepDir) -> None:
    run("select")
    (measured.path / "report.html").unlink()

    code, out, _ = run("report", str(measured.path))

    assert code == 0
    assert str(measured.path / "report.html") in out
    assert (measured.path / "report.html").exists()


@pytest.fixture
def interrupted(tmp_path: Path) -> SweepDir:
    """Nothing of its last arm, and no closing baseline."""
    config = make_config(results_dir=tmp_path / "results")
    plan = plan_of(config)
    with open_sweep(config, plan) as (sweep, _):
        sweep.write_command("orchestrator sweep name=small workload.output_len=64")
        ledger = Ledger(sweep.ledger_path)
        for arm in plan.arms[:-1]:
            for block in plan.blocks:
                ledger.append(block_record(plan, arm, block))
    return sweep


UNFINISHED = (
    "Unfinished: 12 of 16 blocks measured; not measured: dflash-k7; no closing baseline on a. "
    "`orchestrator sweep name=small workload.output_len=64` continues."
)


def test_select_of_an_unfinished_sweep_says_so_before_anything_else_and_in_its_files(
    run: Run, interrupted: SweepDir
) -> None:
    code, out, _ = run("select")

    assert code == 0
    assert " ".join(out.split()).startswith(UNFINISHED)
    selection = interrupted.selection()
    assert selection is not None
    assert selection.unfinished is not None
    assert (selection.unfinished.num_blocks, selection.unfinished.arms) == (12, {"dflash-k7": (0, 4)})
    html = (interrupted.path / "report.html").read_text()
    assert html.index(UNFINISHED) < html.index('id="decision"')
    markdown = (interrupted.path / "report.md").read_text()
    assert markdown.index("Unfinished: 12 of 16") < markdown.index("## Decision")


def test_report_and_export_of_an_unfinished_sweep_say_so_on_stderr(run: Run, interrupted: SweepDir) -> None:
    run("select")

    for words in (("report",), ("export", "--arm", "dflash-k3")):
        code, out, err = run(*words)
        assert (code, err) == (0, UNFINISHED + "\n")
        assert "Unfinished" not in out


def test_report_of_a_selection_that_does_not_tell_finds_out_whether_the_sweep_is_finished(
    run: Run, interrupted: SweepDir
) -> None:
    run("select")
    selection = interrupted.selection()
    assert selection is not None
    interrupted.write_selection(selection.model_copy(update={"unfinished": None}))

    assert run("report")[2] == UNFINISHED + "\n"
    assert UNFINISHED in (interrupted.path / "report.html").read_text()


def test_finished_sweep_says_nothing_of_that(run: Run, measured: SweepDir) -> None:
    _, out, err = run("select")
    assert "Unfinished" not in out + err
    assert "Unfinished" not in run("report")[2]
    assert "Unfinished" not in (measured.path / "report.html").read_text()


def test_select_without_a_ledger_is_refused_and_keeps_the_selection_that_was_there(
    run: Run, measured: SweepDir
) -> None:
    run("select")
    before = measured.selection_path.read_bytes()
    measured.ledger_path.unlink()

    code, out, err = run("select")

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "has no ledger.jsonl" in err
    assert measured.selection_path.read_bytes() == before


def test_report_of_a_damaged_selection_says_to_select_again(run: Run, measured: SweepDir) -> None:
    measured.selection_path.write_text("{")

    code, _, err = run("report")

    assert (code, err.count("\n")) == (2, 1)
    assert "`orchestrator select` makes it again" in err
    assert run("select")[0] == 0
    assert run("report")[0] == 0


def test_export_to_a_file_and_example_below_one_are_one_line_and_exit_code_2(
    run: Run, measured: SweepDir, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text("mine")

    for words in (("export", "--arm", "dflash-k3", "--output", "README.md"), ("example", "--results-dir", "README.md")):
        code, out, err = run(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "README.md cannot be written" in err
    assert (tmp_path / "README.md").read_text() == "mine"
    assert measured.path.exists()


def test_record_brings_mlflow_in_line_with_the_folder(
    run: Run, measured: SweepDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []
    record = importlib.import_module("orchestrator.record")
    monkeypatch.setattr(record, "mirror", lambda path, tracking: seen.append(path))

    code, out, _ = run("record", "small")

    assert (code, out) == (0, f"{measured.sweep_id} is recorded in MLflow\n")
    assert [path.resolve() for path in seen] == [measured.path]


def test_record_without_an_mlflow_to_record_in_says_so(run: Run, measured: SweepDir) -> None:
    config = measured.config()
    nowhere = config.model_copy(update={"tracking": config.tracking.model_copy(update={"uri": None})})
    (measured.path / "config.yaml").write_text(to_yaml(nowhere))

    code, out, err = run("record")

    assert (code, out) == (2, "")
    assert "tracking.uri is null" in err


def test_plan_starts_nothing_and_leaves_nothing_behind(run: Run, tmp_path: Path) -> None:
    code, out, err = run("plan")

    assert (code, err) == (0, "")
    assert "180 blocks" in out
    assert list(tmp_path.iterdir()) == []


def test_sweep_above_its_budget_starts_nothing_and_is_exit_code_2(run: Run, tmp_path: Path) -> None:
    code, _, err = run("sweep", "cluster.budget_usd=0.01", "hardware.usd_per_hour=4")

    assert code == 2
    assert "error: cluster.budget_usd=0.01: the sweep is expected to cost $" in err
    assert "or raise cluster.budget_usd" in err
    assert not (tmp_path / "results").exists()


def test_models_lists_what_can_be_chosen(run: Run) -> None:
    code, shown, _ = run("models", "--json")

    assert code == 0
    assert "qwen3_5_9b" in [model["name"] for model in json.loads(shown)]
