"""`orchestrator models`: every model that can be chosen, its drafters, and which hardware profiles it fits on."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from orchestrator.compose import compose, names_in
from orchestrator.config import Drafter, Model, Strict
from orchestrator.display import number
from orchestrator.ids import canonical_json
from orchestrator.memory import Fit, MemoryNeed, memory_need, server_memory_gb, weights_gb
from tasks.host import probe_node

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


def catalogue_table(catalogue: Catalogue) -> Table:
    """A row a model."""
    table = Table(
        title=f"Weights in GB (10^9 bytes), and where a server with a KV cache of {catalogue.kv_cache_gib:g} GiB "
        "fits; ?: not known",
        title_justify="left",
    )
    table.add_column("model", no_wrap=True)
    table.add_column("drafters (block size)")
    for header in ("weights", "drafter", *(catalogue.entries[0].needs if catalogue.entries else ())):
        table.add_column(header, no_wrap=header in ("weights", "drafter"))
    for entry in catalogue.entries:
        model = entry.model
        drafters = ", ".join(_method(method, drafter) for method, drafter in model.drafters.items())
        table.add_row(
            model.name,
            drafters,
            number(weights_gb(model)),
            number(_largest(model)),
            *(FIT_TEXT[need.fit] for need in entry.needs.values()),
        )
    return table


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
