"""The terminal tables: whole at 80 columns, readable without colour."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from orchestrator.display import DASH, recommendation_scope
from orchestrator.selection import Selection
from orchestrator.terminal import arms_table, commands_text, verdict_table
from tests.unit.report_fixture import make_plan, make_selection


@pytest.fixture(scope="module")
def selection() -> Selection:
    return make_selection(make_plan())


def rendered(table: Table, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100])
def test_tables_are_whole_at_this_width(selection: Selection, width: int) -> None:
    for table in (verdict_table(selection), arms_table(selection)):
        text = rendered(table, width)
        assert "…" not in text
        assert all(len(line) <= width for line in text.splitlines())
        assert "5.69 [5.41, 5.98]" in text or "235 [226, 247]" in text


def test_verdicts_read_without_colour(selection: Selection) -> None:
    text = rendered(verdict_table(selection), 100)
    assert "undecided" in text
    assert "41.3 → 235" in text


def test_undecided_row_has_no_best_and_its_reason(selection: Selection) -> None:
    text = rendered(verdict_table(selection), 100)
    row = next(line for line in text.splitlines() if "math@c4" in line)
    assert row.split()[2] == DASH
    assert "4 blocks are too noisy to tell" in text


def test_markup_in_a_reason_is_shown_not_obeyed(selection: Selection) -> None:
    workload = selection.workloads[0].model_copy(update={"reason": "[red]see[/red] log"})
    changed = selection.model_copy(update={"workloads": (workload,)})
    assert "[red]see[/red] log" in rendered(verdict_table(changed), 100)


def test_chosen_arm_is_marked(selection: Selection) -> None:
    assert rendered(arms_table(selection), 100).count(" *") == 5


def test_recommendation_is_the_commands_unchanged(selection: Selection) -> None:
    assert selection.recommendation is not None
    text = commands_text(selection.recommendation)
    assert selection.recommendation.vllm_serve in text
    assert selection.recommendation.docker_run in text


def test_no_recommendation_points_to_the_reasons(selection: Selection) -> None:
    assert "reasons" in recommendation_scope(selection.model_copy(update={"recommendation": None}))


def test_node_that_was_set_aside_is_told_with_the_reason(selection: Selection) -> None:
    aside = selection.provenance.model_copy(update={"nodes_set_aside": {"node-b": "its baseline is 30 % slower"}})
    text = rendered(verdict_table(selection.model_copy(update={"provenance": aside})), 80)
    assert "Node node-b was set aside: its baseline is 30 % slower." in text


def test_drift_beyond_noise_is_in_headline_and_warning(selection: Selection) -> None:
    text = " ".join(rendered(verdict_table(selection), 100).split())
    assert "on 1 the baseline drifted beyond noise: confirm on a quiet machine." in text
    assert "code@c1 on node-a (0.97x); confirm on a quiet machine." in text


def test_outputs_that_differ_are_named_and_identical_ones_take_no_line(selection: Selection) -> None:
    different = rendered(verdict_table(selection), 100)
    assert "Outputs differ from the baseline's: dflash-k1 on code@c1 (3.10 %)" in different
    assert "20 more; the report says where" in different.replace("\n", "")

    equal = rendered(verdict_table(with_matching(selection, 1.0)), 100)
    sampled = rendered(verdict_table(with_matching(selection, None)), 100)
    assert "Outputs" not in equal + sampled


def with_matching(selection: Selection, share: float | None) -> Selection:
    workloads = tuple(
        workload.model_copy(
            update={"arms": tuple(arm.model_copy(update={"outputs_match_baseline": share}) for arm in workload.arms)}
        )
        for workload in selection.workloads
    )
    return selection.model_copy(update={"workloads": workloads})
