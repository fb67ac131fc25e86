"""A demo sweep as it was measured on two cores of a shared virtual machine, to try `select` and `report` on."""

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
