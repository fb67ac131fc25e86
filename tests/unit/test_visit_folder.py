"""What killed visits leave on a node is removed, what running ones use is not."""

import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from uuid import uuid4

import pytest

from orchestrator.errors import NodeUnavailable
from tasks import visit_folder as module
from tasks.visit_folder import require_room, sockets_folder, visit_folder

HOLDER = """
import sys, tempfile, time
from tasks.visit_folder import visit_folder
tempfile.tempdir = sys.argv[1]
with visit_folder() as folder:
    (folder / "log").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folder_is_there_for_the_visit_and_then_gone(temporary: Path) -> None:
    with visit_folder() as folder:
        assert folder.parent == temporary
        (folder / "log").write_text("x")
    assert list(temporary.iterdir()) == []


def test_folder_of_a_running_visit_stays_and_that_of_a_killed_one_goes(temporary: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(temporary)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    theirs = Path(holder.stdout.readline().strip())
    with visit_folder():
        assert (theirs / "log").exists()
    holder.kill()
    holder.wait()
    with visit_folder() as folder:
        assert list(temporary.iterdir()) == [folder]


@pytest.mark.parametrize("length", [20, 45, 46, 90], ids=lambda length: f"TMPDIR of {length} bytes")
def test_sockets_are_bound_whatever_tmpdir_is_called_and_are_gone_with_the_visit(
    monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        tmpdir, short = Path(f"{parent}/{'t' * length}"[:length]), Path(parent) / "s"
        tmpdir.mkdir(exist_ok=True)
        short.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmpdir))
        monkeypatch.setattr(module, "SHORT_TMP", short)
        with visit_folder() as folder, sockets_folder(folder) as sockets_dir, socket.socket(socket.AF_UNIX) as bound:
            assert sockets_dir.parent == (tmpdir if length < 46 else short)
            bound.bind(f"{sockets_dir}/{uuid4()}")  # as vLLM names them
        assert list(tmpdir.iterdir()) == list(short.iterdir()) == []


def test_full_disk_is_the_nodes_fault_and_said_in_numbers(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_room(temporary)
    monkeypatch.setattr(module, "MIN_FREE_MB", 10**9)
    with pytest.raises(NodeUnavailable, match=r"only \d+ MB are free in .*, a visit needs 1000000000; make room"):
        require_room(temporary)


def test_missing_folder_for_temporary_files_is_named(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "nowhere"))
    with pytest.raises(NodeUnavailable, match="nowhere"), visit_folder():
        pass
