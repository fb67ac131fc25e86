"""A server's memory is weights, drafter, KV cache and an allowance; what is not known is never taken for nothing."""

import pytest

from orchestrator.config import Drafter, Hardware, Model, SweepConfig
from orchestrator.errors import ConfigError
from orchestrator.memory import ALLOWANCE_GB, GIB_IN_GB, kv_bytes_per_token, memory_need, require_fit, weights_gb
from tests.unit.builders import make_config

QWEN3_8B = Model(
    name="m",
    target="org/m",
    max_model_len=4096,
    parameters_billion=8.19,
    num_kv_layers=36,
    num_kv_heads=8,
    head_dim=128,
    drafters={"dflash": Drafter(model="org/d", weight_gb=2.0)},
)


def config(model: Model, *, memory_gb: float | None, kv_cache_gib: float = 1.0) -> SweepConfig:
    base = make_config()
    server = base.server.model_copy(update={"kv_cache_gib": kv_cache_gib})
    return base.model_copy(
        update={"model": model, "hardware": Hardware(name="box", memory_gb=memory_gb), "server": server}
    )


def changed(**fields: object) -> Model:
    return QWEN3_8B.model_copy(update=fields)


def test_weights_are_parameters_in_the_precision_they_are_served_in() -> None:
    assert weights_gb(QWEN3_8B) == pytest.approx(16.38)
    assert weights_gb(changed(dtype="float32")) == pytest.approx(32.76)


def test_quantised_checkpoint_weighs_what_it_says() -> None:
    assert weights_gb(changed(weight_gb=5.0)) == 5


def test_weights_of_a_model_without_a_size_are_not_known() -> None:
    assert weights_gb(changed(parameters_billion=None)) is None


def test_keys_and_values_of_a_token_are_two_per_layer_and_head() -> None:
    assert kv_bytes_per_token(QWEN3_8B) == 2 * 36 * 8 * 128 * 2
    assert kv_bytes_per_token(changed(num_kv_heads=None)) is None


def test_sum_counts_every_part() -> None:
    need = memory_need(QWEN3_8B, QWEN3_8B.drafters["dflash"], 40, 512)

    assert need.least_gb == pytest.approx(16.38 + 2 + 40 * GIB_IN_GB + ALLOWANCE_GB)
    assert need.fit == "fits"
    assert str(need) == (
        "weights 16.4 GB + drafter 2.0 GB + KV cache 42.9 GB + allowance 6.0 GB = 67.3 GB; the node has 512.0 GB"
    )


@pytest.mark.parametrize(
    ("memory_gb", "fit"), [(None, "unknown"), (24.0, "does not fit"), (30.0, "unknown"), (100.0, "fits")]
)
def test_drafter_of_unknown_size_is_between_nothing_and_its_target(memory_gb: float | None, fit: str) -> None:
    need = memory_need(QWEN3_8B, Drafter(model="org/d"), 2, memory_gb)

    assert need.fit == fit
    assert "drafter not known" in str(need)
    assert "= at least 24.5 GB" in str(need)


def test_model_of_unknown_size_does_not_fit_where_its_cache_alone_does_not() -> None:
    assert memory_need(changed(parameters_billion=None), None, 40, 32).fit == "does not fit"
    assert memory_need(changed(parameters_billion=None), None, 40, 512).fit == "unknown"


def test_model_that_cannot_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"'m' does not fit .* 'box': weights 16.4 GB .* = 25.5 GB; .* 25.0 GB"):
        require_fit(config(QWEN3_8B, memory_gb=25))


def test_memory_found_on_the_node_counts_where_the_profile_says_none() -> None:
    with pytest.raises(ConfigError, match=r"the node has 16\.0 GB"):
        require_fit(config(QWEN3_8B, memory_gb=None), memory_gb=16)
    assert require_fit(config(QWEN3_8B, memory_gb=None)).fit == "unknown"


def test_baseline_alone_needs_no_room_for_a_drafter() -> None:
    only_baseline = config(QWEN3_8B, memory_gb=24.5)
    speculation = make_config(grid=()).speculation

    assert require_fit(only_baseline.model_copy(update={"speculation": speculation})).drafter_gb == 0


def test_cache_smaller_than_one_request_is_refused_before_the_engine_does() -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_gib=0.5 holds 3,640 tokens .* set server.kv_cache_gib to 0.56"):
        require_fit(config(QWEN3_8B, memory_gb=None, kv_cache_gib=0.5))
    assert require_fit(config(QWEN3_8B, memory_gb=None, kv_cache_gib=0.5625))
