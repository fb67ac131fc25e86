"""A demo sweep as it was measured on two cores of a shared virtual machine, to try `select` and `report` on."""

import shlex
import shutil
from pathlib import Path

EXAMPLE = Path(__file__).parent
"""A sweep's folder, to be read only."""
FILES = ("config.yaml", "plan.json", "ledger.jsonl")


def copy_example(results_dir: Path) -> Path:
    """The example as the sweep `example` of that results folder; what was made of an earlier copy stays."""
    folder = results_dir / "example" / "measured"
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(EXAMPLE / name, folder / name)
    return folder


def next_steps(folder: Path, results_dir: Path) -> str:
    """Where the copy is, and what to type on."""
    where = "" if results_dir == Path("results") else f" --results-dir {shlex.quote(str(results_dir))}"
    commands = ("select example", "report example", "export example --arm dflash-k15", "break-even example")
    what = (
        "decide from what was measured",
        "write its report again",
        "files to deploy",
        "what a step must yield to pay",
    )
    lines = [f"  orchestrator {command}{where}  # {purpose}" for command, purpose in zip(commands, what, strict=True)]
    return "\n".join([f"Copied to {folder}. Go on with:", *lines])
