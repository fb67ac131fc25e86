"""The report's figures: matplotlib Figures (no pyplot, no global state) to SVG and PNG.

Colours are those of the light page. The inline SVG takes them from the page's CSS instead, so that one drawing
is right in light and in dark.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from orchestrator.config import Level
from orchestrator.display import arm_name, best_of, is_best
from orchestrator.selection import ArmResult, Interval, WorkloadResult

Item = TypeVar("Item")

MAX_CURVES = 12
MAX_LINES = 6
SIZE_INCHES = (4.8, 3.1)
"""Small on purpose: scaled to a phone's width its text keeps about 9 px."""
INK, MUTED, GRID, SURFACE, ACCENT = "#1b1f24", "#59636e", "#dde2e7", "#ffffff", "#0b5cad"
SERIES = ("#0b5cae", "#b3541e", "#2f7d4f", "#7a4fa3", "#8a6d00", "#a3315c")
MARKERS = ("o", "s", "^", "D", "v", "P")
CSS_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--line", SURFACE: "--page", ACCENT: "--accent"} | {
    colour: f"--series-{index}" for index, colour in enumerate(SERIES)
}
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "axes.facecolor": SURFACE,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "figure.facecolor": SURFACE,
    "legend.frameon": False,
    "path.simplify": True,
}


@dataclass(frozen=True)
class Plot:
    """One figure: `slug` names its files, `alt` says in a sentence what it shows."""

    slug: str
    alt: str
    svg: str
    png: bytes

    def inline_svg(self) -> str:
        """The SVG as a part of an HTML page: colours from the page's CSS, no ids that could clash, a label."""
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        body = re.sub(r'<g id="[^"]*"', "<g", body)
        for colour, variable in CSS_VARIABLES.items():
            body = body.replace(colour, f"var({variable})")
        opening, rest = body.split(">", 1)
        view_box = re.search(r'viewBox="[^"]*"', opening)
        label = self.alt.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
        return f'<svg {view_box.group() if view_box else ""} role="img" aria-label="{label}">{rest}'

    def write(self, folder: Path) -> list[Path]:
        paths = [folder / f"{self.slug}.svg", folder / f"{self.slug}.png"]
        paths[0].write_text(self.svg, encoding="utf-8")
        paths[1].write_bytes(self.png)
        return paths


def throughput_plot(workload: WorkloadResult, slug: str, title: str) -> Plot | None:
    """Output tokens/s over k with intervals, the baseline as a band; None where nothing was measured."""
    measured = [arm for arm in workload.arms if arm.output_tokens_per_s]
    if not measured:
        return None
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(f"{title}: throughput")
        methods = sorted({arm.method for arm in measured} - {"none"})
        for index, method in enumerate(methods):
            _throughput_series(axes, [arm for arm in measured if arm.method == method], index, method)
        for arm in measured:
            if arm.method == "none" and arm.output_tokens_per_s:
                _baseline_band(axes, arm.output_tokens_per_s)
        _mark_best(axes, best_of(workload))
        axes.set(xlabel="num_speculative_tokens (k)", ylabel="output tokens/s", ylim=(0, None))
        axes.margins(x=0.08)
        axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
        _ticks_at(axes, sorted({arm.num_speculative_tokens for arm in measured if arm.method != "none"}))
        if len(methods) > 1:
            axes.legend(loc="best")
        return _finish(figure, slug, f"{title}: output tokens per second over k, with intervals and the baseline")


def survival_plot(workload: WorkloadResult, slug: str, title: str) -> Plot | None:
    """Share of drafts still accepted at each position, for at most MAX_CURVES arms; None without counters."""
    arms = survival_arms(workload)
    if not arms:
        return None
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(f"{title}: accepted drafts by position")
        longest = max(len(arm.survival or ()) for arm in arms)
        axes.set_xlim(-0.03 * longest - 0.2, longest - 1 + 0.12 * longest + 0.3)
        axes.set(xlabel="position in the draft, from 0", ylabel="drafts accepted that far (%)", ylim=(0, 108))
        axes.set_yticks(range(0, 101, 20))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick < longest])
        several = len({arm.method for arm in arms}) > 1
        ends: list[tuple[float, float]] = []
        for arm in sorted(arms, key=lambda arm: not is_best(arm, workload)):
            best, values = is_best(arm, workload), arm.survival or ()
            style = {"color": ACCENT, "linewidth": 2.2, "zorder": 4} if best else {"color": MUTED, "linewidth": 1}
            axes.plot(range(len(values)), [100 * value for value in values], **style)
            end = (len(values) - 1, 100 * values[-1])
            axes.plot(*end, marker="o", markersize=5 if best else 3.5, **style)
            _label_end(axes, end, arm_name(arm) if several else f"k={arm.num_speculative_tokens}", ends, bold=best)
        return _finish(figure, slug, f"{title}: share of drafts accepted up to each position, by arm")


def concurrency_plot(workloads: Sequence[WorkloadResult], slug: str, title: str) -> Plot | None:
    """Speedup over concurrency of one dataset's workloads; the line at 1 is where speculation stops to pay."""
    lines = concurrency_lines(workloads)
    if not lines:
        return None
    with mpl.rc_context(_STYLE):
        axis = axis_name(workloads)
        figure, axes = _axes(f"{title}: speedup over {axis}")
        axes.set_xscale("log", base=2)
        axes.axhline(1, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        for index, (name, points) in enumerate(lines.items()):
            shift = 1 + 0.02 * (index - (len(lines) - 1) / 2)  # apart, so that intervals do not hide each other
            style = {"color": SERIES[index], "marker": MARKERS[index], "markersize": 5, "linewidth": 1.5}
            x = [concurrency * shift for concurrency in points]
            _errorbar(axes, x, list(points.values()), label=name, **style)
        axes.set(xlabel="concurrent requests" if axis == "concurrency" else axis, ylabel="speedup against baseline (x)")
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
        axes.minorticks_off()
        levels = sorted({workload.level for workload in workloads})
        axes.set_xticks(levels, [f"{level:g}" for level in levels])
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0, handlelength=1.5)
        return _finish(figure, slug, f"{title}: speedup against the baseline over {axis}, by arm")


def survival_arms(workload: WorkloadResult) -> list[ArmResult]:
    """The arms whose curves are drawn: all, or the best with its neighbours and others spread evenly over k."""
    arms = sorted((arm for arm in workload.arms if arm.survival), key=lambda arm: arm.num_speculative_tokens)
    return _thin(arms, [is_best(arm, workload) for arm in arms], MAX_CURVES)


def axis_name(workloads: Sequence[WorkloadResult]) -> str:
    """What the levels of load are."""
    if not workloads[0].is_open_loop:
        return "concurrency"
    return "request rate" if workloads[0].request_rate is not None else "log speed"


def concurrency_lines(workloads: Sequence[WorkloadResult]) -> dict[str, dict[Level, Interval]]:
    """Arm name -> level of load -> speedup, for at most MAX_LINES arms, those that are best somewhere first."""
    lines: dict[str, dict[Level, Interval]] = {}
    best: set[str] = set()
    for workload in workloads:
        for arm in sorted(workload.arms, key=lambda arm: (arm.method, arm.num_speculative_tokens)):
            if arm.speedup:
                lines.setdefault(arm_name(arm), {})[workload.level] = arm.speedup
                best |= {arm_name(arm)} if is_best(arm, workload) else set()
    chosen = _thin(list(lines), [name in best for name in lines], MAX_LINES)
    return {name: lines[name] for name in chosen}


def _thin(items: list[Item], keep: list[bool], limit: int) -> list[Item]:
    """At most `limit` items in their order: those to keep, their neighbours, the ends, then evenly between."""
    if len(items) <= limit:
        return items
    last = len(items) - 1
    kept = [index for index, wanted in enumerate(keep) if wanted]
    neighbours = [index + step for index in kept for step in (-1, 1)]
    even = [0, last, *(round(step * last / (limit - 1)) for step in range(1, limit - 1))]
    order = dict.fromkeys(index for index in [*kept, *neighbours, *even] if 0 <= index <= last)
    return [items[index] for index in sorted(list(order)[:limit])]


def _axes(title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, color=INK)
    axes.tick_params(length=3)
    return figure, axes


def _errorbar(axes: Any, x: Sequence[float], values: Sequence[Interval], **style: Any) -> None:
    means = [value.mean for value in values]
    below = [max(0.0, value.mean - value.ci_low) for value in values]
    above = [max(0.0, value.ci_high - value.mean) for value in values]
    caps = 2.5 if len(means) <= 40 else 0
    axes.errorbar(x, means, yerr=[below, above], capsize=caps, elinewidth=1, **style)


def _throughput_series(axes: Any, arms: list[ArmResult], index: int, label: str) -> None:
    arms = sorted(arms, key=lambda arm: arm.num_speculative_tokens)
    style = {"color": SERIES[index % len(SERIES)], "marker": MARKERS[index % len(MARKERS)], "linewidth": 1.3}
    values = [arm.output_tokens_per_s for arm in arms if arm.output_tokens_per_s]
    x = [arm.num_speculative_tokens for arm in arms]
    _errorbar(axes, x, values, label=label, markersize=4 if len(arms) <= 40 else 2, **style)


def _baseline_band(axes: Any, rate: Interval) -> None:
    axes.axhspan(rate.ci_low, rate.ci_high, color=MUTED, alpha=0.25, linewidth=0)
    axes.axhline(rate.mean, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    at = {"xy": (1, rate.mean), "xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    axes.annotate("baseline", xytext=(0, -5), ha="right", va="top", color=INK, fontsize=8, **at)


def _mark_best(axes: Any, best: ArmResult | None) -> None:
    if best is None or best.method == "none" or best.output_tokens_per_s is None:
        return
    k, rate = best.num_speculative_tokens, best.output_tokens_per_s
    axes.plot(k, rate.mean, marker="o", markersize=11, markerfacecolor="none", color=ACCENT, markeredgewidth=1.8)
    style = {"ha": "center", "color": INK, "fontsize": 9, "fontweight": "bold", "textcoords": "offset points"}
    axes.annotate(f"k={k}", (k, rate.ci_high), xytext=(0, 9), annotation_clip=False, **style)


def _ticks_at(axes: Any, values: list[int]) -> None:
    """A tick at every measured k, unless there are too many of them or they would touch."""
    close = any(after - before < (values[-1] - values[0]) / 20 for before, after in pairwise(values))
    if values and len(values) <= 12 and not close:
        axes.set_xticks(values)
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)


def _label_end(axes: Any, end: tuple[float, float], text: str, taken: list[tuple[float, float]], bold: bool) -> None:
    """Name a curve at its last point, unless a more important name is there already (the table has them all)."""
    here = axes.transData.transform(end)
    if any(abs(here[0] - x) < 34 and abs(here[1] - y) < 12 for x, y in taken):
        return
    taken.append((here[0], here[1]))
    weight = "bold" if bold else "normal"
    style = {"ha": "left", "fontsize": 8, "fontweight": weight, "color": INK, "textcoords": "offset points"}
    axes.annotate(text, end, xytext=(2, 5), annotation_clip=False, **style)


def _finish(figure: Figure, slug: str, alt: str) -> Plot:
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not for each file again
    svg, png = io.StringIO(), io.BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": slug}):  # the same figure gives the same bytes
        figure.savefig(svg, format="svg", metadata=nothing)
    figure.savefig(png, format="png", dpi=200)
    figure.clear()
    return Plot(slug, alt, svg.getvalue(), png.getvalue())
