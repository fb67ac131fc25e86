"""The descriptions that MLflow shows of a sweep and its runs: the decision, links, and what its metrics mean. Pure."""

from dataclasses import dataclass
from urllib.parse import quote

from orchestrator.display import arm_name, headline, interval
from orchestrator.record_metrics import Cell, Evidence
from orchestrator.report_words import decision_sentences
from orchestrator.selection import Selection, WorkloadResult

NOTE_TAG = "mlflow.note.content"
MAX_NOTE_LEN = 7900
"""The description is a tag, and MLflow's limit for those is 8,000."""
MAX_LOGS = 10
AS_RUNS = "?workflowType=machine_learning"
"""Otherwise the page has the menu for traces and judges."""
METRICS = """\
| metric | unit | what it is |
|---|---|---|
| output_tokens_per_s | tokens/s | output tokens over wall time, mean over blocks; `_ci_low`, `_ci_high`: its interval |
| speedup | x | the same over the baseline's, on the same prompts and node; with its interval |
| block/output_tokens_per_s, block/speedup | tokens/s, x | per block of prompts: step = block |
| survival | 0..1 | share of drafts accepted up to a position: step = position, from 0 |
| acceptance_length | tokens/step | 1 + accepted tokens / drafts |
| acceptance_rate | 0..1 | accepted / drafted tokens |
| prefix_cache_hit_rate | 0..1 | prompt tokens that the prefix cache had / prompt tokens, where it is on |
| step_s | s | time of one step of the engine while requests decode |
| break_even_acceptance_length | tokens/step | what a step must yield to be as fast as the baseline |
| predicted_speedup | x | from acceptance here and step times elsewhere: a check, never a reason |
| ttft_s, tpot_s, itl_s, e2e_s | s | to first token, per output token, between chunks, of a request: `_p50` to `_p99` |
| usd_per_million_output_tokens | USD | at the hardware's price per hour |
| outputs_match_baseline | 0..1 | share of prompts whose output equals the baseline's, at temperature 0 |
| client_cpu_cores | cores | that the load generator used |
| num_blocks, num_void_blocks, num_requests | | measured; not counting; sent |

The step of a figure of the whole run is the number of measurements that it rests on.
"""


@dataclass(frozen=True)
class Place:
    """Where a sweep is in MLflow: what links lead to. They hold on whatever address the server has."""

    experiment_id: str
    parent_run_id: str

    def run(self, path: str = "") -> str:
        return f"#/experiments/{self.experiment_id}/runs/{self.parent_run_id}{path}{AS_RUNS}"

    def charts(self, filter_text: str) -> str:
        """The fastest first: sorted by time, MLflow folds all runs into their sweep's and draws only that."""
        found, order = quote(filter_text, safe=""), quote("metrics.`output_tokens_per_s`", safe="")
        shown = f"compareRunsMode=CHART&orderByKey={order}&orderByAsc=false&searchFilter={found}"
        return f"#/experiments/{self.experiment_id}/runs{AS_RUNS}&{shown}"


def sweep_note(evidence: Evidence, selection: Selection, place: Place) -> str:
    """The verdicts as a Markdown table, cut where MLflow's limit asks for it."""
    head = "Simulated: no engine was measured.\n\n" if selection.simulated else ""
    head += f"**{headline(selection)}**\n\n" + "".join(f"- {each}\n" for each in decision_sentences(selection))
    every = place.charts(f"tags.sweep = '{evidence.sweep_id}' and tags.workload != ''")
    head += f"\n[Charts of all arms]({every}) · [report.html]({place.run('/artifacts/report.html')})\n\n"
    head = head if len(head) < MAX_NOTE_LEN / 2 else f"**{headline(selection)}**\n\n"
    text = f"{head}| workload | verdict | best | speedup | why |\n|---|---|---|---|---|\n"
    rest = "\nMore workloads: see report.md among the artifacts.\n"
    for result in selection.workloads:
        row = _row(result, evidence, place)
        if len(text) + len(row) + len(rest) > MAX_NOTE_LEN:
            return text + rest
        text += row
    return text


def cell_note(evidence: Evidence, cell: Cell, place: Place) -> str:
    """What this run is, its result once there is one, the way to its sweep, its rivals and its logs."""
    rivals = place.charts(_workload_filter(evidence, cell.workload.name))
    links = [f"Sweep: [{evidence.sweep_id}]({place.run()})", f"[all arms on {cell.workload.name}]({rivals})"]
    logs = [visit.server_log for visit in cell.visits if visit.server_log][-MAX_LOGS:]
    links += [f"[{name}]({place.run(f'/artifacts/logs/{quote(name)}')})" for name in logs]
    return f"**{_result(evidence, cell)}**\n\n{' · '.join(links)}\n\n{METRICS}"


def _result(evidence: Evidence, cell: Cell) -> str:
    title = f"{arm_name(cell.arm)} on {cell.workload.name}"
    if evidence.selection is None or cell.result is None:
        return f"{title}."
    chosen = any(
        result.point_name == cell.workload.point_name and result.best is not None and result.best.arm == cell.arm.name
        for result in evidence.selection.workloads
    )
    found, times = cell.result, f"{interval(cell.result.speedup)} times the baseline"
    rate = f"{interval(found.output_tokens_per_s)} output tokens/s"
    text = f"{title}: {rate}" + (f", {times}" if found.speedup else "")
    return f"{text}. Chosen for this workload." if chosen else f"{text}."


def _workload_filter(evidence: Evidence, workload: str) -> str:
    return f"tags.sweep = '{evidence.sweep_id}' and tags.workload = '{workload}'"


def _row(result: WorkloadResult, evidence: Evidence, place: Place) -> str:
    best = result.best
    name, gain = "", ""
    if best is not None:
        name = f"{best.method} k={best.num_speculative_tokens}" if best.num_speculative_tokens else "baseline"
        arm = next((arm for arm in result.arms if arm.arm == best.arm), None)
        if arm is not None and arm.speedup is not None:
            gain = f"{arm.speedup.mean:.2f} ({arm.speedup.ci_low:.2f} to {arm.speedup.ci_high:.2f})"
    reason = result.reason.replace("|", "\\|").replace("\n", " ")
    link = f"[{result.point_name}]({place.charts(_workload_filter(evidence, result.point_name))})"
    return f"| {link} | {result.verdict} | {name} | {gain} | {reason} |\n"
