import math
import re

import pytest

from orchestrator.config import SweepConfig
from orchestrator.plan import PromptSet, plan_sweep
from orchestrator.record_metrics import Cell, Evidence, Figure, cells_of, is_current, new_figures
from orchestrator.record_notes import MAX_NOTE_LEN, Place, cell_note, sweep_note
from orchestrator.record_tags import cell_params, cell_tags, dataset_input, sweep_tags
from orchestrator.records import BlockRecord, LedgerRecord, Message, Phase, Prompt, SpecCounters, VisitRecord
from orchestrator.selection import ArmResult, Choice, Interval, Provenance, Selection, WorkloadResult

CONFIG = SweepConfig.model_validate(
    {
        "name": "unit",
        "hardware": {"name": "box", "usd_per_hour": 3.6},
        "model": {
            "name": "small",
            "target": "org/target",
            "drafters": {"dflash": {"model": "org/drafter"}},
            "max_model_len": 512,
        },
        "datasets": {"code": {"data_files": "code.jsonl"}},
        "speculation": {"method": "dflash", "num_speculative_tokens": [2]},
        "workload": {"max_concurrency": [1], "num_blocks": 2, "prompts_per_block": 2, "output_len": 8},
        "server": {"env": {"SOME_SETTING": "of_the_environment"}},
    }
)
PROMPTS = tuple(Prompt(messages=(Message(role="user", content=f"question {i}"),)) for i in range(4))
PLAN = plan_sweep(CONFIG, {"code": PromptSet(prompts=PROMPTS, num_read=4, num_too_long=0)})
NONE, DFLASH = PLAN.arms


def block(
    arm_id: str,
    index: int,
    tokens_per_s: int,
    phase: Phase = "arm",
    node: str = "node-a",
    counters: SpecCounters | None = None,
    void_reason: str | None = None,
) -> BlockRecord:
    planned = PLAN.blocks[index]
    return BlockRecord(
        arm_id=arm_id,
        block_id=planned.id,
        workload_id=planned.workload_id,
        block_index=index,
        visit_id="v",
        attempt=1,
        phase=phase,
        node=node,
        started_utc="2026-01-02T03:04:05+00:00",
        wall_s=1.0,
        num_requests=2,
        prompt_tokens=8,
        output_tokens=tokens_per_s,
        counters=counters,
        ttft_s=(0.1, 0.3),
        tpot_s=(None, None),
        e2e_s=(1.0, 2.0),
        itl_s={"p50": 0.01, "p95": 0.02, "p99": 0.03},
        output_sha256=("a", "b"),
        client_cpu_cores=0.1,
        void_reason=void_reason,
    )


def decided(**changes: object) -> Selection:
    none = ArmResult(
        arm="none",
        method="none",
        num_speculative_tokens=0,
        num_blocks=2,
        num_requests=4,
        output_tokens_per_s=None,
        speedup=None,
        acceptance_length=None,
        acceptance_rate=None,
        survival=None,
        ttft_s=None,
        tpot_s=None,
        usd_per_million_output_tokens=None,
        outputs_match_baseline=None,
    )
    dflash = none.model_copy(
        update={
            "arm": "dflash-k2",
            "method": "dflash",
            "num_speculative_tokens": 2,
            "speedup": Interval(mean=2.5, ci_low=2.0, ci_high=3.0),
            "outputs_match_baseline": 1.0,
        }
    )
    result = WorkloadResult(
        dataset="code",
        max_concurrency=1,
        output_len=8,
        verdict="speculate",
        reason="faster | by far",
        best=Choice(arm="dflash-k2", method="dflash", num_speculative_tokens=2),
        arms=(none, dflash),
    )
    provenance = Provenance(git_commit="abc", versions={"vllm": "0.32.0"}, hardware={}, plan_id=PLAN.id)
    selection = Selection(
        sweep_id="unit/1",
        created_utc="2026-01-02T04:00:00+00:00",
        simulated=False,
        provenance=provenance,
        workloads=(result,),
        schedules=(),
        recommendation=None,
    )
    return selection.model_copy(update=changes)


def evidence(*records: LedgerRecord, selection: Selection | None = None) -> Evidence:
    return Evidence(plan=PLAN, config=CONFIG, sweep_id="unit/1", records=records, selection=selection)


def cell(arm_id: str, *records: LedgerRecord, selection: Selection | None = None) -> Cell:
    return next(c for c in cells_of(evidence(*records, selection=selection)) if c.arm.id == arm_id)


def points(figures: list[Figure]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for figure in figures:
        assert figure.step not in found.setdefault(figure.key, {}), f"{figure.key} has step {figure.step} twice"
        found[figure.key][figure.step] = figure.value
    return found


OPENING = (block(NONE.id, 0, 10, "opening"), block(NONE.id, 1, 10, "opening"))
CLOSING = (block(NONE.id, 0, 40, "closing"), block(NONE.id, 1, 10, "closing"))


def test_block_speedup_is_over_the_geometric_mean_of_opening_and_closing() -> None:
    found = points(new_figures(cell(DFLASH.id, *OPENING, block(DFLASH.id, 0, 40), *CLOSING), 0, with_final=False))
    assert found["block/speedup"] == {0: pytest.approx(2.0)}
    assert found["block/output_tokens_per_s"] == pytest.approx({0: 40.0})


def test_what_a_node_that_was_set_aside_measured_is_no_figure() -> None:
    slow = [block(NONE.id, index, 5, "opening", node="node-b") for index in (0, 1)]
    records = (*OPENING, *slow, block(DFLASH.id, 0, 8, node="node-b"), block(DFLASH.id, 0, 40))
    found = points(new_figures(cell(DFLASH.id, *records, *CLOSING), 0, with_final=False))
    assert found["block/output_tokens_per_s"] == pytest.approx({0: 40.0})
    assert found["block/speedup"] == {0: pytest.approx(2.0)}


def test_block_speedup_waits_for_the_closing_visit_or_the_end_of_the_sweep() -> None:
    unclosed = cell(DFLASH.id, *OPENING, block(DFLASH.id, 0, 40))
    assert "block/speedup" not in points(new_figures(unclosed, 0, with_final=False))
    assert points(new_figures(unclosed, 0, with_final=True))["block/speedup"] == {0: pytest.approx(4.0)}


def test_blocks_are_paired_on_the_same_node_only() -> None:
    elsewhere = cell(DFLASH.id, *OPENING, *CLOSING, block(DFLASH.id, 0, 40, node="node-b"))
    found = points(new_figures(elsewhere, 0, with_final=True))
    assert "speedup" not in found
    assert "block/speedup" not in found
    assert found["num_blocks"] == {1: 1.0}


def test_baseline_logs_the_geometric_mean_of_its_visits_once_the_sweep_is_finished() -> None:
    baseline = cell(NONE.id, *OPENING, *CLOSING)
    assert "block/output_tokens_per_s" not in points(new_figures(baseline, 0, with_final=False))
    assert points(new_figures(baseline, 0, with_final=True))["block/output_tokens_per_s"] == pytest.approx(
        {0: 20.0, 1: 10.0}
    )


def test_only_what_became_final_since_the_given_line_is_new() -> None:
    records = (*OPENING, block(DFLASH.id, 0, 40), block(DFLASH.id, 1, 30))
    assert points(new_figures(cell(DFLASH.id, *records), 3, with_final=False))[
        "block/output_tokens_per_s"
    ] == pytest.approx({1: 30.0})
    assert new_figures(cell(DFLASH.id, *records), 4, with_final=False) == []


def test_void_blocks_do_not_count() -> None:
    found = points(
        new_figures(
            cell(DFLASH.id, *OPENING, block(DFLASH.id, 0, 40), block(DFLASH.id, 1, 99, void_reason="short")), 0, False
        )
    )
    assert found["block/output_tokens_per_s"] == pytest.approx({0: 40.0})
    assert found["num_void_blocks"] == {2: 1.0}


def test_survival_has_a_step_per_position_and_sums_over_all_blocks() -> None:
    counters = [
        SpecCounters(num_drafts=4, num_draft_tokens=8, num_accepted_tokens=3, num_accepted_tokens_per_pos=(2, 1)),
        SpecCounters(num_drafts=4, num_draft_tokens=8, num_accepted_tokens=5, num_accepted_tokens_per_pos=(4, 1)),
    ]
    records = [block(DFLASH.id, i, 40, counters=counters[i]) for i in range(2)]
    found = points(new_figures(cell(DFLASH.id, *records), 0, with_final=False))
    assert found["survival"] == {0: 0.75, 1: 0.25}
    assert found["acceptance_rate"] == {2: 0.5}
    assert found["acceptance_length"] == {2: 2.0}
    assert "survival" not in points(new_figures(cell(DFLASH.id, records[0]), 0, with_final=False))


def test_missing_figures_are_left_out() -> None:
    found = points(new_figures(cell(DFLASH.id, block(DFLASH.id, 0, 40)), 0, with_final=True))
    assert not {"speedup", "acceptance_rate", "acceptance_length", "survival", "tpot_s_p50"} & found.keys()
    assert found["ttft_s_p50"] == {1: pytest.approx(0.2)}
    assert found["usd_per_million_output_tokens"] == {1: pytest.approx(25.0)}


def test_infinite_and_nan_are_never_figures() -> None:
    odd = block(DFLASH.id, 0, 40).model_copy(update={"client_cpu_cores": math.inf, "ttft_s": (math.nan,) * 2})
    found = points(new_figures(cell(DFLASH.id, odd), 0, with_final=True))
    assert not {"client_cpu_cores", "ttft_s_p50"} & found.keys()


def test_selection_has_the_last_word_on_the_figures_of_a_cell() -> None:
    records = (*OPENING, block(DFLASH.id, 0, 40), *CLOSING)
    found = points(new_figures(cell(DFLASH.id, *records, selection=decided()), 0, with_final=True))
    assert [*found["speedup"].values(), *found["speedup_ci_low"].values(), *found["speedup_ci_high"].values()] == [
        2.5,
        2.0,
        3.0,
    ]
    assert list(found["outputs_match_baseline"].values()) == [1.0]
    assert list(found["output_tokens_per_s"].values()) == pytest.approx([40.0])


def test_selection_of_an_earlier_session_is_not_current_once_more_was_measured() -> None:
    assert is_current(decided(), OPENING)
    assert not is_current(decided(created_utc="2026-01-02T03:00:00+00:00"), OPENING)


def test_params_name_the_arm_and_the_workload_and_never_the_environment() -> None:
    params = cell_params(evidence(), cell(DFLASH.id))
    expected = {
        "method": "dflash",
        "num_speculative_tokens": "2",
        "drafter": "org/drafter",
        "dataset": "code",
        "max_concurrency": "1",
        "output_len": "8",
        "temperature": "0.0",
        "target": "org/target",
        "hardware": "box",
        "dtype": "bfloat16",
    }
    assert expected.items() <= params.items()
    assert "of_the_environment" not in str(params)
    assert "drafter" not in cell_params(evidence(), cell(NONE.id))


def test_arm_whose_server_never_came_up_has_begun_and_says_why() -> None:
    failed = VisitRecord(
        visit_id="v",
        arm_id=DFLASH.id,
        attempt=1,
        phase="arm",
        node="node-a",
        started_utc="2026-01-02T03:04:05+00:00",
        wall_s=3.0,
        num_blocks=0,
        error="vLLM exited 1",
    )
    assert cell(DFLASH.id, failed).has_begun
    assert cell_tags(evidence(failed), cell(DFLASH.id, failed))["error"] == "vLLM exited 1"
    assert not cell(DFLASH.id).has_begun


def test_sweep_tags_carry_verdicts_versions_and_commit() -> None:
    tags = sweep_tags(evidence(selection=decided()))
    assert tags["verdict.code.c1"] == "speculate"
    assert tags["version.vllm"] == "0.32.0"
    assert tags["git_commit"] == "abc"
    assert tags["simulated"] == "false"


PLACE = Place(experiment_id="1", parent_run_id="abc")


def test_note_of_a_sweep_says_the_decision_and_leads_to_the_arms_of_each_workload() -> None:
    note = sweep_note(evidence(selection=decided()), decided(), PLACE)
    assert "code: speculate at concurrency 1" in note
    assert "| speculate | dflash k=2 | 2.50 (2.00 to 3.00) | faster \\| by far |" in note
    assert "searchFilter=tags.sweep%20%3D%20%27unit%2F1%27%20and%20tags.workload%20%3D%20%27code%40c1%27)" in note


def test_note_of_an_arm_says_its_result_and_leads_to_its_sweep_and_its_logs() -> None:
    visit = VisitRecord(
        visit_id="v",
        arm_id=DFLASH.id,
        attempt=1,
        phase="arm",
        node="node-a",
        started_utc="2026-01-02T03:04:05+00:00",
        wall_s=3.0,
        num_blocks=2,
        server_log="v.log",
    )
    records = (visit, block(DFLASH.id, 0, 40))
    note = cell_note(evidence(*records, selection=decided()), cell(DFLASH.id, *records, selection=decided()), PLACE)
    assert "dflash-k2 on code@c1" in note
    assert "2.50 [2.00, 3.00] times the baseline. Chosen for this workload." in note
    assert "(#/experiments/1/runs/abc?" in note
    assert "(#/experiments/1/runs/abc/artifacts/logs/v.log?" in note
    assert len(note) <= MAX_NOTE_LEN


def test_every_figure_of_a_run_is_explained_in_its_note() -> None:
    counters = SpecCounters(num_drafts=4, num_draft_tokens=8, num_accepted_tokens=3, num_accepted_tokens_per_pos=(2, 1))
    records = (*OPENING, block(DFLASH.id, 0, 40, counters=counters), *CLOSING)
    found = cell(DFLASH.id, *records, selection=decided())
    note = cell_note(evidence(*records, selection=decided()), found, PLACE)
    names = {re.sub(r"(_p\d+|_ci_(low|high))$", "", figure.key) for figure in new_figures(found, 0, with_final=True)}
    assert {name for name in names if name not in note} == set()


def test_input_of_a_run_names_the_dataset_and_what_of_it_was_sent() -> None:
    found = dataset_input(evidence(), cell(DFLASH.id))
    assert (found["name"], found["source_type"]) == ("code", "local")
    assert found["digest"] == PLAN.prompts["code"].content_id[:36]
    assert "code.jsonl" in found["source"]


def test_description_stays_within_mlflows_limit_and_says_where_the_rest_is() -> None:
    selection = decided(workloads=decided().workloads * 500)
    text = sweep_note(evidence(selection=selection), selection, PLACE)
    assert len(text) <= MAX_NOTE_LEN
    assert "report.md" in text
