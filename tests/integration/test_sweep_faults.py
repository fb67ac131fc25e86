"""Whole sweeps that something happens to: killed processes, interruptions, servers and engines that misbehave."""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.integration.sweeping import Sandbox, measured_twice, sandbox, slow, small
from tests.standin import SERVER

pytestmark = pytest.mark.timeout(240)

SLOW = small("workload.num_blocks=3", extra_args=slow(30))
"""12 blocks of 0.5 to 1.1 s."""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path) as found:
        yield found


def finishes(box: Sandbox, *arguments: str) -> str:
    ended = box.run(*(arguments or SLOW))
    assert ended.exit_code == 0, ended
    ledger = box.ledger()
    assert not measured_twice(ledger)
    assert len(ledger.valid_blocks()) == 12
    assert len(box.sweeps) == 1
    assert box.leftovers() == []
    return ended.stdout


def test_killed_driver_is_continued_and_nothing_is_measured_twice(box: Sandbox) -> None:
    running = box.start(*SLOW)
    running.until(lambda: box.num_ledger_lines() >= 4)
    running.process.kill()
    running.wait()
    kept = box.num_ledger_lines()
    assert box.leftovers() == []
    before = box.ledger().blocks()
    assert len(before) == kept >= 4
    assert f"Continuing results/small/{box.sweep.path.name}" in finishes(box)
    assert box.ledger().blocks()[:kept] == before
    assert len(box.ledger().blocks()) == 12


def test_search_of_a_mixed_space_is_continued_with_the_proposals_it_was_at(box: Sandbox) -> None:
    arguments = small(
        *("search=optuna", "search.num_proposals=3", "space.max_num_seqs=[16,32]", "space.enforce_eager=[false,true]"),
        extra_args=slow(30),
    )
    running = box.start(*arguments)
    running.until(lambda: box.num_ledger_lines('"phase":"arm"') >= 1)
    running.process.kill()
    running.wait()
    assert box.leftovers() == []
    before = box.ledger().blocks()
    ended = box.run(*arguments)
    assert ended.exit_code == 0, ended
    assert ended.stdout.startswith("Continuing ")
    assert ended.stderr == ""
    ledger, plan = box.ledger(), box.sweep.plan()
    assert len(plan.arms) == 9
    assert ledger.blocks()[: len(before)] == before
    assert not measured_twice(ledger)
    blocks = Counter((block.arm_id, block.phase) for block in ledger.blocks())
    assert sorted(phase for _, phase in blocks) == ["arm", "arm", "arm", "closing", "opening"]
    assert set(blocks.values()) == {2}
    assert next(iter(blocks))[0] == plan.baseline.id
    [result] = box.selection().workloads
    assert "not measured here, not proposed by search=optuna: " in result.reason


def test_killed_worker_loses_its_visit_and_the_rest_of_it_is_measured_again(box: Sandbox) -> None:
    running = box.start(*SLOW)
    running.until(lambda: box.num_ledger_lines() >= 4)
    box.process_like("ResourceTrainable").kill()
    ended = running.wait()
    assert ended.exit_code == 0, ended
    assert ended.stderr == ""
    assert "failed: the node's worker process died" in ended.stdout
    ledger = box.ledger()
    assert not measured_twice(ledger)
    assert len(ledger.blocks()) == 12
    lost = [visit for visit in ledger.visits() if visit.error]
    assert len(lost) == 1
    again = next(visit for visit in ledger.visits() if visit.attempt == 2)
    assert (again.arm_id, again.num_blocks) == (lost[0].arm_id, 3 - lost[0].num_blocks)
    assert box.leftovers() == []


def test_local_raylet_that_dies_ends_the_sweep_soon_with_what_was_measured(box: Sandbox) -> None:
    running = box.start(*small("workload.num_blocks=3", extra_args=slow(60)))
    running.until(lambda: box.num_ledger_lines() >= 2)
    box.process_like("/ray/core/src/ray/raylet/raylet --raylet_socket_name").kill()
    killed = time.monotonic()
    ended = running.wait()
    assert time.monotonic() - killed < 45
    assert ended.exit_code == 3, ended
    assert "the Ray that this sweep started has died" in ended.stderr
    assert "the same command continues" in ended.stderr
    assert box.num_ledger_lines() >= 2
    assert box.leftovers() == []


def test_worker_that_hangs_is_ended_and_said_and_the_same_command_continues(box: Sandbox) -> None:
    arguments = small(
        *("workload.num_blocks=6", "cluster.silence_grace_s=8", "server.ready_timeout_s=15", "server.stop_grace_s=1"),
        extra_args=slow(5),
    )
    running = box.start(*arguments)
    running.until(lambda: box.num_ledger_lines() >= 2)
    box.process_like("ResourceTrainable").suspend()
    stopped = time.monotonic()
    ended = running.wait()
    assert time.monotonic() - stopped < 120
    assert ended.exit_code == 3, ended
    assert re.search(r"nothing was heard of node \S+ for \d+ s: it hangs", ended.stderr)
    assert box.leftovers() == []
    ended = box.run(*arguments)
    assert ended.exit_code == 0, ended
    assert not measured_twice(box.ledger())
    assert len(box.ledger().valid_blocks()) == 6 * 4


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Path]:
    """A disk of that size at `path`; the file that fills it."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", path], check=True)
    try:
        yield path / "ballast"
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def fill(ballast: Path) -> None:
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_full_disk_of_node_or_results_is_said_and_the_same_command_continues_once_there_is_room(box: Sandbox) -> None:
    (box.path / "results").mkdir()
    with small_disk(box.temporary, 120) as on_node, small_disk(box.path / "results", 2) as on_results:
        on_node.write_bytes(bytes(70_000_000))
        ended = box.run(*SLOW)
        assert ended.exit_code == 3, ended
        assert re.search(r"NodeUnavailable: only \d+ MB are free in \S+, a visit needs 64; make room", ended.stderr)
        assert box.num_ledger_lines() == 0

        on_node.unlink()
        running = box.start(*SLOW)
        running.until(lambda: box.num_ledger_lines() >= 2)
        fill(on_results)
        ended = running.wait()
        assert ended.exit_code == 3, ended
        assert "No space left on device" in ended.stderr
        assert "make room, the same command continues" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert box.leftovers() == []
        assert box.num_ledger_lines() >= 2

        on_results.unlink()
        finishes(box)


def test_interrupted_sweep_ends_soon_and_continues(box: Sandbox) -> None:
    """Ctrl-C reaches the whole process group; SIGTERM, as from a service manager, the driver alone."""
    for number, exit_code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        wanted = box.num_ledger_lines() + 2
        running = box.start(*SLOW)
        running.until(lambda wanted=wanted: box.num_ledger_lines() >= wanted)  # type: ignore[misc]
        if number == signal.SIGINT:
            os.killpg(running.process.pid, number)
        else:
            running.process.terminate()
        asked = time.monotonic()
        ended = running.wait()
        assert time.monotonic() - asked < 20
        assert ended.exit_code == exit_code, ended
        *earlier, last = ended.stderr.strip().splitlines()
        assert last.startswith(
            "interrupted: what was measured is kept; the same command continues: orchestrator sweep "
        )
        assert earlier == (["stopping: ending the servers (a second Ctrl-C kills)"] if number == signal.SIGINT else [])
        assert box.leftovers() == []
    finishes(box)


def test_second_sweep_of_the_same_name_is_refused_while_the_first_runs(box: Sandbox) -> None:
    arguments = small("workload.num_blocks=3", extra_args=slow(300))  # longer than the second driver's imports
    running = box.start(*arguments)
    running.until((box.path / "results/latest").exists)
    second = box.run(*arguments)
    assert second.exit_code == 2
    assert "another process is running the sweep 'small'" in second.stderr
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.wait().exit_code == 130
    assert box.leftovers() == []


FAULTS = {
    2: "--standin-short",
    3: "--standin-die-at-start='drafter is broken'",
    4: "--standin-prefix-hits=16",
    5: "--standin-tokens-per-draft=4",
    6: "--standin-die-after=3",
    7: "--standin-fail-every=4",
}
"""num_speculative_tokens -> what the stand-in does then."""


def faulty_server(folder: Path) -> str:
    path = folder / "faulty-vllm"
    cases = "".join(f'  *\'"num_speculative_tokens":{k}}}\'*) set -- "$@" {flag} ;;\n' for k, flag in FAULTS.items())
    path.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}esac\nexec {sys.executable} {SERVER} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_faulty_arms_are_named_and_the_others_measured_while_mlflow_is_down(box: Sandbox) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}"
    arguments = small(
        *("speculation.num_speculative_tokens=[1,2,3,4,5,6,7]", "search=grid", "workload.num_blocks=3"),
        "tracking=server",
        f"tracking.uri={uri}",
        command=[faulty_server(box.path)],
    )
    ended = box.run(*arguments)
    assert ended.exit_code == 3, ended
    *warnings, error = ended.stderr.splitlines()
    assert len(warnings) == 1, ended.stderr
    assert "MLflow is not recording for now" in warnings[0]
    assert ended.stdout.count("to catch up: orchestrator record") == 1

    reasons = {
        "dflash-k2": "requests ended short: 8 of 16 output tokens",
        "dflash-k3": "ValueError: drafter is broken",
        "dflash-k4": "32 prefix cache hits although prefix caching is off",
        "dflash-k5": "should draft 5 tokens a step, but the engine drafted 4.00",
        "dflash-k6": "EngineDeadError: stand-in death asked for",
        "dflash-k7": "requests failed: HTTP 500",
    }
    result = box.selection().workloads[0]
    for name, reason in reasons.items():
        assert f"{name}: " in error
        assert reason in error
    assert "dflash-k1" not in error
    assert "none" not in error.split("dflash-k2")[0]
    for name in ("dflash-k2", "dflash-k3", "dflash-k4", "dflash-k5"):
        assert f"{name} has no figure (" in result.reason
        assert reasons[name] in result.reason
    arms = {arm.num_speculative_tokens: arm for arm in result.arms}
    assert arms[1].num_blocks == arms[0].num_blocks == 3
    assert all(arms[k].output_tokens_per_s is None for k in (2, 3, 4, 5))

    ledger = box.ledger()
    attempts = {(visit.arm_id, visit.attempt) for visit in ledger.visits()}
    assert len(attempts) == 2 + 2 * 6  # baseline and k=1 once (the baseline's two phases count as one), others twice
    void = [block for block in ledger.blocks() if block.void_reason]
    assert {block.attempt for block in void} == {1, 2}
    assert not measured_twice(ledger)
    assert box.leftovers() == []

    caught_up = box.run("record", "--tracking-uri", "sqlite:///later.db")
    assert caught_up.exit_code == 0, caught_up
    assert (box.path / "later.db").exists()


def test_all_requests_failing_is_one_clear_error(box: Sandbox) -> None:
    """Every server answers the first completion, which shows that it is ready, and no other."""
    ended = box.run(*small("search.max_attempts=1", extra_args=["'--standin-fail-after=1'"]))
    assert ended.exit_code == 3, ended
    assert ended.stderr.startswith("error: not everything could be measured. none: LoadFailed: ")
    assert "all 1 warm-up requests of code@c1 failed: HTTP 500" in ended.stderr
    assert [visit.phase for visit in box.ledger().visits()] == ["opening"]
    assert box.selection().workloads[0].verdict == "undecided"
    assert box.leftovers() == []
