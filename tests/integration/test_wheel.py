"""The wheel outside the checkout, without an engine and without what only measuring needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HIDDEN = ("vllm", "torch", "ray", "mlflow", "boto3", "datasets", "aiohttp")
HIDE = f"""
import importlib.machinery as machinery
import sys

class Hiding(machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in {HIDDEN!r} else super().find_spec(name, path, target)

sys.meta_path = [Hiding if finder is machinery.PathFinder else finder for finder in sys.meta_path]
"""
"""As if they were not installed."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel, and a start-up file that hides the engine."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(wheel, check=True, capture_output=True, timeout=120)
    built = next(folder.glob("*.whl"))
    site = folder / "site"
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(site), str(built)], check=True)
    (site / "sitecustomize.py").write_text(HIDE)
    return site


def _run(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", "from orchestrator.cli import main; main()", *arguments]
    env = {**os.environ, "PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_the_wheel_plans_the_published_benchmark(installed: Path, tmp_path: Path) -> None:
    ended = _run(installed, tmp_path, "plan", "sweep=xeon_dflash")
    assert ended.returncode == 0, ended.stderr
    assert "dflash-k15" in ended.stdout


def test_the_wheel_selects_and_reports_on_the_shipped_example(installed: Path, tmp_path: Path) -> None:
    for command, shows in (("example", "example/measured"), ("select", "dflash k=15 gives"), ("report", "report.html")):
        ended = _run(installed, tmp_path, command, *(["example"] if command != "example" else []))
        assert ended.returncode == 0, ended.stderr
        assert shows in ended.stdout
