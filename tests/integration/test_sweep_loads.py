"""Whole sweeps under other loads than a closed loop of single requests."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.sweeping import Sandbox, sandbox, small

pytestmark = pytest.mark.timeout(300)

GAP_S = 0.05


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path) as found:
        yield found


def test_log_is_replayed_at_its_own_times_for_every_arm_and_judged_by_latency(place: Sandbox) -> None:
    rows = [
        {
            "body": {"messages": [{"role": "user", "content": f"code {i}"}], "max_tokens": 8 + i % 2},
            "at": 1e9 + GAP_S * i,
        }
        for i in range(40)
    ]
    (place.path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    replay = [
        "dataset@datasets=[request_log]",
        "datasets.request_log.data_files=log.jsonl",
        "datasets.request_log.arrival_field=at",
        "workload=replay",
        "workload.log_speed=[2]",
        "workload.num_blocks=3",
        "workload.prompts_per_block=12",
        "selection=latency",
        "speculation.num_speculative_tokens=[7]",
    ]
    closed = [
        "datasets.code.data_files",
        "workload.max_concurrency",
        "workload.num_blocks",
        "workload.prompts_per_block",
        "dataset@datasets",
        "speculation.num_speculative_tokens",
    ]
    arguments = [each for each in small() if each.partition("=")[0] not in closed]

    ended = place.run(*arguments, *replay)

    assert ended.exit_code == 0, ended.stderr
    blocks = place.ledger().valid_blocks()
    assert len(blocks) == 3 * 3  # blocks x (baseline twice, one arm)
    assert {block.output_tokens for block in blocks} == {6 * 8 + 6 * 9}
    for block in blocks:
        assert block.open_loop is not None
        assert block.open_loop.offered_requests_per_s == pytest.approx(2 / GAP_S)
    [result] = place.selection().workloads
    assert (result.point_name, result.max_concurrency) == ("request_log@x2", None)
    assert result.arms[1].gain is not None
    report = (place.sweep.path / "report.md").read_text()
    assert "request_log@x2" in report
    assert "log at 2x" in report
