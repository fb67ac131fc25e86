"""Interpreters started early, with real processes and a `vllm` of a few lines: a command, its core, and two workers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks import early_interpreters

TIMEOUT_S = 60.0

# `VALUE` stands for what decides what the engine sets: CPU lists, for example.
ENGINE = """
import json, multiprocessing, os, subprocess, sys
import psutil

spawn = multiprocessing.get_context("spawn")

def facts(parent_pid, early):
    given = dict(part.split("=", 1) for part in open("/proc/self/environ").read().split("\\0") if part)
    return {"given": given, "environment": dict(os.environ), "early": os.getpid() in early, "argv": sys.argv,
            "is_child": os.getppid() == parent_pid}

def started(target, number):
    reader, writer = spawn.Pipe(duplex=False)
    early = {process.pid for process in psutil.Process().children(recursive=True)}
    processes = [spawn.Process(target=target, args=(writer, os.getpid(), early)) for _ in range(number)]
    for process in processes:
        process.start()
    reports = [reader.recv() for _ in processes]
    for process in processes:
        process.join()
    return reports, [process.exitcode for process in processes]

def worker(writer, parent_pid, early):
    writer.send(facts(parent_pid, early))
    sys.exit(7)

def core(writer, parent_pid, early):
    mine = facts(parent_pid, early)
    os.environ["OMP_NUM_THREADS"] = os.environ["VALUE"]
    workers, codes = started(worker, 2)
    writer.send([mine, *workers, codes])
    sys.exit(5)

def main():
    os.environ["SET_BY_ENGINE"] = os.environ["VALUE"]
    if os.environ.get("KILLED"):
        os.kill(os.getpid(), 9)
    if os.environ.get("CHILD_KILLED"):
        early, = psutil.Process().children()
        early.kill()
        while early.status() != psutil.STATUS_ZOMBIE:
            pass
    (family,), codes = started(core, 1)
    zombies = [child.pid for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]
    other = subprocess.run(["echo", "hello"], capture_output=True, text=True).stdout
    print(json.dumps({"argv": sys.argv, "family": family, "codes": codes, "other": other, "zombies": zombies}))
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    package = tmp_path / "path/vllm/entrypoints/cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(ENGINE)
    for folder in (package, package.parent, package.parents[1]):
        (folder / "__init__.py").touch()
    return tmp_path


def _environment(engine: Path, **more: str) -> dict[str, str]:
    mine = {"PYTHONPATH": str(engine / "path"), "XDG_CACHE_HOME": str(engine / "cache"), "VLLM_API_KEY": "secret-key"}
    return {**os.environ, **mine, "VALUE": "1", **more}


def _run(engine: Path, **more: str) -> dict[str, Any]:
    command = [sys.executable, "-P", early_interpreters.__file__, "serve", "model", "--port", "1"]
    done = subprocess.run(
        command, env=_environment(engine, **more), capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert not done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _early(report: dict[str, Any]) -> list[bool]:
    return [process["early"] for process in report["family"][:3]]


def test_the_first_start_learns_and_the_second_uses_interpreters_started_early(engine: Path) -> None:
    assert _early(_run(engine)) == [False, False, False]
    assert _early(_run(engine)) == [True, True, True]


def test_an_early_child_is_what_a_late_one_is(engine: Path) -> None:
    late, early = _run(engine), _run(engine)
    for report in (late, early):
        core, *workers, worker_codes = report["family"]
        assert report["argv"] == ["vllm", "serve", "model", "--port", "1"]
        assert (report["codes"], worker_codes) == ([5], [7, 7])
        assert report["other"] == "hello\n"
        assert core["given"]["SET_BY_ENGINE"] == "1"
        assert [worker["given"]["OMP_NUM_THREADS"] for worker in workers] == ["1", "1"]
    for one, other in zip(late["family"][:3], early["family"][:3], strict=True):
        assert {**one, "early": True} == other
        assert other["is_child"]


def test_an_environment_that_was_not_foreseen_gets_a_new_interpreter_and_is_learnt(engine: Path) -> None:
    _run(engine)
    changed = _run(engine, VALUE="2")
    assert _early(changed) == [False, False, False]
    core, *workers, _ = changed["family"]
    assert core["given"]["SET_BY_ENGINE"] == "2"
    assert [worker["given"]["OMP_NUM_THREADS"] for worker in workers] == ["2", "2"]
    assert _early(_run(engine, VALUE="2")) == [True, True, True]


def test_interpreters_that_are_not_used_leave_no_zombie(engine: Path) -> None:
    _run(engine)
    assert _run(engine, VALUE="2")["zombies"] == []


def test_an_early_child_that_died_is_replaced(engine: Path) -> None:
    _run(engine)
    report = _run(engine, CHILD_KILLED="1")
    assert _early(report)[0] is False
    assert (report["codes"], report["zombies"]) == ([5], [])


def test_a_cache_folder_that_cannot_be_used_costs_the_head_start_only(engine: Path) -> None:
    (engine / "cache").write_text("a file where the folder should be")
    assert _early(_run(engine)) == [False, False, False]
    assert _early(_run(engine)) == [False, False, False]


@pytest.mark.parametrize("content", ["", "{", "[1"])
def test_what_was_learnt_is_learnt_anew_when_its_file_is_damaged(engine: Path, content: str) -> None:
    _run(engine)
    for path in (engine / "cache/specsweep").iterdir():
        path.write_text(content)
    assert _early(_run(engine)) == [False, False, False]
    assert _early(_run(engine)) == [True, True, True]


def test_only_what_the_engine_changed_is_kept_and_no_secret(engine: Path) -> None:
    _run(engine)
    kept = {path.name: json.loads(path.read_text()) for path in (engine / "cache/specsweep").iterdir()}
    assert kept["engine_children_1.json"] == [{"SET_BY_ENGINE": "1"}]
    assert kept["engine_children_2.json"] == [{"OMP_NUM_THREADS": "1"}] * 2


def test_interpreters_that_wait_end_with_the_one_that_started_them(engine: Path) -> None:
    _run(engine)
    marker = str(engine)
    command = [sys.executable, "-P", early_interpreters.__file__, "serve"]
    subprocess.run(command, env=_environment(engine, KILLED="1"), timeout=TIMEOUT_S, check=False)
    waiting = [process for process in psutil.process_iter() if _is_of(process, marker)]
    _, alive = psutil.wait_procs(waiting, timeout=TIMEOUT_S)
    assert not alive


def _is_of(process: psutil.Process, marker: str) -> bool:
    try:
        return process.environ().get("XDG_CACHE_HOME", "").startswith(marker)
    except psutil.Error:
        return False
