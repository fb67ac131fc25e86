"""The report: self-contained, honest about what is missing, safe with text from configs, small when large."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

from orchestrator.config import Model
from orchestrator.display import DASH, identical, interval, number, percent
from orchestrator.ledger import Ledger
from orchestrator.plan import Plan
from orchestrator.plots import MAX_CURVES, survival_arms
from orchestrator.report import fenced, markdown_text, what_was_written, write_report
from orchestrator.selection import ArmResult, Selection
from tests.unit.report_fixture import NODE, make_ledger, make_plan, make_selection, make_visit, make_workload

HOSTILE = 'x<script>alert("1")</script> | `y` [z](http://evil)'


@dataclass(frozen=True)
class Written:
    folder: Path
    paths: list[Path]
    html: str
    markdown: str


def write(folder: Path, selection: Selection, plan: Plan, ledger: Ledger | None = None) -> Written:
    paths = write_report(folder, selection, plan, ledger or Ledger(folder / "empty.jsonl"))
    return Written(folder, paths, paths[0].read_text(), paths[1].read_text())


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan()


@pytest.fixture(scope="module")
def selection(plan: Plan) -> Selection:
    return make_selection(plan)


@pytest.fixture(scope="module")
def report(plan: Plan, selection: Selection, tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("report")
    return write(folder, selection, plan, make_ledger(plan, folder / "ledger.jsonl"))


def one_workload(selection: Selection, arm_changes: Mapping[str, object], **changes: object) -> Selection:
    """The first workload alone, every arm of it changed."""
    workload = selection.workloads[0]
    arms = tuple(arm.model_copy(update=arm_changes) for arm in workload.arms)
    return selection.model_copy(update={"workloads": (workload.model_copy(update={"arms": arms, **changes}),)})


class Structure(HTMLParser):
    """Tags with their attributes, and whether each was closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_report_has_no_network_reference(report: Written) -> None:
    assert not re.search(r"https?://", report.html)
    assert not re.search(r"(?:src|href)=\"(?!#)", report.html)
    assert not re.search(r"@import|url\((?!#)|<script|<link|<img", report.html)


def test_every_figure_is_written_as_svg_and_png_and_shown_inline(report: Written) -> None:
    figures = {path.name for path in report.paths[2:]}
    assert "code-c1-throughput.svg" in figures
    assert "math-concurrency.png" in figures
    assert len(figures) == 2 * (6 * 2 + 3 + 1)
    assert all(path.stat().st_size > 1000 for path in report.paths)
    assert report.html.count("<svg ") == len(figures) / 2


def test_markdown_shows_figures_that_exist(report: Written) -> None:
    linked = re.findall(r"\]\((figures/[^)]+)\)", report.markdown)
    assert linked
    assert all((report.folder / name).exists() for name in linked)


def test_decision_comes_before_everything_else(report: Written) -> None:
    headings = re.findall(r"<h2 id=\"(\w+)\"", report.html)
    assert headings == ["decision", "deploy", "workloads", "concurrency", "validity", "time", "provenance"]


def test_tables_and_plots_have_names_for_screen_readers(report: Written) -> None:
    page = Structure(report.html)
    assert len(page.of("caption")) == len(page.of("table"))
    assert all("scope" in header for header in page.of("th"))
    assert all(plot["role"] == "img" and plot["aria-label"] for plot in page.of("svg"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_plots_take_their_colours_from_the_page(report: Written) -> None:
    plots = "".join(re.findall(r"<svg .*?</svg>", report.html, flags=re.DOTALL))
    assert not re.findall(r"(?:fill|stroke): ?#(?!none)[0-9a-f]{3,6}", plots)
    assert "var(--ink)" in plots


def test_report_tells_what_to_type_next_and_what_was_typed(report: Written) -> None:
    for text in (report.html, report.markdown):
        assert "orchestrator export demo-20260801T101500Z" in text
        assert "make sweep" in text


def test_a_schedule_is_shown_as_the_key_and_the_flag_that_carry_it(report: Written) -> None:
    ranges = "num_speculative_tokens_per_batch_size"
    assert f'<code>"{ranges}": [[1, 2, 15], [3, 64, 7]]</code>' in report.html
    assert f'code: `"{ranges}": [[1, 2, 15], [3, 64, 7]]`' in report.markdown
    assert all(
        "--speculative-config" in text.split("By batch size")[1][:250] for text in (report.html, report.markdown)
    )


def test_a_table_wider_than_the_page_shows_that_it_goes_on_and_keeps_its_first_column(report: Written) -> None:
    css = report.html[: report.html.index("</style>")]
    scroll = re.search(r"^\.scroll \{(.*?)\}", css, flags=re.DOTALL | re.MULTILINE)
    assert scroll
    assert "overflow-x: auto" in scroll[1]
    assert "var(--shadow)" in scroll[1]
    assert css.count("--shadow:") == 2  # light and dark
    assert re.search(r"th:first-child \{[^}]*position: sticky; left: 0;[^}]*background: var\(--page\)", css)


def test_files_written_are_told_in_three_lines(report: Written) -> None:
    assert what_was_written(report.paths).splitlines() == [
        f"Report: {report.folder / 'report.html'}",
        f"The same in Markdown: {report.folder / 'report.md'}",
        f"16 figures, each as SVG and PNG: {report.folder / 'figures'}",
    ]


def test_drift_is_said_in_headline_and_warning(report: Written) -> None:
    for text in (report.html, report.markdown):
        assert "on 1 the baseline drifted beyond noise: confirm on a quiet machine." in text
        assert "between its two visits: code@c1 on node-a (0.97x); confirm on a quiet machine." in text


def test_undecided_is_shown_with_its_reason(report: Written) -> None:
    for text in (report.html, report.markdown):
        assert "Undecided" in text
        assert "the interval of k=3, 0.96 to 1.21, includes 1: 4 blocks are too noisy to tell" in text


def test_missing_figures_show_as_a_dash_never_zero(plan: Plan, selection: Selection, tmp_path: Path) -> None:
    nothing = {name: None for name, field in ArmResult.model_fields.items() if field.annotation not in (int, str)}
    unmeasured = one_workload(selection, nothing, verdict="undecided", best=None)
    text = write(tmp_path, unmeasured, plan).markdown
    row = next(line for line in text.splitlines() if line.startswith("| dflash-k7 |"))
    assert row.split(" | ")[1:6] == [DASH] * 5


def test_text_from_configs_is_escaped(plan: Plan, selection: Selection, tmp_path: Path) -> None:
    report = write(tmp_path, one_workload(selection, {}, dataset=HOSTILE, reason=HOSTILE), plan)
    assert "<script" not in report.html
    assert "<script" not in report.markdown
    assert "&lt;script&gt;" in report.html
    assert all(tmp_path in path.parents for path in report.paths)


def test_markdown_cells_keep_their_row_whole() -> None:
    assert markdown_text("a|b\nc") == r"a\|b c"
    assert markdown_text("[z](u) `x` <b>") == r"\[z\](u) \`x\` &lt;b&gt;"


def test_fence_is_longer_than_any_inside() -> None:
    assert fenced("a ```` b").startswith("`````\n")


def test_void_blocks_failed_visits_and_drift_are_named(report: Written) -> None:
    for text in (report.html, report.markdown):
        assert "1 of 8 requests failed: HTTP 500" in text
        assert "vLLM exited 1" in text
        assert "0.968" in text
        assert "beyond noise" in text


def test_mix_and_confirmation_are_shown_where_it_is_told_what_to_deploy(report: Written) -> None:
    for text in (report.html, report.markdown):
        assert "For the whole traffic mix on one server: dflash-k7 (measured again at the mix: 2.31x" in text
        assert "share of time by concurrency: 75.0 % at 1, 25.0 % at 4" in text
        assert "2.40" in text
        assert "holds" in text
        assert "Two starts of the same server are taken to differ by 1.50 %" in text


def test_identical_outputs_take_one_line(report: Written) -> None:
    for text in (report.html, report.markdown):
        assert "outputs compared at temperature 0 equal the opening baseline" in text
        assert "Outputs against" not in text


def test_outputs_that_differ_are_counted_with_the_reason_as_far_as_known(
    plan: Plan, selection: Selection, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.jsonl"
    arm, cell = plan.arms[2], plan.workloads[0]
    records = [
        block.model_copy(update={"output_sha256": ("1",) + ("0",) * 7})
        if (block.arm_id, block.workload_id) == (arm.id, cell.id)
        else block
        for block in make_ledger(plan, path).blocks()
    ]
    path.write_text("".join(record.model_dump_json() + "\n" for record in records))

    markdown = write(tmp_path, selection, plan, Ledger(path)).markdown

    assert "4 of 960 outputs compared at temperature 0 differ from the opening baseline's." in markdown
    assert f"| code@c1 | baseline | 32 | 0 | 100 | {DASH} | {DASH} | {DASH} |" in markdown
    assert f"| code@c1 | dflash-k3 | 32 | 4 | 87.5 | {DASH} | {DASH} | rounding of nearly equal logits" in markdown
    assert "| math@c1 | dflash-k3 | 32 |" not in markdown


def test_a_share_below_the_whole_never_reads_100() -> None:
    assert [identical(share) for share in (None, 0.5, 0.99949, 0.9996, 1.0)] == [DASH, "50.0", "99.9", ">99.9", "100"]


def test_time_split_and_dropped_prompts_are_printed(report: Written) -> None:
    assert "Outside server starts and load:" in report.html
    assert "Dropped as too long" in report.markdown
    assert "| code | 43 | 3 | 40 |" in report.markdown


def test_simulated_figures_say_so(plan: Plan, selection: Selection, tmp_path: Path) -> None:
    simulated = one_workload(selection, {}).model_copy(update={"simulated": True})
    report = write(tmp_path, simulated, plan)
    assert "Simulated" in report.html
    assert "Simulated" in report.markdown


def test_price_appears_only_where_it_is_known(
    plan: Plan, selection: Selection, report: Written, tmp_path: Path
) -> None:
    assert "USD per 1M" not in report.markdown
    priced = one_workload(selection, {"usd_per_million_output_tokens": 1.2345})
    assert "1.23" in write(tmp_path, priced, plan).markdown


def test_roofline_appears_only_where_it_is_known(
    plan: Plan, selection: Selection, report: Written, tmp_path: Path
) -> None:
    assert "Roofline" not in report.markdown
    probed = NODE.model_copy(update={"memory_bandwidth_gb_per_s": 200.0})
    ledger = make_ledger(plan, tmp_path / "ledger.jsonl")
    ledger.append(make_visit(plan, node_info=probed))
    model = Model(name="m", target="org/m", max_model_len=1024, parameters_billion=10)

    write_report(tmp_path, one_workload(selection, {"step_s": 0.2}), plan, ledger, model)

    for name in ("report.md", "report.html"):
        text = (tmp_path / name).read_text()
        assert "Baseline against the roofline, memory copies 200 GB/s" in text
    assert "| code@c1 | 20.0 | 100 | 200 | 100 | 50.0 |" in (tmp_path / "report.md").read_text()


def test_same_selection_gives_the_same_report(plan: Plan, selection: Selection, tmp_path: Path) -> None:
    first, second = (write(tmp_path, one_workload(selection, {}), plan) for _ in range(2))
    assert first.html == second.html


def test_survival_draws_the_best_and_its_neighbours() -> None:
    workload = make_workload("code", 1, range(200))
    assert workload.best is not None
    best = workload.best.num_speculative_tokens
    drawn = [arm.num_speculative_tokens for arm in survival_arms(workload)]
    assert len(drawn) == MAX_CURVES
    assert {best - 1, best, best + 1} <= set(drawn)


def test_thousand_arms_report_stays_under_5_mb(tmp_path: Path) -> None:
    plan = make_plan(grid=range(1, 1000))
    report = write(tmp_path, make_selection(plan), plan)
    assert len(report.html.encode()) < 5e6
    assert "dflash-k999" in report.html


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123456, "0.0123"),
        (9.996, "10.0"),
        (1234.5, "1,230"),
        (41.26, "41.3"),
        (0.0, "0"),
        (None, DASH),
        (-3.2, "-3.20"),
    ],
)
def test_numbers_have_three_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_missing_interval_and_share_are_dashes() -> None:
    assert interval(None) == percent(None) == DASH
    assert percent(0.0) == "0"
    assert percent(0.00005) == "<0.01"


def test_node_set_aside_and_unstable_figures_are_said_before_any_figure(
    plan: Plan, selection: Selection, tmp_path: Path
) -> None:
    ledger = make_ledger(plan, tmp_path / "ledger.jsonl")
    ledger.append(make_visit(plan, node="node-c", node_info=NODE.model_copy(update={"governor": "powersave"})))
    aside = selection.provenance.model_copy(update={"nodes_set_aside": {"node-b": "its baseline is 30 % slower"}})
    found = selection.model_copy(update={"provenance": aside})
    write_report(tmp_path, found, plan, ledger)
    for name in ("report.md", "report.html"):
        text = (tmp_path / name).read_text()
        warned = text.index("Node node-b was set aside: its baseline is 30 % slower.")
        unstable = text.index("Figures may be unstable: on node-c CPU frequency governor is powersave")
        assert warned < unstable < text.index("Decision per workload" if name.endswith("html") else "## Decision")
