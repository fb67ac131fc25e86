"""The map of best settings over dataset and load."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.patches import Rectangle

from orchestrator.display import arm_name, best_of, number
from orchestrator.plot_style import ACCENT, GRID, INK, MUTED, SIZE_INCHES, STYLE, Plot, finish, new_axes
from orchestrator.plots import axis_name
from orchestrator.selection import WorkloadResult

FULL_SPEEDUP = 4
"""From here on a cell gets no darker."""
MAX_OPACITY = 0.5
"""Ink stays readable on it, in light and in dark."""
ROW_INCHES = 0.5


def best_map(groups: Sequence[Sequence[WorkloadResult]], slug: str) -> Plot:
    """One row a dataset, one column a level of load; every cell says its setting and speedup, and shades by it."""
    axis = axis_name(groups[0])
    levels = sorted({workload.level for group in groups for workload in group})
    with mpl.rc_context(STYLE):
        height = 1.0 + ROW_INCHES * len(groups)
        figure, axes = new_axes(f"Best setting by dataset and {axis}", (SIZE_INCHES[0], height))
        for row, group in enumerate(groups):
            for workload in group:
                _cell(axes, levels.index(workload.level), row, workload)
        axes.set(xlim=(-0.5, len(levels) - 0.5), ylim=(len(groups) - 0.5, -0.5), xlabel=axis)
        axes.set_xticks(range(len(levels)), [f"{level:g}" for level in levels])
        axes.set_yticks(range(len(groups)), [group[0].dataset for group in groups])
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        return finish(figure, slug, f"Best setting and speedup for each dataset and {axis}; darker is faster")


def _cell(axes: Any, column: int, row: int, workload: WorkloadResult) -> None:
    best = best_of(workload)
    text = {"ha": "center", "va": "center", "color": INK, "fontsize": 9}
    if workload.verdict == "speculate" and best is not None and best.speedup is not None:
        axes.add_patch(_box(column, row, facecolor=ACCENT, alpha=_opacity(best.speedup.mean), linewidth=0))
        words = f"{arm_name(best)}\n{number(best.speedup.mean)}x"
        axes.text(column, row, words, fontweight="bold", **text)
    elif workload.verdict == "baseline":
        axes.add_patch(_box(column, row, facecolor=GRID, linewidth=0))
        axes.text(column, row, "baseline", **text)
    else:
        axes.add_patch(_box(column, row, facecolor="none", edgecolor=MUTED, linewidth=0.8, linestyle=(0, (3, 3))))
        axes.text(column, row, "undecided", **text)


def _box(column: int, row: int, **style: Any) -> Rectangle:
    return Rectangle((column - 0.47, row - 0.45), 0.94, 0.9, **style)


def _opacity(speedup: float) -> float:
    share = min(1.0, max(0.0, (speedup - 1) / (FULL_SPEEDUP - 1)))
    return 0.1 + (MAX_OPACITY - 0.1) * share
