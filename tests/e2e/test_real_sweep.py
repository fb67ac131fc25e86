"""A whole sweep on the real engine over real prompts, its driver killed on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from orchestrator.ledger import Ledger, key_of
from orchestrator.records import RawRequest
from orchestrator.selection import Selection
from orchestrator.sweep_dir import SweepDir

DATA = Path(__file__).parents[2].parent / "shared" / "data"
FILES = {
    "humaneval": "humaneval.jsonl",
    "gsm8k": "gsm8k_test.jsonl",
    "mt_bench": "mt_bench_question.jsonl",
}
ORCHESTRATOR = str(Path(sys.executable).parent / "orchestrator")
OVERRIDES = [
    "name=real",
    "model=demo",
    f"dataset@datasets=[{','.join(FILES)}]",
    *(f"datasets.{name}.data_files={DATA / file}" for name, file in FILES.items()),
    "datasets.mt_bench.turns=all",
    "speculation=[dflash,ngram]",
    "speculation.dflash.num_speculative_tokens=[7]",
    "speculation.ngram.num_speculative_tokens=[5]",
    "search=grid",
    "search.confirm=false",
    "workload.max_concurrency=[4]",
    "workload.output_len=32",
    "workload.num_blocks=3",
    "server.enforce_eager=true",
    "hardware.max_other_cpu_share=null",  # the tests themselves run here too
    "tracking.uri=sqlite:///mlflow.db",
]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not all((DATA / file).exists() for file in FILES.values()), reason=f"no prompts in {DATA}"),
]


def _start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([ORCHESTRATOR, "sweep", *OVERRIDES], cwd=folder)


def _ledger(folder: Path) -> Ledger:
    return Ledger(folder / "results" / "latest" / "ledger.jsonl")


def _visit_ids(ledger: Ledger) -> set[str]:
    return {block.visit_id for block in ledger.valid_blocks()}


def _servers(marker: str) -> Iterator[psutil.Process]:
    """Engine processes whose environment carries the marker of this test."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("SPECSWEEP_TEST") == marker and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def _second_turns(requests: Sequence[RawRequest]) -> int:
    """How many there are, all with the first turn's answer in their context."""
    first = {(request.block_id, request.prompt_index): request for request in requests if request.turn == 0}
    second = {(request.block_id, request.prompt_index): request for request in requests if request.turn == 1}
    for key, request in second.items():
        before = first[key].prompt_tokens
        assert before is not None
        assert request.prompt_tokens is not None
        assert request.prompt_tokens > before + 16  # the answer's 32 tokens, read again as text, and a question
    return len(second)


def test_killed_sweep_over_real_prompts_continues_and_selects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = f"e2e-{os.getpid()}"
    monkeypatch.setenv("SPECSWEEP_TEST", marker)
    driver = _start(tmp_path)
    try:
        while driver.poll() is None and len(_ledger(tmp_path).blocks()) < 2:
            time.sleep(0.5)
        driver.send_signal(signal.SIGKILL)
        assert driver.wait(30) == -signal.SIGKILL
    finally:
        driver.kill()
    before = {key_of(block) for block in _ledger(tmp_path).valid_blocks()}
    assert before

    deadline = time.monotonic() + 60
    while left := list(_servers(marker)):
        assert time.monotonic() < deadline, f"still running after the driver was killed: {left}"
        time.sleep(0.5)

    assert _start(tmp_path).wait(800) == 0
    ledger = _ledger(tmp_path)
    keys = [key_of(block) for block in ledger.valid_blocks()]
    assert len(keys) == len(set(keys)) == 3 * 3 * 4  # workloads x blocks x (baseline twice, two arms)
    assert before <= set(keys)
    assert len(list((tmp_path / "results" / "real").glob("*/plan.json"))) == 1

    folder = SweepDir(tmp_path / "results" / "latest")
    requests = [request for visit_id in _visit_ids(ledger) for request in folder.read_raw(visit_id)]
    assert all(len(request.output_token_ids or ()) == request.output_tokens == 32 for request in requests)
    assert len(requests) >= 3 * 3 * 3 * (8 + 8 + 16) / 3
    seconds = [_second_turns(list(folder.read_raw(visit_id))) for visit_id in _visit_ids(ledger)]
    assert sum(seconds) >= 3 * 3 * 8  # of MT-Bench alone

    selection = Selection.model_validate_json((tmp_path / "results" / "latest" / "selection.json").read_bytes())
    assert [workload.dataset for workload in selection.workloads] == list(FILES)
    assert all(arm.speedup is not None for workload in selection.workloads for arm in workload.arms[1:])
    plan = json.loads((tmp_path / "results" / "latest" / "plan.json").read_text())
    assert plan["prompts"]["humaneval"]["num_read"] == 164
