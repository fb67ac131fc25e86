"""Make the pictures in docs/images from the shipped example: the live view, the report and the pages of MLflow.

    python -m benchmarks.screenshots

Needs Chromium (see benchmarks/browser.py), MLflow and about two minutes. Look at what it made before you commit it.
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from rich.console import Console

from benchmarks.browser import Page, chromium_page
from benchmarks.live_picture import live_picture
from orchestrator.config import Tracking
from orchestrator.example import copy_example
from orchestrator.record import mirror
from orchestrator.record_notes import Place
from orchestrator.sweep import decide_and_report
from orchestrator.sweep_dir import SweepDir

IMAGES = Path(__file__).parents[1] / "docs" / "images"
MAX_BYTES = 200_000
SETTLE_S = 3.0
"""For charts that are still being drawn."""
WITHOUT_ASSISTANT = """
localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
localStorage.setItem("mlflow.assistant.panelOpen_v1", "false");
"""
"""MLflow opens a chat beside the first page that a browser sees of it."""
SEARCH_CHARTS = """(() => {
  const field = document.querySelector('input[placeholder="Search metric charts"]');
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(field, "block/|survival");
  field.dispatchEvent(new Event("input", {bubbles: true}));
})()"""
WITHOUT_TOOLBARS = "document.head.insertAdjacentHTML('beforeend', '<style>.modebar{display:none}</style>')"
"""Of the charts: with a mouse they show where it is, without one always."""
SHOW_MORE = "[...document.querySelectorAll('button')].find(each => each.innerText === 'Show more')?.click()"


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(_photograph(Path(scratch)))
    console = Console()
    for path in sorted(IMAGES.glob("*.png")):
        Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)
        size = path.stat().st_size
        console.print(f"{path.name}: {size / 1000:,.0f} kB{' (too large)' if size > MAX_BYTES else ''}")


async def _photograph(scratch: Path) -> None:
    sweep_dir = SweepDir(copy_example(scratch))
    decide_and_report(sweep_dir)
    tracking = Tracking(uri=f"sqlite:///{scratch}/mlflow.db")
    parent_run_id = mirror(sweep_dir.path, tracking).parent_run_id
    assert parent_run_id is not None
    async with chromium_page() as page:
        await page.look(1100, 420)
        await page.open(f"file://{live_picture(sweep_dir, scratch / 'live')}")
        await page.photograph(IMAGES / "live-view.png")
        await _report(page, f"file://{sweep_dir.path}/report.html")
        with _mlflow(scratch) as url:
            await _mlflow_pages(page, url, Place("1", parent_run_id))


async def _report(page: Page, url: str) -> None:
    await page.look(1280, 1000)
    await page.open(url)
    await page.photograph(IMAGES / "report-light.png")
    await page.evaluate("document.querySelector('#workloads').scrollIntoView()")
    await asyncio.sleep(1)
    await page.photograph(IMAGES / "report-workload.png")
    await page.look(390, 844, dark=True, scale=2)
    await page.open(url)
    await page.photograph(IMAGES / "report-dark-phone.png")
    await page.evaluate("document.querySelector('#concurrency').scrollIntoView()")
    await asyncio.sleep(1)
    await page.photograph(IMAGES / "report-dark-phone-map.png")


async def _mlflow_pages(page: Page, url: str, place: Place) -> None:
    await page.call("Page.enable")
    await page.call("Page.addScriptToEvaluateOnNewDocument", source=WITHOUT_ASSISTANT)
    await page.look(1280, 900)

    await page.open(f"{url}/{place.run()}")
    await page.wait_for("document.body.innerText.includes('Show more')")
    await page.evaluate(SHOW_MORE)
    await _finish(page, "mlflow-sweep.png")

    await page.look(1280, 1080)
    charts = place.charts("tags.workload = 'code@c1'")
    await page.open(f"{url}/{charts.replace('compareRunsMode=CHART&', '')}")
    await page.wait_for("document.body.innerText.includes('code@c1 baseline')")
    await _finish(page, "mlflow-table.png")

    await page.open(f"{url}/{charts}")
    await page.wait_for("document.body.innerText.includes('block/speedup')")
    await page.evaluate(SEARCH_CHARTS)
    await _finish(page, "mlflow-charts.png")

    runs = await page.evaluate(_run_ids("tags.workload LIKE 'code@%' and params.method = 'dflash'"))
    await page.open(f"{url}/#/compare-runs?runs={quote(runs)}&experiments=%5B%221%22%5D&workflowType=machine_learning")
    await page.wait_for("document.body.innerText.includes('Parallel Coordinates Plot')")
    await _finish(page, "mlflow-compare.png")


async def _finish(page: Page, name: str) -> None:
    await asyncio.sleep(SETTLE_S)
    await page.evaluate(WITHOUT_TOOLBARS)
    await page.photograph(IMAGES / name)


def _run_ids(filter_text: str) -> str:
    """Asks MLflow from within its page; the answer is a JSON list."""
    body = f"JSON.stringify({{experiment_ids: ['1'], filter: {filter_text!r}, max_results: 5}})"
    return f"""fetch("/ajax-api/2.0/mlflow/runs/search", {{method: "POST", body: {body},
        headers: {{"Content-Type": "application/json"}}}}).then(answer => answer.json())
        .then(found => JSON.stringify(found.runs.map(run => run.info.run_id)))"""


@contextmanager
def _mlflow(scratch: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{scratch}/mlflow.db"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (scratch / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
        )
    try:
        _wait_until_up(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait_until_up(url: str) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


if __name__ == "__main__":
    main()
