"""`orchestrator models`: every model that can be chosen, its drafters, and which hardware profiles it fits on."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import ascii_letters

from rich.console import Console
from rich.table import Table

from orchestrator.compose import compose, names_in
from orchestrator.config import Drafter, Model, Strict
from orchestrator.display import number
from orchestrator.ids import canonical_json
from orchestrator.memory import Fit, MemoryNeed, memory_need, server_memory_gb, weights_gb
from orchestrator.terminal import plain_table
from tasks.host import probe_node

UNKNOWN = "?: not known"
UNLIMITED = 10_000
FIT_TEXT: Mapping[Fit, str] = {"fits": "fits", "does not fit": "no", "unknown": "?"}


class Entry(Strict):
    model: Model
    needs: dict[str, MemoryNeed]
    """Hardware profile -> what a server with the largest drafter takes there."""


class Catalogue(Strict):
    kv_cache_gib: float
    entries: tuple[Entry, ...]


def read_catalogue(overrides: Sequence[str], config_dir: Path | None = None) -> Catalogue:
    """All models x all hardware profiles, the user's own included, with the server that `overrides` choose.

    A profile that names no memory stands for this machine.

    Raises:
        ConfigError: a file or an override is wrong.
    """
    kv_cache_gib = compose(overrides, config_dir).server.kv_cache_gib
    hardware = [compose([f"hardware={name}"], config_dir).hardware for name in names_in("hardware", config_dir)]
    models = [compose([f"model={name}"], config_dir).model for name in names_in("model", config_dir)]
    here = probe_node().memory_gb
    memory = {profile.name: server_memory_gb(profile, here) or here for profile in hardware}
    return Catalogue(
        kv_cache_gib=kv_cache_gib,
        entries=tuple(Entry(model=model, needs=_needs(model, memory, kv_cache_gib)) for model in models),
    )


def catalogue_table(catalogue: Catalogue, out: Console) -> Table:
    """A row a model; a column a hardware profile, or where `out` is too narrow for that, one column with a letter of
    each profile that the model fits on."""
    profiles = list(catalogue.entries[0].needs) if catalogue.entries else []
    title = f"Weights in GB (10^9 bytes), and where a server with a KV cache of {catalogue.kv_cache_gib:g} GiB fits"
    table = _filled(catalogue, f"{title}; {UNKNOWN}", profiles, lambda entry: [FIT_TEXT[fit] for fit in _fits(entry)])
    whole = out.measure(table, options=out.options.update(max_width=UNLIMITED)).maximum
    if whole <= out.width or len(profiles) > len(ascii_letters):
        return table
    legend = ", ".join(f"{letter} {name}" for letter, name in zip(ascii_letters, profiles, strict=False))

    def marks(entry: Entry) -> list[str]:
        return ["".join(_mark(letter, fit) for letter, fit in zip(ascii_letters, _fits(entry), strict=False))]

    return _filled(catalogue, f"{title}: {legend}; -: does not, {UNKNOWN}", ["fits"], marks)


def _filled(catalogue: Catalogue, title: str, fits: Sequence[str], cells: Callable[[Entry], list[str]]) -> Table:
    table = plain_table(title)
    table.add_column("model", no_wrap=True)
    table.add_column("drafters (block size)")
    for header in ("weights", "drafter"):
        table.add_column(header, no_wrap=True, justify="right")
    for header in fits:
        table.add_column(header, no_wrap=True)
    for entry in catalogue.entries:
        model = entry.model
        drafters = ", ".join(_method(method, drafter) for method, drafter in model.drafters.items())
        table.add_row(model.name, drafters, number(weights_gb(model)), number(_largest(model)), *cells(entry))
    return table


def _fits(entry: Entry) -> list[Fit]:
    return [need.fit for need in entry.needs.values()]


def _mark(letter: str, fit: Fit) -> str:
    return {"fits": letter, "does not fit": "-", "unknown": "?"}[fit]


def catalogue_json(catalogue: Catalogue) -> str:
    """A list of models, each as configured, with its weights, and per hardware profile the parts of the sum."""
    return canonical_json(
        [
            entry.model.model_dump(mode="json")
            | {"weights_gb": weights_gb(entry.model)}
            | {"hardware": {name: need.model_dump() | {"fit": need.fit} for name, need in entry.needs.items()}}
            for entry in catalogue.entries
        ]
    )


def _needs(model: Model, memory: Mapping[str, float], kv_cache_gib: float) -> dict[str, MemoryNeed]:
    drafters = list(model.drafters.values())
    known = [drafter for drafter in drafters if drafter.weight_gb is not None]
    largest = max(known, key=lambda drafter: drafter.weight_gb or 0, default=None)
    drafter = largest if len(known) == len(drafters) else Drafter(model="not known")
    return {name: memory_need(model, drafter, kv_cache_gib, gb) for name, gb in memory.items()}


def _largest(model: Model) -> float | None:
    return max(
        (drafter.weight_gb for drafter in model.drafters.values() if drafter.weight_gb is not None), default=None
    )


def _method(method: str, drafter: Drafter) -> str:
    return f"{method} ({drafter.block_size})" if drafter.block_size else method
