"""What a sweep is expected to take: visits times their length, from the roofline or from earlier sweeps."""

from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.cluster_budget import over_budget
from orchestrator.config import Cluster, Dataset, Fleet, Hardware, Search, SweepConfig
from orchestrator.errors import ConfigError
from orchestrator.forecast import PROMPT_TOKENS, Forecast, forecast, typical_arms
from orchestrator.past_times import PastTimes, past_times
from orchestrator.plan import Plan
from orchestrator.records import BlockRecord, Visit, VisitRecord
from orchestrator.token_time import Range
from tests.unit.builders import OUTPUT_TOKENS, block_record, finished, make_config, plan_of

NO_PAST = PastTimes()
FLEET = {
    "region": "us-east-1",
    "head_image": "head:1",
    "worker_image": "worker:1",
    "sizes": {"default": {"desired_size": 2, "max_size": 4}},
    "ttl_hours": 1,
    "max_hours": 2,
    "head_usd_per_hour": 0.2,
    "network_usd_per_hour": 0.05,
}
PastSweep = tuple[str, Plan, list[BlockRecord], list[VisitRecord]]


def config_of(
    grid: Sequence[int] = (1, 3, 7),
    *,
    strategy: str = "grid",
    parameters_billion: float | None = 8.0,
    budget_usd: float | None = None,
    **hardware: Any,
) -> SweepConfig:
    base = make_config(grid, datasets=("code", "chat"), concurrencies=(1, 4))
    prices = {"usd_per_hour": 3.6, "memory_mt_per_s": 6400, "memory_channels": 8}
    return base.model_copy(
        update={
            "hardware": Hardware.model_validate({"name": "box"} | prices | hardware),
            "model": base.model.model_copy(update={"parameters_billion": parameters_billion}),
            "search": Search.model_validate({"strategy": strategy}),
            "cluster": base.cluster.model_copy(update={"budget_usd": budget_usd}),
        }
    )


def expected(config: SweepConfig, past: PastTimes = NO_PAST, bandwidth: float | None = None) -> Forecast:
    return forecast(config, plan_of(config), {}, past, bandwidth)


def flat(visit_s: float, num_arms: int = 4, typical: int = 3, fleet: Fleet | None = None) -> Forecast:
    """Every visit takes as long."""
    return Forecast(
        baseline_s=Range(visit_s, visit_s),
        arm_s=Range(visit_s, visit_s),
        confirmation_s=Range(0, 0),
        num_arms=num_arms,
        typical_arms=typical,
        num_confirmations=0,
        hardware=Hardware(name="box", usd_per_hour=2, spot_usd_per_hour=0.5),
        fleet=fleet,
        max_node_hours=None,
        basis=(),
    )


def measured_sweep(config: SweepConfig, tokens_per_s: float, start_s: float = 20.0) -> PastSweep:
    plan = plan_of(config)
    blocks = [block_record(plan, arm, block, tokens_per_s) for arm in plan.arms for block in plan.blocks]
    visit = Visit(id="v", arm=plan.baseline, phase="opening", node="a", attempt=1, block_ids=("b",))
    record = finished(visit).record.model_copy(update={"wall_s": start_s + 10, "blocks_s": 10.0})
    return "box/1", plan, blocks, [record]


def test_one_node_makes_every_visit_and_the_baseline_twice() -> None:
    spending = flat(3600).at_most(1)

    assert spending.wall_h == spending.machine_h == Range(6, 6)
    assert spending.usd == Range(12, 12)
    assert spending.spot_usd == Range(3, 3)


def test_more_nodes_take_less_wall_time_and_more_machine_hours_for_their_baselines() -> None:
    spending = flat(3600).at_most(4)

    assert spending.wall_h == Range(3, 3)
    assert spending.machine_h == Range(12, 12)


def test_fleets_head_and_network_cost_as_long_as_the_sweep_takes() -> None:
    fleet = Fleet.model_validate(FLEET)

    found = flat(3600, fleet=fleet)

    assert found.num_nodes == 2
    assert found.at_most(2).usd == Range(4 * (2 * 2 + 0.25), 4 * (2 * 2 + 0.25))


def test_price_that_is_not_known_gives_no_dollars() -> None:
    without = config_of().model_copy(update={"hardware": Hardware(name="b", memory_mt_per_s=6400, memory_channels=8)})

    assert expected(without).typical(1).usd is None


def test_adaptive_is_expected_to_measure_some_of_the_arms_and_the_grid_all() -> None:
    assert [typical_arms(config_of(strategy="adaptive"), number) for number in (0, 1, 4, 15)] == [0, 1, 3, 5]
    assert typical_arms(config_of(strategy="grid"), 15) == 15


def test_estimate_is_a_range_and_says_what_it_rests_on() -> None:
    found = expected(config_of())

    assert 0 < found.typical(1).wall_h.low < found.typical(1).wall_h.high
    assert found.basis[0] == "the roofline: 16.0 GB of weights at 102 to 328 GB/s, the drafter's size supposed"
    assert "server starts" in found.basis[1]


def test_typical_is_at_most_what_is_taken_at_most() -> None:
    found = expected(config_of((1, 3, 5, 7, 9, 11, 13, 15), strategy="adaptive"))

    assert found.typical(1).wall_h.high < found.at_most(1).wall_h.high


def test_larger_model_and_slower_memory_take_longer() -> None:
    usual, large = expected(config_of()), expected(config_of(parameters_billion=80.0))
    slow = expected(config_of(memory_channels=2))

    assert usual.baseline_s.low < large.baseline_s.low
    assert usual.baseline_s.high < slow.baseline_s.high


def test_counted_prompts_stand_for_the_supposed_length() -> None:
    config = config_of()
    plan = plan_of(config)
    long, supposed = (
        forecast(config, plan, {"code": tokens, "chat": tokens}, NO_PAST) for tokens in (2000.0, PROMPT_TOKENS)
    )

    assert long.baseline_s.high > supposed.baseline_s.high
    assert supposed.baseline_s == expected(config).baseline_s


def test_bandwidth_found_on_the_node_serves_where_the_profile_names_no_memory() -> None:
    bare = config_of().model_copy(update={"hardware": Hardware(name="local")})

    assert "at 12 to 28 GB/s" in expected(bare, bandwidth=20.0).basis[0]


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        (config_of(parameters_billion=None), "model.parameters_billion is not given"),
        (
            config_of().model_copy(update={"hardware": Hardware(name="local")}),
            "hardware.memory_mt_per_s and hardware.memory_channels is not given",
        ),
    ],
)
def test_without_sizes_and_earlier_sweeps_there_is_no_estimate(config: SweepConfig, missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        expected(config)


def test_earlier_sweep_of_the_same_kind_takes_the_rooflines_place() -> None:
    config = config_of(parameters_billion=None)

    found = expected(config, past_times([measured_sweep(config, tokens_per_s=100)]))

    tokens = sum(len(block.prompt_indices) for block in plan_of(config).blocks) * config.workload.output_len
    assert found.baseline_s.low == pytest.approx((20 + tokens / 100) / 1.1)
    assert found.baseline_s.high == pytest.approx((20 + tokens / 100) * 1.1)
    assert found.basis == ("16 of 16 arms x workloads as measured in box/1",)


def test_arms_never_measured_before_come_from_the_roofline() -> None:
    past = past_times([measured_sweep(config_of((1, 3)), 100)])

    found = expected(config_of((1, 3, 7)), past)

    assert found.basis[0] == "12 of 16 arms x workloads as measured in box/1"
    assert "roofline" in found.basis[1]


def test_dataset_never_measured_before_is_like_the_others_at_its_concurrency() -> None:
    slow, fast = (past_times([measured_sweep(config_of(), rate)]).token_s for rate in (10, 100))
    times = {key: value for key, value in {**slow, **fast}.items() if key[2] == "code"}
    [cell] = [cell for cell in plan_of(config_of()).workloads if cell.name == "chat@c4"]

    assert PastTimes(token_s=times).of(plan_of(config_of()).baseline, cell) == times["none", 0, "code", "c4"]


def test_spread_of_past_blocks_is_the_range() -> None:
    plan, rates = plan_of(make_config((), num_blocks=4)), (50, 100, 100, 200)
    blocks = [block_record(plan, plan.baseline, block, rate) for block, rate in zip(plan.blocks, rates, strict=True)]

    [found] = past_times([("s", plan, blocks, [])]).token_s.values()

    assert blocks[0].wall_s == OUTPUT_TOKENS / 50
    assert found.low == pytest.approx(0.0065, abs=1e-4)
    assert found.high == pytest.approx(0.017, abs=1e-4)


def test_visits_that_failed_say_nothing_of_a_servers_start() -> None:
    plan = plan_of(make_config())
    visit = Visit(id="v", arm=plan.baseline, phase="opening", node="a", attempt=1, block_ids=("b",))

    assert past_times([("s", plan, [], [finished(visit, error="died").record])]).overhead_s is None


def test_open_loop_lasts_as_long_as_its_requests_take_to_arrive() -> None:
    config = config_of(())
    workload = config.workload.model_validate({"arrival": "poisson", "request_rate": [0.01], "num_blocks": 2})
    slow = config.model_copy(update={"workload": workload})
    num_requests = sum(len(block.requests) for block in plan_of(slow).blocks)

    found = expected(slow)

    assert found.baseline_s.low > num_requests / 0.01
    assert found.baseline_s.high < 1.2 * num_requests / 0.01


def test_log_lasts_as_long_as_it_did_or_its_share_at_another_speed() -> None:
    config = config_of(())
    datasets = {"code": Dataset(data_files="log.jsonl", arrival_field="time", turns="last")}
    workload = config.workload.model_validate({"arrival": "log", "log_speed": [2.0], "num_blocks": 2})
    replay = config.model_copy(update={"workload": workload, "datasets": datasets})

    found = forecast(replay, plan_of(replay), {}, NO_PAST, log_s={"code": 100_000.0})

    assert 50_000 < found.baseline_s.low < found.baseline_s.high < 51_000


def test_searchs_own_budget_caps_the_estimate() -> None:
    config = config_of(strategy="adaptive")
    capped = config.model_copy(update={"search": Search(strategy="adaptive", max_node_hours=0.01)})

    assert expected(capped).at_most(2).machine_h == Range(0.01, 0.01)


def test_budget_below_the_lower_end_refuses_with_numbers_and_what_to_lower() -> None:
    with pytest.raises(
        ConfigError, match=r"budget_usd=5: .* \$10.00 to \$10.00, and at most \$12.00, on 1 node .*lower"
    ):
        over_budget(Cluster(budget_usd=5), [(flat(3600), 1)])


def test_budget_between_the_ends_warns() -> None:
    warning = over_budget(Cluster(budget_usd=11), [(flat(3600), 1)])

    assert warning is not None
    assert "nothing ends it at the budget" in warning


@pytest.mark.parametrize("budget_usd", [None, 12.5])
def test_budget_above_the_upper_end_says_nothing(budget_usd: float | None) -> None:
    assert over_budget(Cluster(budget_usd=budget_usd), [(flat(3600), 1)]) is None


def test_more_nodes_may_break_a_budget_that_one_keeps() -> None:
    with pytest.raises(ConfigError, match="on 4 nodes"):
        over_budget(Cluster(budget_usd=12.5), [(flat(3600), 4)])


def test_several_kinds_of_hardware_share_the_budget() -> None:
    assert over_budget(Cluster(budget_usd=20.5), [(flat(3600), 1)]) is None
    with pytest.raises(ConfigError, match=r"\$20.00 to \$20.00, and at most \$24.00, on 2 nodes"):
        over_budget(Cluster(budget_usd=19.5), [(flat(3600), 1), (flat(3600), 1)])


def test_servers_of_a_nodes_numa_nodes_share_the_arms_and_the_bandwidth() -> None:
    whole, shared = expected(config_of()), expected(config_of(numa_nodes=2, server_per="numa_node"))

    assert shared.baseline_s.low > whole.baseline_s.low
    assert "at 51 to 164 GB/s" in shared.basis[0]
    assert shared.at_most(1).usd is not None


def test_budget_without_a_price_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cluster\.budget_usd needs the price of a node: set hardware\.usd_per_hour"):
        SweepConfig.model_validate(make_config().model_dump() | {"cluster": {"budget_usd": 5}})
