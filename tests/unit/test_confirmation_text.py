"""What was measured again and not taken is reported, with its figure and why."""

from orchestrator.confirmation_text import not_taken
from orchestrator.records import Visit
from orchestrator.selection import Confirmation, Interval, Selection, UnusedConfirmation
from orchestrator.unused_confirmation import unused_confirmations
from tests.unit.builders import finished
from tests.unit.report_fixture import make_plan, make_selection
from tests.unit.test_decide import CROSSING, Sweep

SCHEDULE = Confirmation(
    setting="schedule",
    arm="dflash-schedule",
    speculative_config={},
    predicted=None,
    confirmed=Interval(mean=2.3, ci_low=2.2, ci_high=2.4),
    verdict="holds",
    reason="measured again at the mix: 2.30x [2.20, 2.40]",
)


def with_schedule(**changes: object) -> Selection:
    found = make_selection(make_plan())
    schedule = SCHEDULE.model_copy(update=changes)
    return found.model_copy(update={"confirmations": (*found.confirmations, schedule)})


def test_a_schedule_that_held_and_was_not_taken_is_set_against_what_was() -> None:
    assert not_taken(with_schedule()) == [
        "Measured again and not taken: dflash-schedule (schedule), 2.30 [2.20, 2.40]x at the mix, against "
        "2.31 [2.20, 2.43]x of dflash-k7. A tie goes to the static setting."
    ]


def test_a_schedule_whose_gain_did_not_show_says_so() -> None:
    [sentence] = not_taken(
        with_schedule(verdict="withdrawn", reason="measured again at the mix: 0.97x, no proven gain")
    )
    assert sentence.endswith("(schedule), withdrawn: measured again at the mix: 0.97x, no proven gain.")


def test_what_is_recommended_or_not_measured_again_needs_no_sentence() -> None:
    assert not_taken(make_selection(make_plan())) == []
    assert not_taken(with_schedule(verdict="open", confirmed=None)) == []


def test_a_confirmation_that_nothing_recommends_any_more_keeps_its_figure_and_its_log() -> None:
    sweep = Sweep(CROSSING, again={"dflash-schedule": 1.4})
    schedule = next(setting for setting in sweep.decided.settings if setting.kind == "schedule")
    blocks = [
        block.model_copy(update={"visit_id": "dflash-schedule-confirm-1a2b"}) if block.phase == "confirm" else block
        for block in sweep.blocks
    ]
    task = Visit(id="v", arm=schedule.arm, phase="confirm", node="a", attempt=1, block_ids=())
    record = finished(task, server_log="all of it").record

    assert unused_confirmations(sweep.config, sweep.plan, blocks, [record], {schedule.arm.id}) == ()
    [found] = unused_confirmations(sweep.config, sweep.plan, blocks, [record], set())
    assert found.arm == "dflash-schedule"
    assert found.confirmed
    assert round(found.confirmed.mean, 2) == 1.4
    [sentence] = not_taken(make_selection(make_plan()).model_copy(update={"unused_confirmations": (found,)}))
    assert sentence.startswith("Measured again and not taken: an earlier dflash-schedule, 1.40 [")
    assert "(the server's log: logs/v.log)" in sentence


def test_a_confirmation_of_too_little_of_the_mix_has_no_figure() -> None:
    selection = make_selection(make_plan()).model_copy(
        update={"unused_confirmations": (UnusedConfirmation(arm="dflash-k7", confirmed=None),)}
    )
    [sentence] = not_taken(selection)
    assert "measured on too little of the mix for a figure" in sentence
    assert "log" not in sentence
