"""Sweeps that go on from what was measured before: said to be unfinished, with other overrides, on another engine."""

import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.sweeping import Sandbox, sandbox, slow, small
from tests.standin import SERVER

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path) as found:
        yield found


def engine(box: Sandbox, version: str) -> str:
    """The stand-in of that version: the command, and so the plan, stays the same."""
    path = box.path / "engine"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {SERVER} "$@" --standin-version={version}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def interrupt_after(box: Sandbox, num_blocks: int, *arguments: str) -> None:
    running = box.start(*arguments)
    running.until(lambda: box.num_ledger_lines() >= num_blocks)
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.wait().exit_code == 130


def test_interrupted_sweep_is_told_to_be_unfinished_and_its_last_overrides_are_what_repeats_it(box: Sandbox) -> None:
    arguments = small("workload.num_blocks=3", extra_args=slow(30))
    interrupt_after(box, 4, *arguments)

    selected = box.run("select")
    assert selected.exit_code == 0, selected
    found = box.selection().unfinished
    assert found is not None
    assert 4 <= found.num_blocks < found.num_planned_blocks == 9
    told = " ".join(selected.stdout.split())
    assert told.startswith(f"Unfinished: {found.num_blocks} of 9 blocks measured; not measured: ")
    assert "`orchestrator sweep name=small" in told

    assert box.run(*arguments, "selection.confidence=0.8").exit_code == 0
    selection = box.selection()
    assert selection.unfinished is None
    assert any("selection.confidence=0.8 (default 0.95)" in warning for warning in selection.warnings)
    report = (box.sweep.path / "report.md").read_text()
    repeat = report[report.index("## Repeat") :].splitlines()[3:5]
    assert repeat[0].endswith(" selection.confidence=0.8")
    assert repeat[1].startswith("# another session of it: orchestrator sweep name=small")


def test_sweep_does_not_go_on_with_another_engine(box: Sandbox) -> None:
    arguments = small("workload.num_blocks=3", extra_args=slow(30), command=[engine(box, "0.31.0")])
    interrupt_after(box, 4, *arguments)
    before = box.num_ledger_lines()

    engine(box, "0.32.0")
    ended = box.run(*arguments)

    assert ended.exit_code == 3, ended
    assert "NodeUnavailable: the node has vLLM 0.32.0 in place of 0.31.0, and figures of both do not" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert box.num_ledger_lines() == before
    assert {visit.engine_version for visit in box.ledger().visits() if visit.num_blocks} == {"0.31.0"}
    contents = {name: content for visit in box.ledger().visits() for name, content in visit.local_models.items()}
    assert contents.keys() == {"demo://target", "demo://dflash"}
    assert box.leftovers() == []
