"""How large the report of many arms is, and how long a browser takes to open it.

    python -m benchmarks.report_size [--arms 1000]

Writes the report of a made-up sweep (three datasets, two concurrencies) and opens it five times in headless Chromium
(see benchmarks/browser.py), each time from an empty page. Opening ends with the page's load event; the first screen is
drawn before that.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.browser import chromium_page
from orchestrator.report import write_report
from tests.unit.report_fixture import make_ledger, make_plan, make_selection

ROUNDS = 5
TIMES = """(() => {
  const page = performance.getEntriesByType("navigation")[0];
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return [paint ? paint.startTime / 1000 : null, page.loadEventEnd / 1000];
})()"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", type=int, default=1000)
    num_arms = parser.parse_args().arms
    console = Console(soft_wrap=True)
    with tempfile.TemporaryDirectory() as folder:
        plan = make_plan(grid=range(1, num_arms))
        begun = time.perf_counter()
        path = write_report(Path(folder), make_selection(plan), plan, make_ledger(plan, Path(folder) / "ledger.jsonl"))[
            0
        ]
        console.print(
            f"{num_arms:,} arms: written in {time.perf_counter() - begun:.1f} s, {path.stat().st_size / 1e6:.2f} MB"
        )
        for first_s, opened_s in asyncio.run(_opened(path)):
            console.print(f"first content after {first_s:.2f} s, opened after {opened_s:.2f} s")


async def _opened(path: Path) -> list[tuple[float, float]]:
    times = []
    async with chromium_page() as page:
        await page.look(1280, 1000)
        for _ in range(ROUNDS):
            await page.open(path.as_uri())
            await page.wait_for("performance.getEntriesByType('navigation')[0].loadEventEnd > 0")
            await page.wait_for("performance.getEntriesByName('first-contentful-paint').length > 0")
            first_s, opened_s = await page.evaluate(TIMES)
            times.append((first_s, opened_s))
    return times


if __name__ == "__main__":
    main()
