"""Mirroring a made-up sweep into a real MLflow: SQLite in a temporary folder, and one real server that goes away."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.config import SweepConfig, Tracking
from orchestrator.errors import ConfigError, TrackingFailed
from orchestrator.ledger import Ledger
from orchestrator.plan import Plan, PromptSet, plan_sweep
from orchestrator.record import CELL_TAG, SWEEP_TAG, MirrorResult, mirror
from orchestrator.recorder import Recorder
from orchestrator.records import Arm, Block, BlockRecord, Message, Phase, Prompt, SpecCounters
from orchestrator.selection import ArmResult, Choice, Interval, Provenance, Selection, WorkloadResult

UTC_TIME = "2026-01-02T03-04-05Z"
RATES = {"opening": 20, "closing": 80, 3: 80, 7: 120}
"""Tokens/s of every block: the geometric mean of the baseline's is 40, so the speedups are 2 and 3."""


class SweepOnDisk:
    """A sweep's folder: two arms and the baseline, one dataset at two concurrencies, two blocks each."""

    def __init__(self, root: Path, uri: str = "sqlite:///mlflow.db") -> None:
        self.path = root / "results" / "made-up" / UTC_TIME
        self.path.mkdir(parents=True)
        config = SweepConfig.model_validate(
            {
                "name": "made-up",
                "hardware": {"name": "box", "usd_per_hour": 3.6},
                "model": {
                    "name": "small",
                    "target": "org/target",
                    "drafters": {"dflash": {"model": "org/drafter"}},
                    "max_model_len": 512,
                },
                "datasets": {"code": {"data_files": "code.jsonl"}},
                "speculation": {"method": "dflash", "num_speculative_tokens": [3, 7]},
                "workload": {"max_concurrency": [1, 2], "num_blocks": 2, "prompts_per_block": 4, "output_len": 8},
                "tracking": {"uri": uri},
            }
        )
        prompts = tuple(Prompt(messages=(Message(role="user", content=f"question {i}"),)) for i in range(8))
        self.plan: Plan = plan_sweep(config, {"code": PromptSet(prompts=prompts, num_read=8, num_too_long=0)})
        (self.path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
        (self.path / "plan.json").write_text(self.plan.model_dump_json())
        for name in ("raw/v1.jsonl.gz", "logs/v1.log"):
            (self.path / name).parent.mkdir()
            (self.path / name).write_bytes(b"made up")
        self.ledger = Ledger(self.path / "ledger.jsonl")

    def measure(self, phase: Phase, arm: Arm | None = None, hour: str = "03") -> None:
        """Append all blocks of one visit."""
        arm = arm or self.plan.baseline
        for block in self.plan.blocks:
            self.ledger.append(measured(arm, block, phase, hour))

    def measure_all(self) -> None:
        self.measure("opening")
        for arm in self.plan.arms[1:]:
            self.measure("arm", arm)
        self.measure("closing")

    def decide(self, created_utc: str = "2026-01-02T04:00:00+00:00") -> None:
        (self.path / "selection.json").write_text(decided(self.plan, created_utc).model_dump_json())
        (self.path / "report.md").write_text("# made up")


def measured(arm: Arm, block: Block, phase: Phase, hour: str) -> BlockRecord:
    k = arm.num_speculative_tokens
    per_pos = tuple(10 - i for i in range(k))
    counters = SpecCounters(
        num_drafts=10,
        num_draft_tokens=10 * k,
        num_accepted_tokens=sum(per_pos),
        num_accepted_tokens_per_pos=per_pos,
    )
    return BlockRecord(
        arm_id=arm.id,
        block_id=block.id,
        workload_id=block.workload_id,
        block_index=block.index,
        visit_id=f"{arm.name}-{phase}",
        attempt=1,
        phase=phase,
        node="node-a",
        started_utc=f"2026-01-02T{hour}:0{block.index}:05+00:00",
        wall_s=1.0,
        num_requests=4,
        prompt_tokens=16,
        output_tokens=RATES[k or phase],
        counters=counters if k else None,
        ttft_s=(0.1, 0.2, 0.3, 0.4),
        tpot_s=(0.01, 0.02, 0.03, 0.04),
        e2e_s=(1.0, 2.0, 3.0, 4.0),
        itl_s={"p50": 0.01, "p95": 0.02, "p99": 0.03},
        output_sha256=("a", "b", "c", "d"),
        client_cpu_cores=0.1,
    )


def decided(plan: Plan, created_utc: str) -> Selection:
    def result(arm: Arm) -> ArmResult:
        speedup = {0: None, 3: 2.0, 7: 3.0}[arm.num_speculative_tokens]
        return ArmResult(
            arm=arm.name,
            method=arm.method,
            num_speculative_tokens=arm.num_speculative_tokens,
            num_blocks=2,
            num_requests=8,
            output_tokens_per_s=None,
            speedup=speedup and Interval(mean=speedup, ci_low=speedup - 0.5, ci_high=speedup + 0.5),
            acceptance_length=None,
            acceptance_rate=None,
            survival=None,
            ttft_s=None,
            tpot_s=None,
            usd_per_million_output_tokens=None,
            outputs_match_baseline=1.0 if speedup else None,
        )

    return Selection(
        sweep_id=f"{plan.name}/{UTC_TIME}",
        created_utc=created_utc,
        simulated=False,
        provenance=Provenance(git_commit="abc", versions={"mlflow": "3"}, hardware={}, plan_id=plan.id),
        workloads=tuple(
            WorkloadResult(
                dataset=cell.dataset,
                max_concurrency=cell.max_concurrency,
                output_len=cell.output_len,
                verdict="speculate",
                reason="three times as fast",
                best=Choice(arm="dflash-k7", method="dflash", num_speculative_tokens=7),
                arms=tuple(result(arm) for arm in plan.arms),
            )
            for cell in plan.workloads
        ),
        schedules=(),
        recommendation=None,
    )


class Recorded:
    """What MLflow holds, read back through its own client."""

    def __init__(self, tracking: Tracking) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking.uri)
        experiment = self.client.get_experiment_by_name(tracking.experiment)
        assert experiment is not None
        runs: list[Any] = self.client.search_runs([experiment.experiment_id])
        self.parents = [run for run in runs if SWEEP_TAG in run.data.tags]
        self.children = {run.info.run_name: run for run in runs if CELL_TAG in run.data.tags}
        self.num_runs = len(runs)

    def curve(self, child: str, key: str) -> dict[int, float]:
        """Step -> value; a step that was logged twice fails."""
        history = self.client.get_metric_history(self.children[child].info.run_id, key)
        assert [step for step, n in Counter(point.step for point in history).items() if n > 1] == []
        return {point.step: point.value for point in history}

    def num_points(self) -> int:
        return sum(len(self.curve(name, key)) for name, run in self.children.items() for key in run.data.metrics)

    def artifacts(self, folder: str | None = None) -> set[str]:
        return {item.path for item in self.client.list_artifacts(self.parents[0].info.run_id, folder)}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for the module, an experiment a test: making the tables takes longer than any test here."""
    return tmp_path_factory.mktemp("mlflow") / "mlflow.db"


@pytest.fixture
def tracking(database: Path, request: pytest.FixtureRequest) -> Tracking:
    return Tracking(uri=f"sqlite:///{database}", experiment=request.node.name)


@pytest.fixture
def sweep(tmp_path: Path) -> SweepOnDisk:
    return SweepOnDisk(tmp_path)


def test_finished_sweep_has_a_parent_and_a_child_for_every_arm_and_workload(
    sweep: SweepOnDisk, tracking: Tracking
) -> None:
    sweep.measure_all()
    sweep.decide()
    mirror(sweep.path, tracking)
    found = Recorded(tracking)
    assert [run.info.run_name for run in found.parents] == [f"made-up {UTC_TIME}"]
    arms = ("baseline", "dflash-k3", "dflash-k7")
    assert found.children.keys() == {f"code@c{c} {arm}" for c in (1, 2) for arm in arms}
    assert {run.info.status for run in (*found.parents, *found.children.values())} == {"FINISHED"}
    child = found.children["code@c2 dflash-k7"].data
    assert child.tags["mlflow.parentRunId"] == found.parents[0].info.run_id
    assert (child.params["num_speculative_tokens"], child.params["max_concurrency"]) == ("7", "2")
    parent = found.parents[0].data.tags
    assert parent[SWEEP_TAG] == f"made-up/{UTC_TIME}"
    assert parent["verdict.code.c1"] == "speculate"
    assert "three times as fast" in parent["mlflow.note.content"]
    assert found.parents[0].data.metrics["workloads_speculate"] == 2
    assert f"/runs/{found.parents[0].info.run_id}?" in child.tags["mlflow.note.content"]


def test_prompts_are_an_input_of_every_run_and_the_experiment_opens_as_one_of_runs(
    sweep: SweepOnDisk, tracking: Tracking
) -> None:
    sweep.measure_all()
    sweep.decide()
    mirror(sweep.path, tracking)
    found = Recorded(tracking)
    inputs = [run.inputs.dataset_inputs for run in found.children.values()]
    assert [len(each) for each in inputs] == [1] * len(found.children)
    assert {each[0].dataset.name for each in inputs} == {"code"}
    experiment = found.client.get_experiment_by_name(tracking.experiment)
    assert experiment is not None
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_figures_of_a_finished_sweep(sweep: SweepOnDisk, tracking: Tracking) -> None:
    sweep.measure_all()
    sweep.decide()
    mirror(sweep.path, tracking)
    found = Recorded(tracking)
    assert found.curve("code@c1 dflash-k7", "block/speedup") == pytest.approx({0: 3.0, 1: 3.0})
    assert found.curve("code@c1 baseline", "block/output_tokens_per_s") == pytest.approx({0: 40.0, 1: 40.0})
    assert found.curve("code@c1 dflash-k3", "survival") == pytest.approx({0: 1.0, 1: 0.9, 2: 0.8})
    metrics = found.children["code@c1 dflash-k3"].data.metrics
    assert (metrics["speedup"], metrics["speedup_ci_low"], metrics["speedup_ci_high"]) == (2.0, 1.5, 2.5)
    assert metrics["ttft_s_p50"] == pytest.approx(0.25)
    assert metrics["outputs_match_baseline"] == 1.0
    assert not {"speedup", "survival", "acceptance_rate"} & found.children["code@c1 baseline"].data.metrics.keys()


def test_artifacts_are_on_the_parent_beside_the_database(
    sweep: SweepOnDisk, tracking: Tracking, database: Path
) -> None:
    sweep.measure_all()
    sweep.decide()
    mirror(sweep.path, tracking)
    found = Recorded(tracking)
    files = {"config.yaml", "plan.json", "ledger.jsonl", "selection.json", "report.md"}
    assert found.artifacts() == files | {"raw", "logs"}
    assert found.artifacts("logs") == {"logs/v1.log"}
    assert found.parents[0].info.artifact_uri.startswith((database.parent / "mlartifacts").as_uri())


def test_second_mirror_adds_nothing(sweep: SweepOnDisk, tracking: Tracking) -> None:
    sweep.measure_all()
    sweep.decide()
    first = mirror(sweep.path, tracking)
    num_points = Recorded(tracking).num_points()
    assert mirror(sweep.path, tracking) == MirrorResult(first.parent_run_id, 0, 0, 0)
    assert Recorded(tracking).num_points() == num_points == first.num_figures_sent


def test_lost_state_file_makes_no_duplicates(sweep: SweepOnDisk, tracking: Tracking) -> None:
    sweep.measure_all()
    sweep.decide()
    first = mirror(sweep.path, tracking)
    num_points = Recorded(tracking).num_points()
    (sweep.path / "mlflow.json").unlink()
    assert mirror(sweep.path, tracking).num_runs_created == 0
    found = Recorded(tracking)
    assert (found.num_runs, found.num_points()) == (7, num_points)
    assert found.parents[0].info.run_id == first.parent_run_id


def test_run_whose_answer_was_lost_is_not_made_twice(
    sweep: SweepOnDisk, tracking: Tracking, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    create_run = MlflowClient.create_run

    def lose_answer(*args: Any, **kwargs: Any) -> None:
        create_run(*args, **kwargs)
        raise MlflowException("connection reset")

    sweep.measure("opening")
    for _ in range(2):  # the parent's answer is lost, then the first child's
        monkeypatch.setattr(MlflowClient, "create_run", lose_answer)
        with pytest.raises(TrackingFailed, match="connection reset"):
            mirror(sweep.path, tracking)
    monkeypatch.setattr(MlflowClient, "create_run", create_run)
    mirror(sweep.path, tracking)
    assert Recorded(tracking).num_runs == 3


def test_deleted_runs_are_made_anew(sweep: SweepOnDisk, tracking: Tracking) -> None:
    sweep.measure("opening")
    mirror(sweep.path, tracking)
    found = Recorded(tracking)
    found.client.delete_run(found.children["code@c1 baseline"].info.run_id)
    assert mirror(sweep.path, tracking).num_runs_created == 1
    found.client.delete_run(found.parents[0].info.run_id)
    assert mirror(sweep.path, tracking).num_runs_created == 3
    assert Recorded(tracking).children["code@c1 baseline"].data.metrics["output_tokens_per_s"] == pytest.approx(20.0)


def test_running_sweep_is_continued_with_what_is_new(sweep: SweepOnDisk, tracking: Tracking) -> None:
    k3, k7 = sweep.plan.arms[1:]
    sweep.measure("opening")
    sweep.measure("arm", k3)
    mirror(sweep.path, tracking)
    midway = Recorded(tracking)
    assert {run.info.status for run in (*midway.parents, *midway.children.values())} == {"RUNNING"}
    assert midway.children.keys() == {f"code@c{c} {arm}" for c in (1, 2) for arm in ("baseline", "dflash-k3")}
    assert midway.children["code@c1 dflash-k3"].data.metrics["speedup"] == pytest.approx(4.0)
    sweep.measure("arm", k7)
    second = mirror(sweep.path, tracking)
    assert second.num_runs_created == 2
    assert second.num_figures_sent == Recorded(tracking).num_points() - midway.num_points()
    assert second.num_artifacts_sent == 1  # the ledger
    sweep.measure("closing")
    sweep.decide()
    mirror(sweep.path, tracking)
    done = Recorded(tracking)
    assert done.num_runs == 7
    assert done.curve("code@c1 dflash-k3", "block/speedup") == pytest.approx({0: 2.0, 1: 2.0})
    assert done.children["code@c1 dflash-k3"].data.metrics["speedup"] == 2.0


def test_continued_sweep_runs_again_until_it_is_decided_anew(sweep: SweepOnDisk, tracking: Tracking) -> None:
    sweep.measure("opening")
    sweep.decide(created_utc="2026-01-02T03:02:00+00:00")
    mirror(sweep.path, tracking)
    assert Recorded(tracking).parents[0].info.status == "FINISHED"
    sweep.measure("arm", sweep.plan.arms[1], hour="05")
    mirror(sweep.path, tracking)
    again = Recorded(tracking)
    assert (again.parents[0].info.status, again.children["code@c1 dflash-k3"].info.status) == ("RUNNING", "RUNNING")
    sweep.decide(created_utc="2026-01-02T06:00:00+00:00")
    mirror(sweep.path, tracking)
    done = Recorded(tracking)
    assert {run.info.status for run in (*done.parents, *done.children.values())} == {"FINISHED"}
    assert done.children["code@c1 dflash-k3"].data.metrics["speedup"] == 2.0


def test_torn_last_line_is_left_for_the_writer_to_finish(sweep: SweepOnDisk, tracking: Tracking) -> None:
    sweep.measure("opening")
    torn = sweep.ledger.path.read_bytes() + b'{"kind":"blo'
    sweep.ledger.path.write_bytes(torn)
    mirror(sweep.path, tracking)
    assert sweep.ledger.path.read_bytes() == torn


def test_relative_database_counts_from_the_current_directory(
    tmp_path: Path, sweep: SweepOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mirror(sweep.path, Tracking(uri="sqlite:///mlflow.db"))
    found = Recorded(Tracking(uri=f"sqlite:///{tmp_path / 'mlflow.db'}"))
    assert found.parents[0].info.artifact_uri.startswith((tmp_path / "mlartifacts").as_uri())
    assert not (tmp_path / "mlruns").exists()


def test_password_of_the_tracking_server_reaches_neither_log_nor_artifacts(
    tmp_path: Path, tracking: Tracking, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes by the environment: a URI that holds one is refused."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    uri = f"http://127.0.0.1:{free_port()}"
    sweep = SweepOnDisk(tmp_path, uri)
    recorder = Recorder(sweep.path, Tracking(uri=uri))
    problem = recorder.close(deadline_s=60)
    assert problem is not None
    assert "127.0.0.1" in problem
    assert "hunter2" not in problem + caplog.text
    mirror(sweep.path, tracking)
    found = Recorded(tracking)
    copy = found.client.download_artifacts(found.parents[0].info.run_id, "config.yaml", str(tmp_path))
    assert "hunter2" not in Path(copy).read_text()


def test_folder_of_no_sweep_is_refused_and_not_made(tmp_path: Path, tracking: Tracking) -> None:
    with pytest.raises(ConfigError, match=r"plan\.json"):
        mirror(tmp_path / "nowhere", tracking)
    assert not (tmp_path / "nowhere").exists()


def test_nothing_is_recorded_without_a_uri(sweep: SweepOnDisk) -> None:
    assert mirror(sweep.path, Tracking(uri=None)) == MirrorResult()
    recorder = Recorder(sweep.path, Tracking(uri=None))
    recorder.kick()
    assert recorder.close(deadline_s=0) is None
    assert not (sweep.path / "mlflow.json").exists()


def test_recorder_sends_figures_on_a_kick_and_artifacts_at_the_end(sweep: SweepOnDisk, tracking: Tracking) -> None:
    sweep.measure_all()
    recorder = Recorder(sweep.path, tracking)
    recorder.kick()
    wait_until(lambda: (sweep.path / "mlflow.json").exists(), timeout_s=60)
    assert Recorded(tracking).artifacts() == set()
    sweep.decide()
    assert recorder.close(deadline_s=60) is None
    found = Recorded(tracking)
    assert "selection.json" in found.artifacts()
    assert found.parents[0].info.status == "FINISHED"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_error_that_nobody_foresaw_is_reported_and_stops_only_the_recording(
    sweep: SweepOnDisk, tracking: Tracking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.record_folder.SweepFolder.read", lambda self: 1 / 0)
    recorder = Recorder(sweep.path, tracking)
    recorder.kick()
    recorder.kick()
    assert "unexpected error" in str(recorder.close(deadline_s=20))


def test_importing_the_recorder_does_not_import_mlflow() -> None:
    code = "import sys, orchestrator.recorder; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_server_that_never_answers_delays_neither_kick_nor_close(
    sweep: SweepOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")  # only so that the thread does not outlive the test long
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        recorder = Recorder(sweep.path, Tracking(uri=f"http://127.0.0.1:{deaf.getsockname()[1]}"))
        started = time.monotonic()
        for _ in range(1000):
            recorder.kick()
        assert time.monotonic() - started < 1
        problem = recorder.close(deadline_s=1)
        assert time.monotonic() - started < 5
    assert problem is not None
    assert f"orchestrator record {sweep.path}" in problem


def test_server_that_went_away_is_caught_up_with(
    sweep: SweepOnDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    tracking = Tracking(uri=f"http://127.0.0.1:{port}")
    recorder = Recorder(sweep.path, tracking)
    sweep.measure("opening")
    with mlflow_server(tmp_path, port):
        recorder.kick()
        wait_until(lambda: (sweep.path / "mlflow.json").exists(), timeout_s=60)
        assert len(Recorded(tracking).children) == 2

    sweep.measure("arm", sweep.plan.arms[1])
    started = time.monotonic()
    for _ in range(3):
        recorder.kick()
        time.sleep(0.5)
    problem = recorder.close(deadline_s=10)
    assert time.monotonic() - started < 15
    assert problem is not None
    assert f"orchestrator record {sweep.path}" in problem
    assert len([entry for entry in caplog.records if entry.levelno >= logging.WARNING]) == 1

    with mlflow_server(tmp_path, port):
        with pytest.raises(TrackingFailed):
            mirror(sweep.path, Tracking(uri=f"http://127.0.0.1:{free_port()}"))
        sweep.measure("arm", sweep.plan.arms[2])
        sweep.measure("closing")
        sweep.decide()
        continued = Recorder(sweep.path, tracking)
        assert continued.close(deadline_s=60) is None
        found = Recorded(tracking)
        assert found.num_runs == 7
        assert found.curve("code@c2 dflash-k3", "block/speedup") == pytest.approx({0: 2.0, 1: 2.0})
        assert "report.md" in found.artifacts()
        assert found.num_points() > 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def wait_until(condition: Any, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.1)


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[None]:
    """A real tracking server over a database in `folder`, killed with -9 at the end."""
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(port)]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        f"{folder}/artifacts",
    ]
    env = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # only to be up sooner
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=env, start_new_session=True)
    try:
        wait_until(lambda: is_healthy(port), timeout_s=240)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
