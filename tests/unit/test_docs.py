"""Every command of the documentation is run, or checked as far as that goes without an engine, a cluster or AWS."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.compose import compose, compose_all
from orchestrator.config import SweepConfig
from orchestrator.example import copy_example
from orchestrator.plan import PromptSet, plan_sweep, prompt_sets
from orchestrator.records import Message, Prompt
from tests.unit.docs import (
    LANGUAGES,
    PAGES,
    ROOT,
    Command,
    Fence,
    anchors,
    commands,
    fences,
    links,
    prose,
    shell_text,
    spans,
)
from tests.unit.test_shipped_yaml import choose

FENCES = [fence for page in PAGES for fence in fences(page)]
COMMANDS = [command for fence in FENCES for command in commands(fence)]
YAML_PATH = re.compile(r"(?:# @package _global_\n)?# (my_conf/(?P<choice>\w+/\w+\.yaml))\n")
"""How a YAML example begins: with where a reader would put it."""
NUM_PROMPTS = 400

RUN = ("example", "select", "report", "status", "compare", "break-even", "export")
"""Subcommands that are run as they are written, on copies of the shipped example."""
RUN_ONCE = ("models",)
"""Of these only the first spelling, since each takes seconds; the others are composed."""
COMPOSED = {
    "sweep": "needs an engine and minutes: tests/integration and tests/e2e run it",
    "plan": "needs tokenizers of models that are on the hub: planned here on placeholders for their prompts",
    "doctor": "starts the engine: tests/unit/test_doctor.py",
    "mirror": "needs a hub and a bucket: tests/integration/test_model_files.py",
    "fleet up": "needs AWS: tests/aws",
    "fleet status": "needs AWS: tests/aws",
    "fleet sweep": "needs AWS: tests/aws",
    "fleet scale": "needs AWS: tests/aws",
    "fleet down": "needs AWS: tests/aws",
}
"""Subcommands whose configuration is composed and planned, and why they are not run."""
PARSED = {"record": "MLflow takes seconds to start: tests/unit/test_cli.py and tests/integration/test_record.py run it"}
"""Subcommands whose arguments are parsed, and why no more is done."""
SYNTAX_ONLY = {
    "aws": "there is no AWS account",
    "docker": "there is no Docker engine",
    "sha256sum": "its file is made by a fleet",
    "chmod": "changes the user's home",
    ".": "changes the shell it runs in",
    "for": "the shell's own",
    "done": "the shell's own",
}
"""First words that `bash -n` alone reads, and why."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader would be: with the example under the names that the documentation uses for sweeps."""
    path = tmp_path_factory.mktemp("reader")
    example = copy_example(path / "results")
    for name in ("demo", "mine"):
        shutil.copytree(example, path / "results" / name / "measured")
    (path / "results" / "latest").symlink_to(example)
    return path


@pytest.fixture
def reader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def write_own_files(page: Path, folder: Path) -> list[str]:
    """The page's YAML examples where it says that they belong; what each one is chosen by."""
    shutil.rmtree(folder / "my_conf", ignore_errors=True)
    (folder / "my_conf").mkdir()
    choices = []
    for fence in fences(page):
        if fence.language == "yaml":
            place = YAML_PATH.match(fence.text)
            assert place, f"{fence}: the first line says `# my_conf/GROUP/NAME.yaml`"
            path = folder / place[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(fence.text)
            choices.append(choose(Path(place["choice"])))
    return choices


def planned(config: SweepConfig) -> None:
    prompts = tuple(
        Prompt(messages=(Message(role="user", content=f"prompt {i}"),), arrival_s=float(i)) for i in range(NUM_PROMPTS)
    )
    found = PromptSet(prompts=prompts, num_read=NUM_PROMPTS, num_too_long=0)
    assert plan_sweep(config, prompt_sets(config, dict.fromkeys(config.datasets, found))).blocks


def parsed(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Subcommand and parameters of `orchestrator WORDS`; a wrong option or argument raises."""
    command: Any = typer.main.get_command(app)
    rest, names = list(words), []
    while hasattr(command, "commands"):
        names.append(rest.pop(0))
        command = command.commands[names[-1]]
    return " ".join(names), command.make_context(names[-1], rest).params


def check_orchestrator(words: Sequence[str], page: Path, reader: Path) -> None:
    name, params = parsed(words)
    if name in RUN or (name in RUN_ONCE and list(words) == _first_spelling(name)):
        ended = CliRunner().invoke(app, list(words))
        assert ended.exit_code == 0, ended.output + str(ended.exception)
    elif name in COMPOSED or name in RUN_ONCE:
        write_own_files(page, reader)
        for config in compose_all(params["overrides"] or [], params["config_dir"]):
            planned(config)
    else:
        assert name in PARSED


def _first_spelling(name: str) -> list[str]:
    return next(list(each.words[1:]) for each in COMMANDS if each.words[:2] == ("orchestrator", name))


def check_make(words: Sequence[str], page: Path, reader: Path) -> None:
    """The target exists, and the console command that it comes to is one."""
    done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    last = shlex.split(done.stdout.splitlines()[-1])
    if last[0].endswith("/orchestrator"):
        check_orchestrator(last[1:], page, reader)


def check_ray(words: Sequence[str]) -> None:
    from ray.scripts.scripts import cli

    cli.commands[words[0]].make_context(words[0], list(words[1:]))


def test_there_is_something_to_check() -> None:
    assert len(COMMANDS) > 60
    assert {command.words[0] for command in COMMANDS} >= {"make", "orchestrator", "ray"}


def test_every_exception_is_used() -> None:
    said = {parsed(command.words[1:])[0] for command in COMMANDS if command.words[0] == "orchestrator"}
    inline = {span.removeprefix("orchestrator ") for page in PAGES for span in spans(page)}
    assert PARSED.keys() <= said
    assert COMPOSED.keys() <= said | inline | {"fleet sweep", "fleet status", "fleet up", "fleet down", "fleet scale"}
    assert SYNTAX_ONLY.keys() <= {command.words[0] for command in COMMANDS}


@pytest.mark.parametrize("fence", FENCES, ids=str)
def test_fence_says_what_it_holds(fence: Fence) -> None:
    assert fence.language in LANGUAGES


@pytest.mark.parametrize("fence", [fence for fence in FENCES if fence.language == "text"], ids=str)
def test_command_is_not_hidden_among_what_is_printed(fence: Fence) -> None:
    assert not re.search(r"^(make|orchestrator|\.venv/bin/\S+|ray|docker|aws) ", fence.text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_is_not_hidden_by_indentation(page: Path) -> None:
    assert not re.search(r"^    (make|orchestrator|\.venv/bin/\S+|ray|docker|aws|mlflow) ", prose(page), re.MULTILINE)


@pytest.mark.parametrize("fence", [fence for fence in FENCES if shell_text(fence)], ids=str)
def test_shell_reads_it(fence: Fence) -> None:
    done = subprocess.run(["bash", "-n"], input=shell_text(fence), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.words[0] not in SYNTAX_ONLY], ids=str)
def test_command_is_one(command: Command, reader: Path) -> None:
    first, *rest = command.words
    if command.fence.language == "console":  # of which the answer is printed below: a refusal
        parsed(rest)
    elif first == "make":
        check_make(rest, command.fence.page, reader)
    elif first == "ray":
        check_ray(rest)
    else:
        assert first == "orchestrator"
        check_orchestrator(rest, command.fence.page, reader)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(f.language == "yaml" for f in fences(page))], ids=lambda page: page.name
)
def test_yaml_example_composes(page: Path, reader: Path) -> None:
    for choice in write_own_files(page, reader):
        planned(compose([choice, *_beside(choice)], reader / "my_conf"))


def _beside(choice: str) -> list[str]:
    return ["sweep=xeon_dflash"] if choice.startswith("cluster=") else []


@pytest.mark.parametrize("fence", [fence for fence in FENCES if fence.language == "python"], ids=str)
def test_python_example_runs(fence: Fence) -> None:
    exec(compile(fence.text, str(fence), "exec"), {})


@pytest.mark.parametrize("fence", [fence for fence in FENCES if fence.language == "ini"], ids=str)
def test_unit_starts_what_exists(fence: Fence) -> None:
    unit = configparser.ConfigParser()
    unit.read_string(fence.text)
    watcher, stop = unit["Service"]["ExecStart"].split(" -- ")
    assert find_spec(watcher.split(" -m ")[1])
    assert stop.split()[0].endswith("/ray")
    check_ray(stop.split()[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_in_a_sentence_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    group: Any = typer.main.get_command(app)
    for span in spans(page):
        first, *rest = span.removeprefix(".venv/bin/").split()
        word = rest[0] if rest else ""
        if first == "make" and word.isidentifier():
            assert word in targets, span
        if first == "orchestrator" and re.fullmatch(r"[a-z-]+", word) and not word.startswith("-"):
            assert word in group.commands, span


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_link_leads_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), target
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{target.name}#{anchor}"


HELP_EXAMPLES = [
    (name, line.removeprefix("orchestrator "))
    for name, command in sorted(typer.main.get_command(app).commands.items())  # type: ignore[attr-defined]
    for line in (command.epilog or "").splitlines()
    if line.startswith("orchestrator ")
]


@pytest.mark.parametrize(("name", "example"), HELP_EXAMPLES, ids=str)
def test_example_in_the_help_is_a_command(name: str, example: str) -> None:
    found, params = parsed(shlex.split(example))
    assert found == name
    if "overrides" in params and params["config_dir"] is None:
        assert compose_all(params["overrides"] or [])


def test_every_command_shows_examples() -> None:
    commands: Any = typer.main.get_command(app)
    shown = {name for name, _ in HELP_EXAMPLES} | {"fleet"}
    assert shown == {name for name, command in commands.commands.items() if not command.hidden}


def test_shell_completion_knows_the_commands() -> None:
    asked = {"_ORCHESTRATOR_COMPLETE": "complete_bash", "COMP_WORDS": "orchestrator s", "COMP_CWORD": "1"}
    said = CliRunner().invoke(app, [], env=asked, prog_name="orchestrator")
    assert said.output.split() == ["sweep", "status", "select"]


def test_no_color_is_heeded_where_colours_are_forced(folder: Path) -> None:
    said = {}
    for variables in ({"FORCE_COLOR": "1"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}):
        command = [sys.executable, "-c", "from orchestrator.cli import main; main()", "status", "demo"]
        environment = {**os.environ, **variables}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        said["NO_COLOR" in variables] = re.search(r"\x1b\[[0-9;]*3[0-7]m", done.stdout) is not None
    assert said == {False: True, True: False}


SYMPTOMS = ROOT / "docs" / "troubleshooting.md"
FROM_ELSEWHERE = ("InvalidAuthToken", "Token authentication is enabled", "ray start --head", "No space left on device")
"""What Ray and the system say."""


def test_symptoms_are_what_the_code_says() -> None:
    source = "".join(path.read_text() for part in ("orchestrator", "tasks") for path in (ROOT / part).rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # a message over several lines
    source = re.sub(r"\{[^{}]*\}", "@", source)
    rows = re.findall(r"^\| (.+?) \|", SYMPTOMS.read_text(), re.MULTILINE)
    symptoms = [span for row in rows for span in re.findall(r"`([^`]+)`", row)]
    assert len(symptoms) > 50
    unheard = [
        (symptom, part.strip())
        for symptom in symptoms
        if not symptom.startswith(FROM_ELSEWHERE)
        for part in re.split(r"\.\.\.|\b[\d.]+x?\b|\b[A-Z]\b|[(),:']", symptom)
        if len(part.strip()) > 4 and part.strip() not in source
    ]
    assert unheard == []
