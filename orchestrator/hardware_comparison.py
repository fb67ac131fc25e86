"""The same workloads on several kinds of hardware: what each delivers and what that costs, from selections. Pure."""

from collections.abc import Mapping
from math import inf
from typing import Literal

from orchestrator.config import Strict
from orchestrator.display import baseline_of, best_of
from orchestrator.selection import Choice, Interval, Selection, Verdict, WorkloadResult


class HardwareFigure(Strict):
    """One kind of hardware on one workload, with the setting chosen there; while undecided, with the baseline."""

    hardware: str
    verdict: Verdict
    best: Choice | None
    """None while undecided."""
    speedup: Interval | None
    """Of the chosen setting over the same hardware's baseline; None for the baseline itself."""
    output_tokens_per_s: Interval | None
    """Of one server."""
    usd_per_million_output_tokens: float | None
    """None where the price of the hardware is not known, or nothing was measured."""


class ComparedWorkload(Strict):
    name: str
    """As in tables: `code@c4`."""
    output_len: int
    figures: tuple[HardwareFigure, ...]
    """The cheapest first, those of unknown price last; where prices don't tell, the fastest first."""


class HardwareComparison(Strict):
    schema_version: Literal[1] = 1
    sweep_ids: dict[str, str]
    """Hardware -> the sweep that measured it."""
    workloads: tuple[ComparedWorkload, ...]


def compare_hardware(selections: Mapping[str, Selection]) -> HardwareComparison:
    """Every workload on every hardware that measured it; `selections` are by the hardware's name.

    Throughputs of different machines are not paired: no figure here says how sure a difference between them is.
    """
    found: dict[tuple[str, int], list[HardwareFigure]] = {}
    for hardware, selection in selections.items():
        for workload in selection.workloads:
            found.setdefault((workload.point_name, workload.output_len), []).append(_figure(hardware, workload))
    return HardwareComparison(
        sweep_ids={hardware: selection.sweep_id for hardware, selection in selections.items()},
        workloads=tuple(
            ComparedWorkload(name=name, output_len=output_len, figures=tuple(sorted(figures, key=_cheapest_first)))
            for (name, output_len), figures in found.items()
        ),
    )


def _figure(hardware: str, workload: WorkloadResult) -> HardwareFigure:
    arm = best_of(workload) or baseline_of(workload)
    return HardwareFigure(
        hardware=hardware,
        verdict=workload.verdict,
        best=workload.best,
        speedup=arm.speedup if arm else None,
        output_tokens_per_s=arm.output_tokens_per_s if arm else None,
        usd_per_million_output_tokens=arm.usd_per_million_output_tokens if arm else None,
    )


def _cheapest_first(figure: HardwareFigure) -> tuple[float, float]:
    price, rate = figure.usd_per_million_output_tokens, figure.output_tokens_per_s
    return (inf if price is None else price), (-rate.mean if rate else inf)
