"""From YAML files and command-line overrides to one SweepConfig. DictConfig begins and ends here.

Hydra composes, the schema refuses: value overrides are forced into the composed tree and then validated, so a key
that exists in the schema can be set whether or not a YAML file mentions it, and any other is named with a suggestion,
written plainly, with `+` or in a file.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import yaml

# The public compose API can only put a user's folder behind the shipped one, where it could add but not shadow, and
# keeps its state in a singleton. The loader below it has neither limit.
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from orchestrator.config import SweepConfig
from orchestrator.errors import ConfigError
from orchestrator.methods import METHODS
from orchestrator.suggest import explain, hint

SHIPPED = "pkg://orchestrator.conf"
_NO_OVERRIDE = (
    "{!r} is not an override; write KEY=VALUE, GROUP=NAME or KEY=[A,B] "
    "(a value with commas or brackets of its own needs quotes of its own: KEY='\"a,b\"')"
)


def compose_all(overrides: Sequence[str], config_dir: Path | None = None) -> tuple[SweepConfig, ...]:
    """One configuration for each profile of `hardware=[A,B]`, called `<name>-<hardware>`; a single choice stays as it
    is.

    Raises:
        ConfigError: as `compose`.
    """
    choices = [text for text in overrides if text.lstrip("+").startswith("hardware=")]
    names = _parse(choices[-1]).value() if choices else None
    if not isinstance(names, list):
        return (compose(overrides, config_dir),)
    twice = [name for name, count in Counter(map(str, names)).items() if count > 1]
    if twice or not names:
        raise ConfigError(f"{choices[-1]!r}: {f'{twice[0]} is named twice' if twice else 'names no hardware'}")
    others = [text for text in overrides if text not in choices]
    configs = [compose([*others, f"hardware={name}"], config_dir) for name in names]
    if len(configs) == 1:
        return tuple(configs)
    return tuple(config.model_copy(update={"name": f"{config.name}-{config.hardware.name}"}) for config in configs)


def compose(overrides: Sequence[str], config_dir: Path | None = None) -> SweepConfig:
    """The configuration that the shipped groups, the user's own folder of groups and `overrides` describe.

    A file in `config_dir` stands for the shipped one of the same group and name; everything else is added.

    Raises:
        ConfigError: anything wrong with a file, a name, a key or a value, one line each.
    """
    loader = _loader(config_dir)
    parsed = [_parse(text) for text in overrides]
    for override in parsed:
        _check_choice(loader, override)
    _check_datasets(loader, parsed)
    plain = _plain(_load(loader, parsed))
    if isinstance(plain, dict):
        plain["speculation"] = _speculations(loader, parsed, plain)
    return _validated(plain)


def names_in(group: str, config_dir: Path | None = None) -> list[str]:
    """What can be chosen in `group`: the shipped files and the user's."""
    return list(_loader(config_dir).get_group_options(group))


def to_yaml(config: SweepConfig) -> str:
    """Every value of `config`, defaults included; `load_yaml` reads it back as an equal object."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load_yaml(path: Path) -> SweepConfig:
    """The configuration that `to_yaml` wrote to `path`.

    Raises:
        ConfigError: the file cannot be read, or is no configuration of this version.
    """
    try:
        return _validated(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _plain(composed: DictConfig) -> object:
    try:
        missing = sorted(OmegaConf.missing_keys(composed))
        if missing:
            raise ConfigError("\n".join(f"{key}: needs a value; give {key}=VALUE" for key in missing))
        return OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_first_lines(error)) from error


def _speculations(loader: ConfigLoaderImpl, parsed: Sequence[Override], plain: dict[str, Any]) -> object:
    """`speculation`; of several chosen methods a list, each composed as if it were chosen alone.

    A value under a method's name is that method's own: `speculation.ngram.prompt_lookup_max=4`.
    """
    names = _chosen(loader, parsed, "speculation")
    found = [plain["speculation"]]
    if len(names) > 1:
        others = [override for override in parsed if override.key_or_group != "speculation"]
        each = [_plain(_load(loader, [*others, _parse(f"speculation={name}")])) for name in names]
        found = [alone["speculation"] for alone in each if isinstance(alone, dict)]
    if not all(isinstance(one, dict) for one in found):
        return plain["speculation"]
    own = {name: found[0][name] for name in METHODS if name in found[0]}
    methods = [str(one.get("method")) for one in found]
    for name in own:
        if name not in methods:
            raise ConfigError(
                f"speculation.{name}: method {name} is not chosen (chosen: {', '.join(methods)}); "
                f"choose it with speculation=[{','.join([*methods, name])}]"
            )
    merged = [
        {key: value for key, value in one.items() if key not in METHODS} | own.get(method, {})
        for one, method in zip(found, methods, strict=True)
    ]
    return merged if len(merged) > 1 else merged[0]


def _chosen(loader: ConfigLoaderImpl, parsed: Sequence[Override], group: str) -> list[str]:
    """The names chosen from a group, by the command line or a preset."""
    defaults = loader.compute_defaults_list("config", [_forced(loader, o) for o in parsed], RunMode.RUN).defaults
    paths = [(each.config_path or "").partition("/") for each in defaults]
    return [name for found, _, name in paths if found == group]


def _validated(plain: object) -> SweepConfig:
    try:
        return SweepConfig.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(explain(error)) from error


def _loader(config_dir: Path | None) -> ConfigLoaderImpl:
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"{config_dir}: no such folder of configuration files")
    version.setbase("1.3")
    search_path = create_config_search_path(SHIPPED)
    if config_dir:
        search_path.prepend("own", f"file://{config_dir.resolve()}", anchor="main")
    return ConfigLoaderImpl(config_search_path=search_path)


def _needs_quotes(text: str) -> str:
    key, _, value = text.partition("=")
    letter = next(letter for letter in text if not letter.isascii())
    return (
        f"{text!r}: an override has {letter!r} only in quotes of its own, '{key}=\"{value}\"', and no key or sweep's "
        "name has it at all: they have the letters a to z, digits, ., - and _"
    )


def _parse(text: str) -> Override:
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError(_NO_OVERRIDE.format(text) if text.isascii() else _needs_quotes(text)) from error
    if not override.key_or_group:
        raise ConfigError(_NO_OVERRIDE.format(text))
    if override.is_sweep_override():
        raise ConfigError(f"{text!r}: several values are written as a list, [A,B]; the plan makes arms of them")
    return override


def _is_choice(loader: ConfigLoaderImpl, override: Override) -> bool:
    """Whether it chooses from a group, rather than setting a value."""
    return override.package is not None or loader.repository.group_exists(override.key_or_group)


def _check_choice(loader: ConfigLoaderImpl, override: Override) -> None:
    group = override.key_or_group
    if override.is_delete() or not _is_choice(loader, override):
        return
    if not loader.repository.group_exists(group):
        groups = [name for name in loader.list_groups("") if name != "hydra"]
        raise ConfigError(f"no group named {group}; known: {', '.join(groups)}{hint(group, groups)}")
    if group == "dataset" and override.package is None:
        raise ConfigError(f"{override.input_line!r}: several may be chosen, so write 'dataset@datasets=[NAME,NAME]'")
    known = loader.get_group_options(group)
    value = override.value()
    names = value if isinstance(value, list) else [value]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{override.input_line!r}: names {name} twice")
        if not isinstance(name, str):
            raise ConfigError(
                f"{override.input_line!r}: {group} is chosen by name (known: {', '.join(known)}); "
                f"a single key of it is set as {group}.KEY=VALUE"
            )
        if name not in known:
            raise ConfigError(f"no {group} named {name}; known: {_names(group, known)}{hint(name, known)}")


def _check_datasets(loader: ConfigLoaderImpl, overrides: Sequence[Override]) -> None:
    """Refuse `datasets.humanevl.num_prompts=8`: forced in, it would become one more dataset."""
    named = {_dataset_of(override): override for override in overrides if _dataset_of(override)}
    if not named:
        return
    chosen = _load(loader, [override for override in overrides if _is_choice(loader, override)]).get("datasets") or {}
    added = {_dataset_of(override) for override in overrides if override.is_add() or override.is_force_add()}
    for name, override in named.items():
        if name not in chosen and name not in added:
            known = [str(key) for key in chosen]
            raise ConfigError(
                f"{override.key_or_group}: no dataset named {name} is chosen (chosen: {', '.join(known)}); "
                f"choose it with 'dataset@datasets=[...]', or add your own with +{override.input_line}"
                f"{hint(str(name), known)}"
            )


def _dataset_of(override: Override) -> str | None:
    top, *rest = override.key_or_group.split(".")
    return rest[0] if top == "datasets" and rest else None


def _forced(loader: ConfigLoaderImpl, override: Override) -> str:
    """As Hydra is to read it: no `+` for a group, `++` for every value (see the module's docstring)."""
    text = str(override.input_line)
    if override.type not in (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD):
        return text
    text = text.lstrip("+")
    return text if _is_choice(loader, override) or text.startswith("hydra.") else f"++{text}"


def _load(loader: ConfigLoaderImpl, overrides: Sequence[Override]) -> DictConfig:
    try:
        config = loader.load_configuration("config", [_forced(loader, o) for o in overrides], RunMode.RUN)
    except MissingConfigException as error:
        group = (error.missing_cfg_file or "").partition("/")[0]
        known = f"; known: {_names(group, error.options)}" if error.options else ""
        raise ConfigError(_first_lines(error) + known) from error
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(_first_lines(error)) from error
    choices = config.hydra.runtime.choices
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    groups = [group for group in loader.list_groups("") if group != "speculation"]  # see _speculations
    mixed = [group for group in groups if group in config and group not in choices]
    if mixed:  # Hydra lists a choice of several nowhere, and lays one over the other
        each = "; to sweep each, name them on the command line: hardware=[A,B]" if mixed[0] == "hardware" else ""
        raise ConfigError(f"{mixed[0]}: choose one, for several would be mixed into one{each}")
    return config


def _names(group: str, known: Collection[str]) -> str:
    """All of them; of models there are too many for a line."""
    return f"{len(known)}, which `orchestrator models` lists" if group == "model" else ", ".join(known)


def _first_lines(error: Exception) -> str:
    """Hydra's own message without its list of search paths and its advice for its own command line."""
    lines = str(error).split("\n\n")[0].splitlines()
    return " ".join(line.strip() for line in lines if line.strip() and not line.startswith("To append"))
