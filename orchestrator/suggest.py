"""Words for a configuration that was refused: where, what was got, what is allowed, what was probably meant."""

import difflib
import re
from collections.abc import Collection, Iterator
from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.config import SweepConfig

_MAX_SHOWN = 80


def did_you_mean(word: str, known: Collection[str]) -> str | None:
    """The one of `known` that `word` most likely stands for; None where nothing is close."""
    close = difflib.get_close_matches(word, sorted(known), n=1)
    return close[0] if close else None


def hint(word: str, known: Collection[str]) -> str:
    """`; did you mean X?`, or nothing."""
    meant = did_you_mean(word, known)
    return f"; did you mean {meant}?" if meant else ""


def explain(error: ValidationError) -> str:
    """One line for each thing wrong with a SweepConfig."""
    return "\n".join(dict.fromkeys(_line(details) for details in error.errors(include_url=False)))


def _line(details: ErrorDetails) -> str:
    loc = details["loc"]
    path = _dotted(loc) or "configuration"
    if details["type"] == "extra_forbidden":
        return f"{path}: unknown key, {_meant(loc)}"
    if details["type"] == "missing":
        return f"{path}: needs a value"
    if details["type"] == "value_error":
        return f"{path}: {details['msg'].removeprefix('Value error, ')}"
    return f"{path}: {_rule(details['msg'])}, but got {_short(details['input'])}"


def _dotted(loc: tuple[int | str, ...]) -> str:
    if loc[:1] == ("speculation",) and isinstance(loc[1] if len(loc) > 1 else None, int):
        loc = (loc[0], *loc[2:])  # on the command line a key of it is written without a position
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def _rule(message: str) -> str:
    """pydantic's sentence as a rule in the terms of YAML."""
    rule = re.sub(r"^\w+ should ", "must ", message)
    rule = re.sub(r"(, unable to| after validation|, got a| or instance of).*", "", rule)
    return rule.replace("a valid tuple", "a list").replace("a valid dictionary", "a mapping")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _meant(loc: tuple[int | str, ...]) -> str:
    """A near name beside the unknown key, else the same or a near name elsewhere, else all that is known there."""
    word, siblings = str(loc[-1]), _keys_at(loc[:-1])
    beside = did_you_mean(word, siblings)
    if beside:
        return f"did you mean {beside}?"
    leaves = {path.rpartition(".")[2]: path for path in _all_paths(SweepConfig)}
    elsewhere = did_you_mean(word, leaves)
    if elsewhere:
        return f"did you mean {leaves[elsewhere]}?"
    return f"known here: {', '.join(siblings)}"


def _keys_at(loc: tuple[int | str, ...]) -> list[str]:
    """The keys that the schema has at this place."""
    kind: object = SweepConfig
    for part in loc:
        model = _model(kind)
        # A part that is no field is a key of a mapping (a dataset's name, a method): its values are the next level.
        if model and part in model.model_fields:
            kind = model.model_fields[str(part)].annotation
        elif isinstance(part, int):
            kind = _model_or_items(kind)
        else:
            kind = get_args(kind)[-1] if get_origin(kind) else None
    model = _model(kind)
    return list(model.model_fields) if model else []


def _model(kind: object) -> type[BaseModel] | None:
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _model_or_items(kind: object) -> type[BaseModel] | None:
    """The model that a field holds, also in a list of any length."""
    items = get_args(kind) if get_origin(kind) is tuple else ()
    return _model(items[0] if items[1:] == (Ellipsis,) else kind)


def _all_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = _model_or_items(field.annotation)
        if inner:
            yield from _all_paths(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
