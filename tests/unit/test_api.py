"""The Python API on the shipped example, and the notebook that uses it."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from orchestrator.api import SelectionRules, load_ledger, plan_sweep, select
from orchestrator.errors import ConfigError
from orchestrator.example import EXAMPLE

NOTEBOOK = Path(__file__).parents[2] / "examples" / "selection.ipynb"


def test_a_plan_is_made_from_overrides_as_on_the_command_line() -> None:
    plan = plan_sweep(["sweep=demo", "speculation.num_speculative_tokens=[3]", "workload.max_concurrency=2"])
    assert [arm.name for arm in plan.arms] == ["none", "dflash-k3"]
    assert [workload.name for workload in plan.workloads] == ["code@c2", "math@c2", "chat@c2"]


def test_the_example_ledger_selects_the_same_every_time() -> None:
    first, second = select(EXAMPLE), select(EXAMPLE)
    assert first == second
    assert {result.verdict for result in first.workloads} == {"speculate", "baseline", "undecided"}


def test_other_rules_decide_anew_and_leave_the_sweep_as_it_is() -> None:
    before = sorted(path.name for path in EXAMPLE.iterdir())
    strict = select(EXAMPLE, SelectionRules(min_blocks=50))
    assert {result.verdict for result in strict.workloads} == {"undecided"}
    assert sorted(path.name for path in EXAMPLE.iterdir()) == before


def test_the_ledger_gives_the_blocks_that_count() -> None:
    blocks = list(load_ledger(EXAMPLE).valid_blocks())
    assert blocks
    assert all(block.void_reason is None for block in blocks)


def test_a_folder_without_a_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no plan\.json in it"):
        load_ledger(tmp_path)


def test_the_example_notebook_runs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=120).execute()
    assert all(cell.outputs for cell in notebook.cells[4:] if cell.cell_type == "code")
