"""The roofline is shown only where weights, bandwidth and the time of a step are known."""

import pytest

from orchestrator.config import Model
from orchestrator.records import VisitRecord
from orchestrator.roofline import achieved
from orchestrator.selection import WorkloadResult
from tests.unit.report_fixture import NODE, make_plan, make_visit, make_workload

DENSE = Model(name="m", target="org/m", max_model_len=1024, parameters_billion=10)


def baseline_with(step_s: float | None) -> WorkloadResult:
    workload = make_workload("code", 4, (0, 7))
    return workload.model_copy(
        update={"arms": tuple(arm.model_copy(update={"step_s": step_s}) for arm in workload.arms)}
    )


def visit_at(gb_per_s: float | None) -> VisitRecord:
    return make_visit(make_plan(), node_info=NODE.model_copy(update={"memory_bandwidth_gb_per_s": gb_per_s}))


def test_share_is_weights_over_step_time_over_bandwidth() -> None:
    [found] = achieved(DENSE, [baseline_with(0.2)], [visit_at(100.0), visit_at(200.0), visit_at(300.0)])
    assert found.read_gb == pytest.approx(20)  # 10 G parameters in bfloat16
    assert found.achieved_gb_per_s == pytest.approx(100)
    assert found.roofline_step_s == pytest.approx(0.1)
    assert found.share == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("model", "step_s", "gb_per_s"),
    [
        (DENSE.model_copy(update={"parameters_billion": None}), 0.2, 200.0),
        (DENSE, None, 200.0),
        (DENSE, 0.2, None),
    ],
)
def test_nothing_is_said_where_one_of_the_three_is_not_known(
    model: Model, step_s: float | None, gb_per_s: float | None
) -> None:
    assert achieved(model, [baseline_with(step_s)], [visit_at(gb_per_s)]) == []


def test_mixture_of_experts_reads_more_with_more_requests_under_way() -> None:
    experts = DENSE.model_copy(update={"active_parameters_billion": 1})
    [found] = achieved(experts, [baseline_with(0.2)], [visit_at(200.0)])
    assert 2 < found.read_gb < 4 * 2
