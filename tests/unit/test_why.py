"""The reason in words: what a step yields against what it must."""

from orchestrator.measured import fold
from orchestrator.selection import WorkloadResult
from orchestrator.why import explain
from tests.unit.builders import QUIET, compare, make_plan
from tests.unit.test_step_cost import world


def _explained(datasets: tuple[str, ...] = ("code", "chat")) -> dict[str, WorkloadResult]:
    from orchestrator.select import select_workloads

    costs = world(datasets=datasets, levels=(1,))
    found = compare(costs.plan, [])
    results = select_workloads(found, None, {})
    with_acceptance = [
        result.model_copy(
            update={
                "arms": tuple(
                    arm.model_copy(update={"acceptance_length": length})
                    for arm, length in zip(result.arms, lengths, strict=True)
                )
            }
        )
        for result, lengths in zip(results, ((None, 1.9, 3.4), (None, 1.2, 1.26)), strict=False)
    ]
    return {result.dataset: result for result in explain(costs.plan, costs.cells, with_acceptance)}


def test_a_gain_is_explained_by_what_a_step_yields_and_takes() -> None:
    why = _explained()["code"].why
    assert why is not None
    assert why.startswith("A step of dflash k=3 takes 1.50 times")
    assert "yields 3.40 tokens: 2.3 times what it needs to break even" in why
    assert why.endswith(
        "A step of k=1 takes 1.10 times a step without speculation. It yields 1.90 tokens, 1.50 fewer than k=3."
    )


def test_a_loss_is_explained_by_what_is_missing() -> None:
    why = _explained()["chat"].why
    assert why is not None
    assert "k=1" in why.split(".")[0]  # of two that lose the one that loses least, or gains most
    result = _explained()["chat"].arms[2]
    assert result.break_even_acceptance_length is not None
    assert result.break_even_acceptance_length > 1.26


def test_nothing_measured_is_explained_by_nothing() -> None:
    from orchestrator.select import select_workloads

    plan = make_plan((1, 3))
    results = select_workloads(compare(plan, []), None, {})
    assert [result.why for result in explain(plan, fold([], QUIET).cells, results)] == [None]
