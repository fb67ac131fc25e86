"""The made-up sweep of benchmarks/scale.py is one that plan, ledger and selection take."""

from pathlib import Path

from benchmarks.scale import GRID, measure_selecting, plan_for, write_ledger
from orchestrator.ledger import LedgerFile, key_of

NUM_BLOCKS = 16
NUM_LINES = NUM_BLOCKS * (len(GRID) + 2)


def test_made_up_ledger_holds_every_measurement_of_the_plan_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"

    write_ledger(path, NUM_BLOCKS, NUM_LINES)

    blocks = list(LedgerFile(path).valid_blocks())
    assert len({key_of(block) for block in blocks}) == len(blocks) == NUM_LINES
    assert {block.block_id for block in blocks} == {block.id for block in plan_for(NUM_BLOCKS).blocks}


def test_figures_are_of_as_many_blocks_as_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write_ledger(path, NUM_BLOCKS, NUM_LINES)

    cost = measure_selecting(NUM_BLOCKS, path)

    assert cost.what == f"selecting on 4 workloads from {NUM_LINES} lines"
    assert cost.peak_mb > 0
