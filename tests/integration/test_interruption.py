"""Spot nodes: the watcher beside Ray, and the visit that it tells, each a real process."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tasks import notice
from tasks.load import run_load
from tests.integration.sweeping import Sandbox, measured_twice, sandbox, slow, small
from tests.integration.test_visit import visit
from tests.standin import free_port
from tests.standin.imds import Imds, imds

pytestmark = pytest.mark.timeout(240)
RAY = str(Path(sys.executable).with_name("ray"))


@pytest.fixture(autouse=True)
def _own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(notice.FILE_VARIABLE, str(tmp_path / "node" / "interruption.json"))
    monkeypatch.setattr("tasks.visit.take_normal_priority", lambda: None)


@pytest.fixture
def service() -> Iterator[Imds]:
    with imds() as found:
        yield found


@contextmanager
def watcher(service: Imds, *command: str) -> Iterator[subprocess.Popen[str]]:
    arguments = ["--imds", service.url, "--poll-s", "0.1", "--", *command]
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks.interruption", *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: len(service.asked) > 2)
        yield process
    finally:
        process.kill()
        process.communicate()


def until(happens: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_notice_reaches_the_visits_before_the_command_runs(service: Imds, tmp_path: Path) -> None:
    with watcher(service, "cp", str(notice.notice_file()), str(tmp_path / "stopped")) as process:
        with notice.under_way():
            service.announce(in_s=100)
            until(lambda: notice.announced() is not None)
            time.sleep(0.3)
            assert process.poll() is None
        stopped_after = time.monotonic()
        _, log = process.communicate(timeout=30)

    assert process.returncode == 0
    assert time.monotonic() - stopped_after > 2  # for the last record to arrive
    assert json.loads((tmp_path / "stopped").read_text())["action"] == "terminate"
    assert "the cloud announced to terminate this node at " in log


def test_command_runs_a_minute_before_the_end_whatever_still_runs(service: Imds) -> None:
    with watcher(service, "false") as process, notice.under_way():
        service.announce(in_s=60.5)
        _, log = process.communicate(timeout=30)

    assert process.returncode == 1
    assert "a visit still runs " in log


@pytest.mark.parametrize(("left_s", "stays"), [(60, True), (-1, False)])
def test_watcher_that_starts_again_keeps_a_notice_whose_time_is_ahead(
    service: Imds, left_s: float, stays: bool
) -> None:
    end = datetime.now(UTC) + timedelta(seconds=left_s)
    notice.notice_file().parent.mkdir()
    notice.notice_file().write_text(notice.Notice(action="terminate", time=end).model_dump_json())

    with watcher(service, "true"):
        until(lambda: service.asked != [])

    assert notice.notice_file().exists() == stays


def test_watcher_lives_through_a_worn_out_token_a_rebalance_and_a_broken_answer(service: Imds) -> None:
    notice.notice_file().parent.mkdir()
    notice.notice_file().write_text("from an earlier life of the node")
    with watcher(service, "true") as process:
        service.token = "token-2"
        service.rebalance = '{"noticeTime": "2026-08-01T08:22:00Z"}'
        until(lambda: ("/latest/meta-data/events/recommendations/rebalance", 200) in service.asked)
        service.instance_action = "<html>"
        time.sleep(0.5)
        assert process.poll() is None
        assert notice.announced() is None
        service.announce(in_s=60, action="hibernate")
        _, log = process.communicate(timeout=30)

    assert process.returncode == 0
    assert log.count("AWS recommends to rebalance") == 1
    assert log.count("does not answer as it should") == 1
    assert ("/latest/meta-data/spot/instance-action", 401) in service.asked


def announce(in_s: float) -> None:
    found = Imds()
    found.announce(in_s)
    notice.notice_file().parent.mkdir(exist_ok=True)
    notice.notice_file().write_text(str(found.instance_action))


def test_visit_on_an_announced_node_starts_nothing() -> None:
    announce(in_s=100)

    blocks, finished = visit()

    assert not blocks
    assert finished.interrupted
    assert finished.server_start_s is None
    assert finished.error is not None
    assert finished.error.startswith("NodeInterrupted: the cloud announced to terminate this node at 20")
    assert finished.error.endswith(": no more blocks are taken here")


def test_block_that_the_node_has_no_time_for_is_cut_off_and_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def announced_while_it_runs(*arguments: object) -> object:
        announce(in_s=20)
        return run_load(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("tasks.visit.run_load", announced_while_it_runs)
    begun = time.monotonic()
    blocks, finished = visit("--standin-step-ms", "500")  # of 128 tokens

    assert time.monotonic() - begun < 20
    assert not blocks
    assert finished.interrupted
    assert finished.error is not None
    assert finished.error.endswith(": what was under way is cut off")


def test_notice_that_is_none_ends_the_visit_with_a_reason() -> None:
    notice.notice_file().parent.mkdir()
    notice.notice_file().write_text("{}")

    _, finished = visit()

    assert not finished.interrupted
    assert "interruption.json: not a readable notice of tasks.interruption; remove it" in str(finished.error)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path) as found:
        yield found


def own_file(box: Sandbox) -> dict[str, str]:
    return {notice.FILE_VARIABLE: str(box.path / "a" / "interruption.json")}


def start_spot_node(box: Sandbox, address: str) -> subprocess.Popen[bytes]:
    """Node a, as its systemd unit does: in the foreground, and draining on SIGTERM."""
    return subprocess.Popen(
        [
            *(RAY, "start", "--block", f"--address={address}", "--node-ip-address=127.0.0.1", "--node-name=a"),
            *("--num-cpus=1", "--resources", '{"xeon_node": 1}', "--object-store-memory=100000000"),
            "--disable-usage-stats",
        ],
        env=box.env | {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", **own_file(box)},
        cwd=box.path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_visit_goes_on_elsewhere_from_its_finished_blocks(
    box: Sandbox, service: Imds, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    box.start_ray(
        *("--head", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=1", "--node-name=b"),
        *("--resources", '{"xeon_node": 1}', "--include-dashboard=false", f"--temp-dir={box.temporary}/r"),
        "--object-store-memory=100000000",
        env={"RAY_worker_niceness": "0"},
    )
    node = start_spot_node(box, f"127.0.0.1:{port}")
    for name, value in own_file(box).items():
        monkeypatch.setenv(name, value)
    with watcher(service, "kill", str(node.pid)) as watching:
        running = box.start(
            *small(
                *("cluster=address", f"cluster.address=127.0.0.1:{port}", "cluster.auth_mode=disabled"),
                *("workload.num_blocks=3", "speculation.num_speculative_tokens=[1,2,3]", "search.max_attempts=1"),
                extra_args=slow(20),
            )
        )
        running.until(lambda: num_blocks(box, "a", "arm") >= 1)
        service.announce(in_s=100)
        assert watching.wait(60) == 0
        node.wait(60)
        ended = running.wait()

    assert ended.exit_code == 0, ended
    ledger = box.ledger()
    assert not measured_twice(ledger)
    [cut] = [record for record in ledger.visits() if record.interrupted]
    assert (cut.node, cut.phase) == ("a", "arm")
    assert 1 <= cut.num_blocks < 3
    again = [record for record in ledger.visits() if record.arm_id == cut.arm_id and record != cut]
    assert [(record.node, record.attempt, record.num_blocks) for record in again] == [("b", 1, 3 - cut.num_blocks)]
    assert [record.error for record in ledger.visits() if record.error] == [cut.error]
    assert len([block for block in ledger.valid_blocks() if block.phase == "arm"]) == 3 * 3
    assert "NodeInterrupted: the cloud announced to terminate this node at " in ended.stdout


def num_blocks(box: Sandbox, node: str, phase: str) -> int:
    path = box.path / "results/latest/ledger.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    records = [json.loads(line) for line in lines if '"kind":"block"' in line]
    return sum((record["node"], record["phase"]) == (node, phase) for record in records)
