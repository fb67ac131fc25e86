"""A whole visit with ngram on the real engine: the log, the counters and the arm agree, without a drafter anywhere."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.compose import compose
from orchestrator.plan import PromptSet, plan_sweep
from orchestrator.records import BlockRecord, Message, Prompt, Visit, VisitRecord, VisitTask
from tasks.demo import resolve_data_file
from tasks.visit import run_visit

pytestmark = pytest.mark.engine

OVERRIDES = [
    *("model=demo", "speculation=ngram", "speculation.num_speculative_tokens=[5]", "dataset@datasets=[demo_code]"),
    *("workload.max_concurrency=[4]", "workload.output_len=48", "workload.num_blocks=2"),
    *("server.enforce_eager=true", "hardware.max_other_cpu_share=null"),
]


@pytest.fixture
def tmpdir_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short enough for sockets, and without those of other engines on this machine."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_ngram_is_measured_as_the_arm_it_is_and_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch, tmpdir_of_its_own: Path
) -> None:
    monkeypatch.setattr("tasks.visit.take_normal_priority", lambda: None)  # this process is the tests' own
    lines = Path(resolve_data_file("demo://prompts/code.jsonl")).read_text().splitlines()
    prompts = tuple(Prompt(messages=(Message(role="user", content=json.loads(line)["prompt"]),)) for line in lines)
    config = compose(OVERRIDES)
    plan = plan_sweep(config, {"code": PromptSet(prompts=prompts, num_read=len(prompts), num_too_long=0)})
    arm, block = plan.arms[1], plan.blocks[0]
    task = VisitTask(
        visit=Visit(id="ngram", arm=arm, phase="arm", node="a", attempt=1, block_ids=(block.id,)),
        hardware=config.hardware,
        server=config.server,
        workloads={cell.id: cell for cell in plan.workloads},
        blocks=(block,),
    )

    measured, finished = (event.record for event in run_visit(task, {"code": prompts}))

    assert isinstance(finished, VisitRecord)
    assert finished.error is None
    assert isinstance(measured, BlockRecord)
    assert measured.void_reason is None
    assert measured.counters is not None
    assert 0 < measured.counters.num_draft_tokens <= 5 * measured.counters.num_drafts
    assert measured.counters.num_accepted_tokens > 0
    assert not [path for path in tmpdir_of_its_own.rglob("*") if path.is_socket()]
