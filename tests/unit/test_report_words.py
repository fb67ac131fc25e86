"""The decision in sentences: no more than the verdicts say, and no load in between taken for granted."""

import pytest

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
        "(95 % intervals within 1.50x to 3.00x) and saves 50.0 to 60.0 % of the cost of a token; "
        "undecided at concurrency 16."
    ]


def test_saving_is_not_claimed_where_the_objective_is_not_throughput() -> None:
    [sentence] = decision_sentences(selection_of(decided(1, "speculate"), objective="tpot"))
    assert "2.50x of the baseline's speed per output token" in sentence
    assert "saves" not in sentence


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
