"""A drafter that changes what the model says is found out, and the report says where."""

from pathlib import Path

import pytest

from tests.integration.sweeping import sandbox, small

pytestmark = pytest.mark.timeout(240)


def test_outputs_that_differ_are_counted_and_placed(tmp_path: Path) -> None:
    with sandbox(tmp_path) as box:
        arguments = small(
            *("speculation.num_speculative_tokens=[3]", "workload.num_blocks=3", "workload.prompts_per_block=4"),
            extra_args=("--standin-differ-at", "'5'"),
        )
        ended = box.run(*arguments)
        assert ended.exit_code == 0, ended

        share = box.selection().workloads[0].arms[1].outputs_match_baseline
        assert share is not None
        assert 0 < share < 1
        assert "Outputs differ from the baseline's: dflash-k3 on code@c1" in ended.stdout
        report = (box.sweep.path / "report.md").read_text()
        different = round(12 * (1 - share))
        assert f"{different} of 24 outputs compared at temperature 0 differ" in report
        table = [line.split(" | ") for line in report.splitlines() if line.startswith("| code@c1 | ")]
        rows = {arm: cells for _, arm, *cells in table}
        assert rows["baseline"][:3] == ["12", "0", "100"]
        assert rows["dflash-k3"][:2] == ["12", str(different)]
        assert rows["dflash-k3"][3:5] == ["5", "5"]
        assert rows["dflash-k3"][5].startswith("rounding of nearly equal logits")
