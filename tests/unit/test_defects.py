"""Known engine defects are refused by version, and only where they bite."""

import pytest

from orchestrator.defects import refuse_known_defects
from orchestrator.errors import ConfigError


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.4", "0.32.1rc1"])
def test_speculation_at_temperature_above_0_is_refused_on_vllm_0_32(version: str) -> None:
    with pytest.raises(ConfigError, match=r"workload\.temperature=0\.7 .* on vLLM 0\.32.*set workload\.temperature=0"):
        refuse_known_defects(version, "dflash", 0.7)


@pytest.mark.parametrize(
    ("version", "method", "temperature"),
    [
        ("0.32.0", "dflash", 0.0),
        ("0.32.0", "none", 0.7),
        ("0.33.0", "dflash", 0.7),
        ("0.31.9", "dflash", 0.7),
        (None, "dflash", 0.7),
        ("a build of our own", "dflash", 0.7),
    ],
)
def test_what_the_defect_does_not_touch_passes(version: str | None, method: str, temperature: float) -> None:
    refuse_known_defects(version, method, temperature)
