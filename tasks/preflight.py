"""Refuses an arm that the engine of this machine does not take, before that engine is started."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from orchestrator.config import SweepConfig
from orchestrator.plan import Plan
from orchestrator.records import Arm
from orchestrator.runnable import refuse_beyond_block, refuse_checkpoints, refuse_unrunnable
from tasks.demo import resolve_model
from tasks.engine_build import installed_engine
from tasks.server_command import is_local


def refuse_plan(config: SweepConfig, plan: Plan) -> None:
    """What the plan alone cannot know: the engine installed here and the checkpoints' own configurations.

    Raises:
        ConfigError: with the engine's own words, and what to change.
    """
    is_here = config.cluster.address is None and config.cluster.aws is None
    allowed = {each.method for each in config.speculation if each.allow_beyond_block}
    for arm in plan.arms:
        if is_here:  # else each node asks its own engine
            refuse_arm(arm, [config.workload.temperature])
        if arm.method not in allowed:
            refuse_beyond_block(arm, _drafter_config(arm))


def refuse_arm(arm: Arm, temperatures: Iterable[float], folders: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raise ConfigError where this machine's engine, or the checkpoints found here, do not take the arm.

    Args:
        folders: model -> where its files are, of those that were fetched.
    """
    engine = installed_engine(arm.server.command) if arm.server.launcher == "process" else None
    if engine is not None:
        refuse_unrunnable(arm, engine, temperatures)
    if arm.is_baseline:
        return
    target = folders.get(arm.server.target, arm.server.target)
    refuse_checkpoints(arm, engine, checkpoint_config(target, arm.server.revision), _drafter_config(arm, folders))


def _drafter_config(arm: Arm, folders: Mapping[str, str] = MappingProxyType({})) -> Mapping[str, object] | None:
    config = arm.server.speculative_config or {}
    model, revision = config.get("model"), config.get("revision")
    if not isinstance(model, str):
        return None
    return checkpoint_config(folders.get(model, model), str(revision) if revision else None)


def checkpoint_config(model: str, revision: str | None) -> Mapping[str, object] | None:
    """The checkpoint's config.json; None where it is neither in a folder nor in the Hugging Face cache of this machine.

    A folder that is missing or damaged is the engine's to report.
    """
    folder = resolve_model(model)
    path = Path(folder).expanduser() / "config.json" if is_local(folder) else _cached(folder, revision)
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _cached(model: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
