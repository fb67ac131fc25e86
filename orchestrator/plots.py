"""The report's figures over num_speculative_tokens, position in the draft and load."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import matplotlib as mpl

from orchestrator.config import Level
from orchestrator.display import arm_name, best_of, is_best
from orchestrator.plot_style import ACCENT, INK, MARKERS, MUTED, SERIES, STYLE, Plot, finish, new_axes
from orchestrator.selection import ArmResult, Crossover, Interval, WorkloadResult

Item = TypeVar("Item")

MAX_CURVES = 12
MAX_LINES = 6


def throughput_plot(workload: WorkloadResult, slug: str, title: str) -> Plot | None:
    """Output tokens/s over k with intervals, the baseline as a band; None where nothing was measured."""
    measured = [arm for arm in workload.arms if arm.output_tokens_per_s]
    if not measured:
        return None
    with mpl.rc_context(STYLE):
        figure, axes = new_axes(f"{title}: throughput")
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
        return finish(figure, slug, f"{title}: output tokens per second over k, with intervals and the baseline")


def survival_plot(workload: WorkloadResult, slug: str, title: str) -> Plot | None:
    """Share of drafts still accepted at each position, for at most MAX_CURVES arms; None without counters."""
    arms = survival_arms(workload)
    if not arms:
        return None
    with mpl.rc_context(STYLE):
        figure, axes = new_axes(f"{title}: accepted drafts by position")
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
        return finish(figure, slug, f"{title}: share of drafts accepted up to each position, by arm")


def concurrency_plot(
    workloads: Sequence[WorkloadResult], crossover: Crossover | None, slug: str, title: str
) -> Plot | None:
    """Speedup over load of one dataset's workloads; below the line at 1 speculation loses.

    The band lies between the level up to which it is proven to pay and the first at which it is not.
    """
    lines = concurrency_lines(workloads)
    if not lines:
        return None
    with mpl.rc_context(STYLE):
        axis = axis_name(workloads)
        figure, axes = new_axes(f"{title}: speedup over {axis}")
        axes.set_xscale("log", base=2)
        axes.axhline(1, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        for index, (name, points) in enumerate(lines.items()):
            shift = 1 + 0.02 * (index - (len(lines) - 1) / 2)  # apart, so that intervals do not hide each other
            style = {"color": SERIES[index], "marker": MARKERS[index], "markersize": 5, "linewidth": 1.5}
            x = [concurrency * shift for concurrency in points]
            _errorbar(axes, x, list(points.values()), label=name, **style)
        if crossover and crossover.pays_up_to is not None and crossover.stops_at is not None:
            _mark_crossover(axes, crossover.pays_up_to, crossover.stops_at, workloads)
        axes.set(xlabel="concurrent requests" if axis == "concurrency" else axis, ylabel="speedup against baseline (x)")
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
        axes.minorticks_off()
        levels = sorted({workload.level for workload in workloads})
        axes.set_xticks(levels, [f"{level:g}" for level in levels])
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0, handlelength=1.5)
        return finish(figure, slug, f"{title}: speedup against the baseline over {axis}, by arm")


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


def _mark_crossover(axes: Any, pays_up_to: Level, stops_at: Level, workloads: Sequence[WorkloadResult]) -> None:
    loses = any(workload.level == stops_at and workload.verdict == "baseline" for workload in workloads)
    label = "stops paying" if loses else "no longer proven"
    axes.axvspan(pays_up_to, stops_at, color=MUTED, alpha=0.15, linewidth=0)
    middle = (pays_up_to * stops_at) ** 0.5  # of a logarithmic axis
    style = {"ha": "center", "va": "top", "color": INK, "fontsize": 8, "textcoords": "offset points"}
    axes.annotate(label, (middle, 1), xycoords=("data", "axes fraction"), xytext=(0, -2), **style)


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
