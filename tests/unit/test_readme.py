"""The README's commands are configurations that compose."""

import re
import shlex
from pathlib import Path

import pytest

from orchestrator.compose import compose_all

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
OVERRIDES = [
    *re.findall(r'^make (?:plan|sweep) +ARGS="(.+)"$', README, re.MULTILINE),
    *re.findall(r"^orchestrator sweep (.+)$", README, re.MULTILINE),
]


def test_commands_are_found() -> None:
    assert len(OVERRIDES) >= 5


@pytest.mark.parametrize("overrides", OVERRIDES)
def test_command_of_the_readme_composes(overrides: str) -> None:
    compose_all(shlex.split(overrides.replace("HEAD:", "head:")))
