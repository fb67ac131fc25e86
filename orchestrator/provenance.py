"""What a result was made with: versions, commit, hardware."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

from orchestrator.config import Hardware
from orchestrator.records import VisitRecord
from orchestrator.selection import Provenance

IMAGE_COMMIT = "SPECSWEEP_GIT_COMMIT"
"""Variable of the head's image, set by its build."""
LIBRARIES = ("specsweep", "ray", "mlflow", "hydra-core", "datasets", "transformers")


def collect_provenance(
    plan_id: str,
    hardware: Hardware,
    visits: Sequence[VisitRecord],
    nodes_set_aside: Mapping[str, str],
    nodes_unclosed: Mapping[str, str] = MappingProxyType({}),
) -> Provenance:
    """Versions as installed where the driver runs; the engine's and the nodes' as the visits reported them."""
    engines = sorted({visit.engine_version for visit in visits if visit.engine_version})
    nodes = {visit.node: visit.node_info.model_dump(mode="json") for visit in visits if visit.node_info}
    return Provenance(
        git_commit=git_commit(Path(__file__).parent),
        versions={**library_versions(), "vllm": ", ".join(engines) or "unknown"},
        hardware={"profile": hardware.model_dump(mode="json"), "nodes": nodes},
        plan_id=plan_id,
        engine_patches=tuple(sorted({patch for visit in visits for patch in visit.engine_patches})),
        nodes_set_aside=dict(nodes_set_aside),
        nodes_unclosed=dict(nodes_unclosed),
        model_revisions={model: commit for visit in visits for model, commit in visit.model_revisions.items()},
    )


def git_commit(folder: Path) -> str | None:
    """The commit of the checkout that holds `folder`, `+` behind it where files differ; outside of one that which a
    container image was built from, None where its build was not told."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return os.environ.get(IMAGE_COMMIT) or None
    return commit + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def library_versions() -> dict[str, str]:
    """Of Python and what this process imports; a library that is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
