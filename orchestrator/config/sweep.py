"""All of it, and what must fit together."""

import re
from typing import Self

from pydantic import Field, field_serializer, field_validator, model_validator

from orchestrator.config.base import Strict
from orchestrator.config.cluster import Cluster, Tracking
from orchestrator.config.hardware import Hardware
from orchestrator.config.model import Model
from orchestrator.config.search import Search, SelectionRules
from orchestrator.config.server import Server, Space
from orchestrator.config.speculation import Speculation
from orchestrator.config.workload import Dataset, Workload
from orchestrator.methods import METHODS, Method


class SweepConfig(Strict):
    name: str
    seed: int = 0
    results_dir: str = "results"
    hardware: Hardware
    model: Model
    datasets: dict[str, Dataset] = Field(min_length=1)
    speculation: tuple[Speculation, ...]
    """Each method is compared with the same baseline; a single one is written without a list."""
    workload: Workload
    server: Server = Server()
    space: Space = Space()
    search: Search = Search()
    selection: SelectionRules = SelectionRules()
    cluster: Cluster = Cluster()
    tracking: Tracking = Tracking()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.hardware.usd_per_hour is None:
            needs_price = {
                "search.max_usd": self.search.max_usd is not None,
                "cluster.budget_usd": self.cluster.budget_usd is not None,
                "selection.objective=cost": self.selection.objective == "cost",
            }
            for name, is_asked in needs_price.items():
                if is_asked:
                    raise ValueError(f"{name} needs the price of a node: set hardware.usd_per_hour")
        if self.search.strategy == "adaptive" and self.selection.objective == "goodput":
            raise ValueError(
                "search=adaptive predicts speed, not goodput; use search=grid with selection.objective=goodput"
            )
        return self

    @property
    def methods(self) -> tuple[Method, ...]:
        """The speculation methods of the sweep, without `none`, the simplest first."""
        named = {each.method for each in self.speculation if each.method != "none"}
        return tuple(sorted(named, key=lambda method: METHODS[method].simplicity))

    @field_validator("speculation", mode="before")
    @classmethod
    def _one_or_many_methods(cls, value: object) -> object:
        return value if isinstance(value, list | tuple) else (value,)

    @field_serializer("speculation")
    def _without_list(self, value: tuple[Speculation, ...]) -> Speculation | tuple[Speculation, ...]:
        return value if len(value) > 1 else value[0]

    @field_validator("speculation")
    @classmethod
    def _no_method_twice(cls, value: tuple[Speculation, ...]) -> tuple[Speculation, ...]:
        if not value:
            raise ValueError("needs a method; `none` measures the baseline alone")
        methods = [each.method for each in value]
        for method in methods:
            if methods.count(method) > 1:
                raise ValueError(f"names method {method!r} twice; put all its k in one num_speculative_tokens")
        return value

    @model_validator(mode="after")
    def _binding_fits_every_numa_node(self) -> Self:
        if self.hardware.server_per == "numa_node":
            fixed = {self.server.omp_threads_bind, *self.space.omp_threads_bind} - {None, "nobind"}
            if fixed:
                raise ValueError(
                    f"omp_threads_bind: with hardware.server_per=numa_node every server has CPUs of its own, but got "
                    f"{sorted(map(str, fixed))[0]!r} for all; leave it null"
                )
        return self

    @model_validator(mode="after")
    def _open_loop_can_be_judged(self) -> Self:
        faults = []
        if self.workload.is_open_loop and self.selection.objective in ("throughput", "cost"):
            faults.append(
                f"selection.objective={self.selection.objective} decides nothing, since every arm that keeps up gives "
                "the tokens/s that the requests ask for: use selection=latency, or selection.objective=tpot, e2e, or "
                "goodput with selection.slo"
            )
        if self.workload.is_open_loop and self.search.strategy == "adaptive":
            faults.append("search=adaptive predicts at a fixed concurrency: use search=grid")
        if faults:
            raise ValueError(f"with workload.arrival={self.workload.arrival} {'; and '.join(faults)}")
        return self

    @model_validator(mode="after")
    def _replay_has_a_whole_log(self) -> Self:
        for name, dataset in self.datasets.items() if self.workload.arrival == "log" else ():
            if dataset.arrival_field is None or dataset.num_prompts is not None:
                raise ValueError(
                    f"workload.arrival=log replays datasets.{name} whole and at its own times: it needs "
                    f"datasets.{name}.arrival_field, and no num_prompts; 'dataset@datasets=[request_log]' has both"
                )
        return self

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ValueError(
                "a sweep's name has the letters a to z and A to Z, digits, ., - and _, and begins with a letter or "
                f"digit, since folders are named by it, but got {name!r}"
            )
        return name

    @field_validator("datasets")
    @classmethod
    def _plain_names(cls, datasets: dict[str, Dataset]) -> dict[str, Dataset]:
        for name in datasets:
            if not name.replace("_", "").replace("-", "").isalnum():
                raise ValueError(f"a dataset's name has letters, digits, - and _ only, but got {name!r}")
        return datasets

    @model_validator(mode="after")
    def _space_can_be_searched(self) -> Self:
        axes = ", ".join(f"space.{key}" for key in self.space.axes)
        if axes and self.search.strategy == "adaptive":
            raise ValueError(
                f"search=adaptive predicts over num_speculative_tokens alone and cannot search {axes}; "
                "use search=optuna, or search=grid to measure every combination"
            )
        if axes and not self.methods:
            raise ValueError(f"{axes}: only arms with speculation vary, but speculation.method is 'none'")
        return self
