"""The reason as people read it: no arm contradicted, none taken for measured, drift said with the verdict."""

from orchestrator.display import headline
from orchestrator.drift_text import drift_warning, with_drifts
from orchestrator.select import select_workloads
from orchestrator.selection import Drift, Interval, WorkloadResult
from tests.unit.builders import compare, make_plan, measured
from tests.unit.report_fixture import make_plan as report_plan
from tests.unit.report_fixture import make_selection

PLAN = make_plan([1, 3, 7])
BASE = [100.0, 101, 99, 100]


def decided(rates: dict[int, list[float]], dropped: dict[int, str]) -> WorkloadResult:
    names = {arm.num_speculative_tokens: arm.id for arm in PLAN.arms}
    reasons = {(names[k], PLAN.workloads[0].id): why for k, why in dropped.items()}
    [workload] = select_workloads(compare(PLAN, measured(PLAN, {0: BASE, **rates})), None, {}, reasons)
    return workload


def drift(mean: float, *, beyond: bool = True, dataset: str = "code", node: str = "node-a") -> Drift:
    return Drift(
        dataset=dataset,
        max_concurrency=1,
        node=node,
        num_blocks=4,
        closing_over_opening=Interval(mean=mean, ci_low=mean - 0.1, ci_high=mean + 0.1),
        is_beyond_noise=beyond,
    )


def test_an_arm_that_cannot_be_told_from_the_best_is_not_called_worse_in_the_same_breath() -> None:
    rates = {3: [150.0, 190, 120, 160], 7: [160.0, 150, 170, 140]}
    workload = decided(rates, {3: "clearly worse", 1: "predicted to gain nothing worth its time"})
    assert workload.verdict == "speculate"
    reason = workload.reason
    assert "dflash k=7 cannot be told apart from it" in reason or "clearly worse" not in reason
    assert "worse: dflash-k3" not in reason
    assert reason.endswith("not measured here, predicted to gain nothing worth its time: dflash-k1")


def test_an_arm_that_is_no_contender_stays_called_what_it_is() -> None:
    workload = decided({3: [150.0, 151, 149, 150], 7: [110.0, 111, 109, 110]}, {7: "clearly worse"})
    assert workload.reason.startswith("dflash k=3 gives 1.50x")
    assert "measured no further, clearly worse: dflash-k7" in workload.reason


def test_keeping_the_baseline_names_the_arms_that_were_not_measured() -> None:
    workload = decided({7: [50.0, 51, 49, 50]}, dict.fromkeys((1, 3), "predicted to gain nothing worth its time"))
    assert workload.verdict == "baseline"
    reason = workload.reason
    assert reason.startswith("no arm that was measured here gains: the best, dflash k=7 gives 0.50x")
    assert "not measured here, predicted to gain nothing worth its time: dflash-k1, dflash-k3" in reason


def test_with_every_arm_measured_the_baseline_is_kept_against_all_of_them() -> None:
    workload = decided({k: [50.0 + k, 51, 49, 50] for k in (1, 3, 7)}, {})
    assert "not measured" not in workload.reason
    assert workload.reason.startswith("no arm gains")


def test_drift_beyond_noise_is_in_the_reason_of_its_workload_alone() -> None:
    code, chat = (make_selection(report_plan()).workloads[at] for at in (0, 4))
    drifts = (drift(2.01), drift(1.01, beyond=False, node="node-b"))
    assert with_drifts(code, drifts).reason.endswith(
        "between its two visits the baseline drifted beyond noise, to 2.01x on node-a: confirm on a quiet machine"
    )
    assert with_drifts(chat, drifts) == chat


def test_drift_beyond_noise_is_in_headline_and_warning_and_else_in_neither() -> None:
    found = make_selection(report_plan())
    assert headline(found).endswith("on 1 the baseline drifted beyond noise: confirm on a quiet machine.")
    calm = found.model_copy(update={"drifts": (drift(1.01, beyond=False),)})
    assert "drift" not in headline(calm)
    assert drift_warning(calm.drifts) is None
    many = [drift(2.01, dataset=f"d{at}") for at in range(6)]
    assert drift_warning(many) == (
        "The baseline drifted beyond noise between its two visits: d0@c1 on node-a (2.01x), d1@c1 on node-a (2.01x), "
        "d2@c1 on node-a (2.01x), d3@c1 on node-a (2.01x) and 2 more; confirm on a quiet machine."
    )
