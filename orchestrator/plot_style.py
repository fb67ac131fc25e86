"""How every figure looks: matplotlib Figures (no pyplot, no global state) to SVG and PNG.

Colours are those of the light page. The inline SVG takes them from the page's CSS instead, so that one drawing
is right in light and in dark.
"""

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

SIZE_INCHES = (4.8, 3.1)
"""Small on purpose: scaled to a phone's width its text keeps about 9 px."""
INK, MUTED, GRID, SURFACE, ACCENT = "#1b1f24", "#59636e", "#dde2e7", "#ffffff", "#0b5cad"
SERIES = ("#0b5cae", "#b3541e", "#2f7d4f", "#7a4fa3", "#8a6d00", "#a3315c")
MARKERS = ("o", "s", "^", "D", "v", "P")
CSS_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--line", SURFACE: "--page", ACCENT: "--accent"} | {
    colour: f"--series-{index}" for index, colour in enumerate(SERIES)
}
STYLE = {
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


def new_axes(title: str, size_inches: tuple[float, float] = SIZE_INCHES) -> tuple[Figure, Any]:
    """An empty figure with a title and its axes; call it and all that draws under `mpl.rc_context(STYLE)`."""
    figure = Figure(figsize=size_inches, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, color=INK)
    axes.tick_params(length=3)
    return figure, axes


def finish(figure: Figure, slug: str, alt: str) -> Plot:
    """The figure as SVG and PNG."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not for each file again
    svg, png = io.StringIO(), io.BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": slug}):  # the same figure gives the same bytes
        figure.savefig(svg, format="svg", metadata=nothing)
    figure.savefig(png, format="png", dpi=200)
    figure.clear()
    return Plot(slug, alt, svg.getvalue(), png.getvalue())
