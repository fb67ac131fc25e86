"""A sweep measures with one version of the engine, and one content of each local model. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from orchestrator.errors import NodeUnavailable
from orchestrator.records import BlockRecord, MeasuredWith, VisitRecord


def public_version(version: str) -> str:
    """`0.32.0` of `0.32.0+cpu`: the distribution states its build, the running server does not."""
    return version.partition("+")[0]


def measured_with(visits: Iterable[VisitRecord]) -> MeasuredWith:
    """By the latest visits that measured something."""
    version: str | None = None
    contents: dict[str, str] = {}
    for visit in visits:
        if visit.num_blocks:
            version = visit.engine_version or version
            contents |= visit.local_models
    return MeasuredWith(engine_version=version, local_models=contents)


def difference(found: MeasuredWith, wanted: MeasuredWith) -> str | None:
    """`vLLM 0.33.0 in place of 0.32.0`; None where nothing differs that both know."""
    versions = found.engine_version, wanted.engine_version
    if None not in versions and public_version(str(versions[0])) != public_version(str(versions[1])):
        return f"vLLM {versions[0]} in place of {versions[1]}"
    for model, content in wanted.local_models.items():
        if found.local_models.get(model, content) != content:
            return f"other files of {model} than before"
    return None


def require_same(found: MeasuredWith, wanted: MeasuredWith) -> None:
    """On the node.

    Raises:
        NodeUnavailable: it would measure with something else than the sweep's other visits.
    """
    differs = difference(found, wanted)
    if differs:
        raise NodeUnavailable(
            f"the node has {differs}, and figures of both do not compare: go back to what the sweep was measured with, "
            "or measure under another name=..."
        )


class Sameness:
    """Whether blocks of an earlier sweep were measured with `wanted`; what is not known of one counts as another."""

    def __init__(self, visits: Sequence[VisitRecord], wanted: MeasuredWith) -> None:
        self._wanted, self._visits = wanted, {visit.visit_id: visit for visit in visits}
        contents: defaultdict[str, set[str]] = defaultdict(set)
        for visit in visits:
            for model, content in visit.local_models.items():
                contents[model].add(content)
        # A visit that was cut off left no record of its own, or half of one: it was like the others.
        self._versions = {public_version(visit.engine_version) for visit in visits if visit.engine_version}
        self._contents = {model: found.copy().pop() for model, found in contents.items() if len(found) == 1}

    def holds(self, block: BlockRecord, models: Collection[str]) -> bool:
        """`models` are what its arm serves."""
        visit, wanted = self._visits.get(block.visit_id), self._wanted
        if wanted.engine_version is not None:
            known = {public_version(visit.engine_version)} if visit and visit.engine_version else self._versions
            if known != {public_version(wanted.engine_version)}:
                return False
        contents, same = self._contents | (visit.local_models if visit else {}), wanted.local_models
        return all(contents.get(model) == same[model] for model in models if model in same)
