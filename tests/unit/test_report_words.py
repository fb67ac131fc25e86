"""The decision in sentences: no more than the verdicts say, and no load in between taken for granted."""

import pytest

from orchestrator.display import headline, recommendation_scope
from orchestrator.plots import concurrency_plot
from orchestrator.recommend import crossovers
from orchestrator.report_words import crossover_sentence, decision_sentences, repeat_command
from orchestrator.selection import ArmResult, Choice, Interval, Selection, WorkloadResult
from tests.unit.report_fixture import make_plan, make_selection, make_workload

SPEEDUP = Interval(mean=2.5, ci_low=2.0, ci_high=3.0)


def decided(concurrency: int, verdict: str, speedup: Interval = SPEEDUP) -> WorkloadResult:
    workload = make_workload("code", concurrency, (0, 7))
    arms = tuple(arm.model_copy(update={"speedup": speedup if arm.method != "none" else None}) for arm in workload.arms)
    best = {"speculate": arms[1], "baseline": arms[0]}.get(verdict)
    return workload.model_copy(update={"verdict": verdict, "arms": arms, "best": _choice(best)})


def _choice(arm: ArmResult | None) -> Choice | None:
    if arm is None:
        return None
    return Choice(arm=arm.arm, method=arm.method, num_speculative_tokens=arm.num_speculative_tokens)


def selection_of(*workloads: WorkloadResult, objective: str = "throughput") -> Selection:
    found = make_selection(make_plan())
    return found.model_copy(update={"workloads": workloads, "objective": objective})


def test_a_dataset_is_one_sentence_with_its_gain_and_its_saving() -> None:
    slower = Interval(mean=2.0, ci_low=1.5, ci_high=2.6)
    selection = selection_of(decided(1, "speculate"), decided(4, "speculate", slower), decided(16, "undecided"))

    assert decision_sentences(selection) == [
        "code: speculate at concurrency 1 and 4, which gives 2.00x to 2.50x of the baseline's throughput "
        "(95 % intervals within 1.50x to 3.00x) and saves 50.0 to 60.0 % of the cost of a token "
        "(95 % intervals within 33.3 to 66.7 %); undecided at concurrency 16."
    ]


def test_saving_is_not_claimed_where_the_objective_is_not_throughput() -> None:
    [sentence] = decision_sentences(selection_of(decided(1, "speculate"), objective="tpot"))
    assert "2.50x of the baseline's speed per output token" in sentence
    assert "saves" not in sentence


def test_an_arm_that_costs_more_is_not_said_to_save() -> None:
    slower = Interval(mean=0.8, ci_low=0.5, ci_high=0.9)
    [sentence] = decision_sentences(selection_of(decided(1, "speculate", slower)))
    assert "costs 25.0 % more a token (95 % interval 11.1 to 100 %)" in sentence
    both = selection_of(decided(1, "speculate", slower), decided(4, "speculate"))
    [sentence] = decision_sentences(both)
    assert "changes the cost of a token, from 25.0 % more to 60.0 % less" in sentence


def forced(concurrency: int, speedup: Interval) -> WorkloadResult:
    """The baseline breaks a constraint there."""
    found = decided(concurrency, "speculate", speedup)
    baseline = found.arms[0].model_copy(update={"meets_constraints": False})
    return found.model_copy(update={"arms": (baseline, *found.arms[1:])})


def test_an_arm_chosen_for_a_constraint_is_not_said_to_pay() -> None:
    even = Interval(mean=0.97, ci_low=0.9, ci_high=1.05)
    group = [decided(1, "speculate"), forced(4, even)]
    selection = selection_of(*group)
    assert headline(selection).startswith(
        "Speculation pays on 1 of 2 workloads; without a gain it is chosen on 1, where the baseline breaks a constraint"
    )
    [sentence] = decision_sentences(selection)
    assert "speculate at concurrency 1, which gives 2.50x" in sentence
    assert "speculate at concurrency 4 because the baseline breaks a constraint, without a proven gain: 0.970x" in (
        sentence
    )
    [crossover] = crossovers(group)
    assert crossover_sentence(group, crossover).endswith(
        "At 4 speculation is chosen without a gain, because the baseline breaks a constraint."
    )


def test_an_arm_that_gains_pays_also_where_the_baseline_breaks_a_constraint() -> None:
    assert headline(selection_of(forced(1, SPEEDUP))).startswith("Speculation pays on 1 of 1 workloads")


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (Interval(mean=0.9, ci_low=0.85, ci_high=0.95), "it loses on code@c1 (0.900 [0.850, 0.950]x), so serve those"),
        (Interval(mean=0.995, ci_low=0.95, ci_high=1.04), "it shows no gain on code@c1 (0.995 [0.950, 1.04]x)."),
    ],
)
def test_a_setting_loses_only_where_its_whole_interval_does(interval: Interval, words: str) -> None:
    text = recommendation_scope(selection_of(decided(1, "baseline", interval)))
    assert words in text
    assert ("loses" in text) == (interval.ci_high < 1)


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        (("speculate", "speculate"), "Pays at every measured concurrency, up to 4."),
        (("speculate", "baseline"), "Pays up to concurrency 1; at 4: keep the baseline."),
        (("undecided", "baseline"), "Not proven to pay at the lowest measured concurrency, 1: undecided."),
        (("speculate", "undecided", "speculate"), "Pays up to concurrency 1; at 4: undecided. It pays again at 16."),
    ],
)
def test_crossover_is_told_from_what_was_measured(verdicts: tuple[str, ...], sentence: str) -> None:
    group = [decided(level, verdict) for level, verdict in zip((1, 4, 16), verdicts, strict=False)]
    [crossover] = crossovers(group)
    assert crossover_sentence(group, crossover) == sentence


@pytest.mark.parametrize(("stop", "label"), [("baseline", "stops paying"), ("undecided", "no longer proven")])
def test_crossover_is_marked_in_the_plot_and_only_called_a_loss_where_it_is_one(stop: str, label: str) -> None:
    group = [decided(1, "speculate"), decided(4, stop)]
    [crossover] = crossovers(group)
    plot = concurrency_plot(group, crossover, "code-concurrency", "code")
    assert plot is not None
    assert label in plot.svg
    unmarked = concurrency_plot(group, None, "code-concurrency", "code")
    assert unmarked is not None
    assert label not in unmarked.svg


@pytest.mark.parametrize(
    ("latest", "typed", "shown"),
    [
        (None, [], None),
        (None, ["sweep"], "sweep"),
        ("sweep a=2", ["sweep a=2"], "sweep a=2"),
        (None, ["sweep", "sweep a=2"], "sweep a=2\n# another session of it: sweep"),
        (
            "sweep a=3",
            ["sweep", "sweep a=2", "sweep"],
            "sweep a=3\n# another session of it: sweep\n# another session of it: sweep a=2",
        ),
    ],
)
def test_command_to_repeat_is_that_of_the_configuration_it_has_now(
    latest: str | None, typed: list[str], shown: str | None
) -> None:
    assert repeat_command(latest, typed) == shown
