"""Whether an engine takes an arm, from what is known before it is started. Pure."""

from collections.abc import Collection, Iterable, Mapping

from orchestrator.arms import beyond_block
from orchestrator.defects import PATCHES, refuse_known_defects
from orchestrator.engine_build import EngineBuild
from orchestrator.errors import ConfigError
from orchestrator.methods import METHODS, MTP_VERSIONS, MethodEntry
from orchestrator.records import Arm

CheckpointConfig = Mapping[str, object]
"""A checkpoint's config.json."""

_MTP_BY_DEFAULT = frozenset({"dots3_note", "ernie4_5_moe", "longcat_flash", "step3p5", "step3p7"})
"""Model types whose config.json need not mention their multi-token-prediction layers (vLLM 0.32.0)."""


def refuse_unrunnable(arm: Arm, engine: EngineBuild, temperatures: Iterable[float]) -> None:
    """Raise ConfigError, in the engine's words, where `engine` is known to refuse `arm` or to serve it wrongly."""
    entry = METHODS[arm.method]
    for refusal in entry.refusals:
        if refusal.applies(engine):
            raise ConfigError(f"{_refused(arm, engine)}: {refusal.message}; {refusal.remedy}")
    _require_package(arm, entry, engine)
    _require_patches(arm.server.patches, engine)
    for temperature in temperatures:
        refuse_known_defects(engine, arm.method, temperature, arm.server.patches)


def refuse_checkpoints(
    arm: Arm, engine: EngineBuild | None, target: CheckpointConfig | None, drafter: CheckpointConfig | None
) -> None:
    """Raise ConfigError where the checkpoints do not fit the method or each other; None: config.json is not at hand."""
    lacks_mtp = arm.method == "mtp" and drafter is None and target is not None and not _has_mtp(target)
    if lacks_mtp and engine is not None and engine.is_in(MTP_VERSIONS):
        raise ConfigError(
            f"{_refused(arm, engine)}: Unsupported speculative method: 'mtp'; {arm.server.target} has no layers "
            "for multi-token prediction; choose another speculation"
        )
    if drafter is None:
        return
    is_dflash2 = "DFlash2DraftModel" in _architectures(drafter)
    if arm.method in ("dflash", "dflash2") and is_dflash2 != (arm.method == "dflash2"):
        kind, method = ("a DFlash 2", "dflash2") if is_dflash2 else ("no DFlash 2", "dflash")
        raise ConfigError(
            f"{arm.name}: {_drafter(arm)} is {kind} drafter (architectures {sorted(_architectures(drafter))}); "
            f"name it under model.drafters.{method} and choose speculation={method}"
        )
    _require_same_vocabulary(arm, target, drafter)


def refuse_beyond_block(arm: Arm, drafter: CheckpointConfig | None) -> None:
    """Raise ConfigError where the drafter's own config.json says that k is more than its block takes."""
    entry = METHODS[arm.method]
    stated = drafter.get("block_size") if drafter else None
    largest = entry.largest_k(stated) if isinstance(stated, int) else None
    if largest is not None and arm.num_speculative_tokens > largest:
        raise ConfigError(beyond_block(entry, _drafter(arm), largest, arm.num_speculative_tokens))


def _refused(arm: Arm, engine: EngineBuild) -> str:
    return f"{arm.name}: vLLM {engine.version} refuses speculation method {arm.method!r}"


def _drafter(arm: Arm) -> str:
    return str((arm.server.speculative_config or {}).get("model"))


def _require_package(arm: Arm, entry: MethodEntry, engine: EngineBuild) -> None:
    if entry.package is None:
        return
    name, _, wanted = entry.package.partition("==")
    found = engine.packages.get(name)
    if found is None:
        raise ConfigError(f"{_refused(arm, engine)}: {entry.without_package}; install it into the engine's environment")
    if found != wanted:
        raise ConfigError(
            f"{arm.name}: {entry.package} is what vLLM asks for, but the engine's environment has {found}"
        )


def _require_patches(patches: Collection[str], engine: EngineBuild) -> None:
    for name in patches:
        if name not in PATCHES:
            raise ConfigError(f"server.patches: no patch is named {name!r}; known: {', '.join(sorted(PATCHES))}")
        if not engine.is_in(PATCHES[name].versions):
            raise ConfigError(
                f"server.patches: {name} repairs vLLM {PATCHES[name].versions}, but the engine is {engine.version}"
            )
        if name not in engine.plugins:
            raise ConfigError(
                f"server.patches: the engine's environment has no plugin {name!r}; "
                "install it there: pip install --no-deps infra/engine/patches"
            )


def _has_mtp(target: CheckpointConfig) -> bool:
    text = target.get("text_config")
    keys = {*target, *(text if isinstance(text, dict) else ())}
    return target.get("model_type") in _MTP_BY_DEFAULT or any("mtp" in key or "nextn" in key for key in keys)


def _architectures(config: CheckpointConfig) -> set[str]:
    found = config.get("architectures")
    return {str(name) for name in found} if isinstance(found, list) else set()


def _require_same_vocabulary(arm: Arm, target: CheckpointConfig | None, drafter: CheckpointConfig) -> None:
    if arm.method != "draft_model" or target is None:
        return
    own, theirs = target.get("vocab_size"), drafter.get("vocab_size")
    may_differ = (arm.server.speculative_config or {}).get("use_heterogeneous_vocab")
    if own and theirs and own != theirs and not may_differ:
        raise ConfigError(
            f"{arm.name}: Target and draft model should have the same vocabulary size. Target model vocab_size={own}. "
            f"Draft model vocab_size={theirs}. Another drafter, or speculation.extra.use_heterogeneous_vocab=true"
        )
