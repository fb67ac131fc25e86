"""Writes report.md, report.html and figures/ from selection, plan and ledger."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from orchestrator.config import Model
from orchestrator.display import DASH, headline, recommendation_scope
from orchestrator.ledger import LedgerView
from orchestrator.outputs import compare_outputs
from orchestrator.plan import Plan
from orchestrator.plot_style import Plot
from orchestrator.report_view import build_view
from orchestrator.selection import Selection
from orchestrator.sweep_dir import SweepDir


def write_report(
    sweep_dir: Path, selection: Selection, plan: Plan, ledger: LedgerView, model: Model | None = None
) -> list[Path]:
    """Write the report into `sweep_dir` and return the files, the HTML first.

    Args:
        model: what is known of it, for the roofline; None leaves that out.
    """
    outputs = compare_outputs(plan, ledger.valid_blocks(), SweepDir(sweep_dir).read_raw)
    view = build_view(selection, plan, ledger, outputs, model, SweepDir(sweep_dir).command())
    paths = []
    for name in ("report.html", "report.md"):
        path = sweep_dir / name
        text = _environment(html=name.endswith("html")).get_template(f"{name}.j2").render(view=view)
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    figures = sweep_dir / "figures"
    figures.mkdir(exist_ok=True)
    return paths + [path for plot in view.plots for path in plot.write(figures)]


def what_was_written(paths: Sequence[Path]) -> str:
    """`write_report`'s files in a few lines: a sweep has dozens of figures."""
    page, markdown, *figures = paths
    lines = [f"Report: {page}", f"The same in Markdown: {markdown}"]
    if figures:
        lines.append(f"{len(figures) // 2} figures, each as SVG and PNG: {figures[0].parent}")
    return "\n".join(lines)


def _environment(html: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("orchestrator"),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": markdown_text, "fence": fenced, "json": json.dumps, "svg": _svg}
    environment.globals |= {"headline": headline, "recommendation_scope": recommendation_scope, "dash": DASH}
    return environment


def _svg(plot: Plot) -> Markup:
    """Not escaped again: it is our own drawing, and the text in it is escaped already."""
    return Markup(plot.inline_svg())


def markdown_text(text: str) -> str:
    """Text from configs and servers as plain GitHub Markdown: no markup, no HTML, no line or cell breaks."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[\]|~])", r"\\\1", " ".join(text.split()))


def fenced(text: str) -> str:
    """A code block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.rstrip()}\n{fence}"
