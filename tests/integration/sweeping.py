"""Whole sweeps as a user starts them: a real `orchestrator` process in a folder of its own, the stand-in for vLLM."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchestrator.ledger import Ledger, LedgerFile, LedgerView, key_of
from orchestrator.records import BlockRecord
from orchestrator.selection import Selection
from orchestrator.sweep_dir import SweepDir
from tests.standin import COMMAND

ORCHESTRATOR = str(Path(sys.executable).with_name("orchestrator"))
MARKER = "SPECSWEEP_TEST_SANDBOX"
SWEEP_TIMEOUT_S = 150.0


@dataclass(frozen=True)
class Ended:
    exit_code: int
    stdout: str
    stderr: str
    wall_s: float


class Running:
    """An `orchestrator` process under way."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process, self._out, self._err = process, out, err
        self._begun = time.monotonic()

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    def wait(self, timeout_s: float = SWEEP_TIMEOUT_S) -> Ended:
        exit_code = self.process.wait(timeout_s)
        return Ended(exit_code, self.stdout, self._err.read_text(), time.monotonic() - self._begun)

    def until(self, happens: Callable[[], bool], timeout_s: float = SWEEP_TIMEOUT_S) -> None:
        """Wait for something while the process runs."""
        deadline = time.monotonic() + timeout_s
        while not happens():
            assert self.process.poll() is None, f"ended {self.process.returncode}: {self.stdout}{self._err.read_text()}"
            assert time.monotonic() < deadline, self.stdout
            time.sleep(0.02)


class Sandbox:
    """A working folder, a home and a folder for temporary files; every process started in it carries a marker."""

    def __init__(self, path: Path, temporary: Path, num_prompts: int = 40) -> None:
        self.path = path
        self.temporary = temporary
        self.home = path / "home"
        self.home.mkdir()
        self._marker = uuid.uuid4().hex
        self._num_started = 0
        for word in ("code", "chat"):
            self.write_prompts(f"{word}.jsonl", [f"{word} task number {i}" for i in range(num_prompts)])

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_", "HF_"))}
        return kept | {"HOME": str(self.home), "TMPDIR": str(self.temporary), MARKER: self._marker, "COLUMNS": "200"}

    def write_prompts(self, name: str, prompts: Sequence[str]) -> None:
        (self.path / name).write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))

    def start(self, *arguments: str, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()) -> Running:
        """`prefix` is put before the command."""
        self._num_started += 1
        out, err = (self.path / f"{self._num_started}.{kind}" for kind in ("out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [*prefix, ORCHESTRATOR, *arguments],
                cwd=self.path,
                env=self.env | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=_take_interrupts,
            )
        return Running(process, out, err)

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> Ended:
        return self.start(*arguments, env=env).wait()

    @property
    def sweep(self) -> SweepDir:
        """The latest."""
        return SweepDir((self.path / "results/latest").resolve())

    @property
    def sweeps(self) -> list[Path]:
        return sorted(path.parent for path in self.path.glob("results/*/*/plan.json"))

    def ledger(self) -> Ledger:
        return Ledger(self.sweep.ledger_path)

    def ledger_on_disk(self) -> LedgerFile:
        """As it is now, also while a sweep writes it."""
        return LedgerFile(self.path / "results/latest/ledger.jsonl")

    def selection(self) -> Selection:
        selection = self.sweep.selection()
        assert selection is not None
        return selection

    def num_ledger_lines(self, text: str = '"kind":"block"') -> int:
        """Without opening it as a Ledger, which would cut a line that is just being written."""
        ledger = self.path / "results/latest/ledger.jsonl"
        return ledger.read_text().count(text) if ledger.exists() else 0

    def processes(self) -> list[psutil.Process]:
        """Everything alive that was started in this sandbox, by its environment."""
        return [process for process in psutil.process_iter() if _carries(process, self._marker)]

    def leftovers(self, within_s: float = 60) -> list[str]:
        """What is still alive after `within_s`: guards take a moment to end a server, and Ray's agents on a busy
        machine half a minute to notice that their raylet is gone."""
        deadline = time.monotonic() + within_s
        while (alive := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [" ".join(process.cmdline())[:200] for process in alive if process.is_running()]

    def process_like(self, text: str) -> psutil.Process:
        found = [process for process in self.processes() if text in " ".join(process.cmdline())]
        assert len(found) == 1, f"{len(found)} processes like {text!r}"
        return found[0]

    def start_ray(self, *arguments: str, env: Mapping[str, str] | None = None, cpu: int | None = None) -> None:
        """`ray start`; what it leaves running ends with the sandbox. Workers inherit `env`, and run on `cpu` alone."""
        ray = [str(Path(sys.executable).with_name("ray")), "start", *arguments, "--disable-usage-stats"]
        pinned = ["taskset", "--cpu-list", str(cpu)] if cpu is not None else []
        env = self.env | {"RAY_AUTH_MODE": "disabled"} | dict(env or {})
        subprocess.run([*pinned, *ray], env=env, cwd=self.path, check=True, capture_output=True)

    def end(self) -> None:
        for process in self.processes():
            process.send_signal(signal.SIGKILL)
        shutil.rmtree(self.temporary, ignore_errors=True)


@contextmanager
def sandbox(path: Path) -> Iterator[Sandbox]:
    # Ray's sockets lie below the folder for temporary files, and a socket's path has at most 107 characters.
    found = Sandbox(path, Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp")))
    try:
        yield found
    finally:
        found.end()


def _take_interrupts() -> None:
    """A shell lets its background jobs ignore Ctrl-C, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def small(*more: str, command: Sequence[str] = COMMAND, extra_args: Sequence[str] = ()) -> list[str]:
    """Arguments of a sweep of seconds: one workload, two blocks of two prompts, measured once; `more` comes last.

    The machine is shared with the tests themselves, so other processes and slow nodes are put up with.
    """
    return [
        "sweep",
        "name=small",
        "search=grid",
        "search.confirm=false",
        "dataset@datasets=[demo_code]",
        "datasets.code.data_files=code.jsonl",
        "speculation.num_speculative_tokens=[1,7]",
        "workload.max_concurrency=[1]",
        "workload.num_blocks=2",
        "workload.prompts_per_block=2",
        "workload.output_len=16",
        "tracking=none",
        f"server.command=[{','.join(command)}]",
        f"server.extra_args=[{','.join(extra_args)}]",
        "server.stop_grace_s=3",
        "hardware.max_other_cpu_share=null",
        "hardware.node_tolerance=null",
        *more,
    ]


def slow(step_ms: float) -> list[str]:
    """Stand-in flags."""
    return ["--standin-step-ms", f"'{step_ms:g}'"]


def measured_twice(ledger: LedgerView) -> list[BlockRecord]:
    seen = set()
    return [block for block in ledger.valid_blocks() if key_of(block) in seen or seen.add(key_of(block))]  # type: ignore[func-returns-value]


def _carries(process: psutil.Process, marker: str) -> bool:
    try:
        return process.environ().get(MARKER) == marker and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
