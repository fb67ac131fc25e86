"""Known engine defects are refused by version, unknown ones by their sign, and only where they bite."""

import pytest

from orchestrator.defects import refuse_known_defects, sampling_collapse
from orchestrator.engine_build import EngineBuild
from orchestrator.errors import ConfigError
from orchestrator.records import SpecCounters


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.4", "0.32.1rc1"])
def test_speculation_at_temperature_above_0_is_refused_on_vllm_0_32(version: str) -> None:
    with pytest.raises(ConfigError, match=r"workload\.temperature=0\.7 .* on vLLM 0\.32.*set workload\.temperature=0"):
        refuse_known_defects(EngineBuild(version), "dflash", 0.7)


@pytest.mark.parametrize(
    ("version", "method", "temperature"),
    [
        ("0.32.0", "dflash", 0.0),
        ("0.32.0", "none", 0.7),
        ("0.33.0", "dflash", 0.7),
        ("0.31.9", "dflash", 0.7),
        ("", "dflash", 0.7),
        ("a build of our own", "dflash", 0.7),
    ],
)
def test_what_the_defect_does_not_touch_passes(version: str, method: str, temperature: float) -> None:
    refuse_known_defects(EngineBuild(version), method, temperature)


def test_an_engine_whose_triton_runs_on_cpus_samples_rightly() -> None:
    refuse_known_defects(EngineBuild("0.32.0", triton_backends=frozenset({"cpu"})), "dflash", 0.7)


def test_a_repaired_engine_may_sample() -> None:
    refuse_known_defects(EngineBuild("0.32.0"), "dflash", 0.7, ["sampling_expand"])


def counters(num_drafts: int, num_accepted_tokens: int) -> SpecCounters:
    return SpecCounters(
        num_drafts=num_drafts,
        num_draft_tokens=7 * num_drafts,
        num_accepted_tokens=num_accepted_tokens,
        num_accepted_tokens_per_pos=(),
    )


def test_sampling_that_accepts_nothing_is_a_collapse() -> None:
    assert sampling_collapse(counters(100, 0), counters(20, 100)) == (
        "acceptance length is 1.00 when sampling, but 6.00 on the same prompts at temperature 0: the engine's sampling "
        "with speculation seems broken, and so would be its text; set workload.temperature=0, or use another engine "
        "version"
    )


@pytest.mark.parametrize(
    ("sampled", "greedy"),
    [
        pytest.param((50, 120), (20, 100), id="less, as it should be"),
        pytest.param((100, 100), (20, 100), id="a fifth"),
        pytest.param((100, 0), (100, 40), id="a poor drafter"),
        pytest.param((0, 0), (20, 100), id="nothing was drafted"),
        pytest.param((100, 0), (0, 0), id="nothing to compare with"),
    ],
)
def test_what_is_no_collapse(sampled: tuple[int, int], greedy: tuple[int, int]) -> None:
    assert sampling_collapse(counters(*sampled), counters(*greedy)) is None
