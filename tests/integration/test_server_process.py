"""VllmServer with a small real child process instead of vLLM."""

import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from orchestrator.errors import ArmMismatch, EngineNotFound, PortTaken, ServerCrashed, ServerError, ServerNotReady
from orchestrator.records import ServerSpec
from tasks.server import VllmServer

STANDIN = str(Path(__file__).parents[1] / "standin_server_min.py")
DRAFTER = {"method": "dflash", "model": "/models/drafter", "num_speculative_tokens": 7}

# Shortened from a log of vLLM 0.32 with a drafter folder that has no weights.
CRASH_LOG = """\
(APIServer pid=8097) WARNING 11-29 18:02:53 [system_utils.py:255] Errors like `OSError: [Errno 24] Too many open files`.
(Worker pid=8132) ERROR 11-29 18:03:15 [multiproc_executor.py:953] WorkerProc failed to start.
(Worker pid=8132) ERROR 11-29 18:03:15 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker pid=8132) ERROR 11-29 18:03:15 [multiproc_executor.py:953]   File "default_loader.py", line 171, in _prepare
(Worker pid=8132) ERROR 11-29 18:03:15 [multiproc_executor.py:953]     raise RuntimeError(
(Worker pid=8132) ERROR 11-29 18:03:15 [multiproc_executor.py:953] RuntimeError: Cannot find any model weights with `/x`
(EngineCore pid=8120) ERROR 11-29 18:03:16 [core.py:1012] EngineCore failed to start.
Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
Traceback (most recent call last):
  File "utils.py", line 1431, in wait_for_engine_startup
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def _spec(mode: str = "ready", *, speculative: bool = True, extra_args: tuple[str, ...] = (), **env: str) -> ServerSpec:
    return ServerSpec(
        command=(sys.executable, STANDIN),
        target="/models/target",
        revision=None,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=16,
        kv_cache_gib=1,
        enforce_eager=False,
        enable_prefix_caching=False,
        trust_remote_code=False,
        preload_openmp=False,
        omp_threads_bind=None,
        speculative_config={**DRAFTER} if speculative else None,
        extra_args=extra_args,
        env={"STANDIN_MODE": mode, **env},
    )


@pytest.fixture
def server(tmp_path: Path) -> Callable[..., VllmServer]:
    def server(spec: ServerSpec, port: int | None = None) -> VllmServer:
        return VllmServer(spec, name="dflash-k7", log_path=tmp_path / "server.log", port=port, stop_grace_s=0.5)

    return server


def test_a_ready_server_tells_its_name_and_version_and_is_gone_afterwards(server: Callable[..., VllmServer]) -> None:
    with server(_spec()) as running:
        assert 0 < running.wait_until_ready(timeout_s=30) < 30
        assert running.model_name == "/models/target"
        assert running.engine_version == "0.32.0"
        process = psutil.Process(running.pid)
        assert running.api_key not in " ".join(process.cmdline())
        assert process.environ()["VLLM_API_KEY"] == running.api_key
    assert not process.is_running()


@pytest.mark.parametrize("speculative", [False, True], ids=["baseline", "dflash"])
def test_the_configuration_that_was_asked_for_is_confirmed(
    server: Callable[..., VllmServer], speculative: bool
) -> None:
    with server(_spec(speculative=speculative)) as running:
        running.wait_until_ready(timeout_s=30)
        checks = running.verify_configuration()
    assert {"max_model_len", "enable_prefix_caching", "method", "drafter", "num_speculative_tokens"} <= set(checks)


@pytest.mark.parametrize(
    ("speculative", "extra_args", "difference"),
    [
        (True, ("--max-model-len", "512"), "max_model_len: wanted 1024 but got 512"),
        (True, ("--enable-prefix-caching",), "enable_prefix_caching: wanted False but got True"),
        (
            True,
            ("--speculative-config", '{"method":"dflash","model":"/models/drafter","num_speculative_tokens":3}'),
            "num_speculative_tokens: wanted 7 but got 3",
        ),
        (True, ("--speculative-config", "null"), "method: wanted 'dflash' but got None"),
        (
            False,
            ("--speculative-config", '{"method":"dflash","model":"/x","num_speculative_tokens":3}'),
            "method: wanted None but got 'dflash'",
        ),
    ],
)
def test_a_server_that_runs_something_else_than_the_arm_is_refused(
    server: Callable[..., VllmServer], speculative: bool, extra_args: tuple[str, ...], difference: str
) -> None:
    with server(_spec(speculative=speculative, extra_args=extra_args)) as running:
        running.wait_until_ready(timeout_s=30)
        with pytest.raises(ArmMismatch) as caught:
            running.verify_configuration()
    assert difference in str(caught.value)


def test_a_version_that_does_not_log_its_configuration_is_checked_by_the_api_alone(
    server: Callable[..., VllmServer],
) -> None:
    with server(_spec("silent")) as running:
        running.wait_until_ready(timeout_s=30)
        assert running.verify_configuration() == ("max_model_len",)


def test_a_crash_names_the_arm_the_exit_code_the_root_cause_and_the_log(
    server: Callable[..., VllmServer], tmp_path: Path
) -> None:
    (tmp_path / "crash.txt").write_text(CRASH_LOG)
    with (
        server(_spec("crash", STANDIN_LOG=str(tmp_path / "crash.txt"))) as running,
        pytest.raises(ServerCrashed) as caught,
    ):
        running.wait_until_ready(timeout_s=30)
    cause = "RuntimeError: Cannot find any model weights with `/x`"
    assert str(caught.value) == f"dflash-k7: vLLM exited 1 ({cause}); log: {tmp_path / 'server.log'}"


def test_what_an_earlier_server_wrote_to_the_same_log_counts_neither_as_cause_nor_as_configuration(
    server: Callable[..., VllmServer], tmp_path: Path
) -> None:
    with server(_spec(speculative=False)) as running:
        running.wait_until_ready(timeout_s=30)
    with (tmp_path / "server.log").open("a") as log:
        log.write("RuntimeError: of yesterday\n")
    with server(_spec()) as running:
        running.wait_until_ready(timeout_s=30)
        assert "method" in running.verify_configuration()
        psutil.Process(running.pid).kill()
        with pytest.raises(ServerCrashed) as caught:
            running.wait_until_ready(timeout_s=30)
    assert "yesterday" not in str(caught.value)


def test_a_server_killed_by_a_signal_is_a_crash_that_names_the_signal(server: Callable[..., VllmServer]) -> None:
    with server(_spec()) as running:
        running.wait_until_ready(timeout_s=30)
        psutil.Process(running.pid).kill()
        with pytest.raises(ServerCrashed, match=r"was killed by SIGKILL; out of memory\?"):
            running.wait_until_ready(timeout_s=30)


def test_a_server_that_never_answers_times_out_with_its_last_line(server: Callable[..., VllmServer]) -> None:
    begin = time.monotonic()
    with (
        server(_spec("hang")) as running,
        pytest.raises(ServerNotReady, match=r"not ready within 1 s \(last line: Loading weights\)"),
    ):
        running.wait_until_ready(timeout_s=1)
    assert time.monotonic() - begin < 10


def test_a_server_that_refuses_completions_is_reported_at_once(server: Callable[..., VllmServer]) -> None:
    with server(_spec("refuse")) as running, pytest.raises(ServerNotReady, match=r"HTTP 400: .*no chat template"):
        running.wait_until_ready(timeout_s=60)


def test_a_fixed_port_that_is_taken_is_named_before_anything_starts(server: Callable[..., VllmServer]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port} .* server\.port"):
            server(_spec(), port=port).__enter__()


def test_a_fixed_port_is_used_again_right_after_a_server_stopped(server: Callable[..., VllmServer]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    for _ in range(2):
        with server(_spec(), port=port) as running:
            running.wait_until_ready(timeout_s=30)
            assert running.base_url == f"http://127.0.0.1:{port}"


def test_a_port_lost_while_the_engine_loads_is_reported_as_taken(
    server: Callable[..., VllmServer], tmp_path: Path
) -> None:
    (tmp_path / "crash.txt").write_text("OSError: [Errno 98] Address already in use\n")
    with server(_spec("crash", STANDIN_LOG=str(tmp_path / "crash.txt"))) as running, pytest.raises(PortTaken):
        running.wait_until_ready(timeout_s=30)


def test_stop_ends_a_server_and_its_child_that_ignore_sigterm_and_may_be_called_twice(
    server: Callable[..., VllmServer],
) -> None:
    with server(_spec("stubborn")) as running:
        running.wait_until_ready(timeout_s=30)
        process = psutil.Process(running.pid)
        family = [process, *process.children(recursive=True)]
        assert len(family) == 2
        stop_s = running.stop()
        assert stop_s >= 0.5
        assert running.stop() == stop_s
        assert not any(member.is_running() for member in family)


def test_an_error_inside_the_block_still_stops_the_server(server: Callable[..., VllmServer]) -> None:
    processes = []

    def measure() -> None:
        with server(_spec()) as running:
            processes.append(psutil.Process(running.pid))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure()
    assert [process.is_running() for process in processes] == [False]


def test_a_command_that_cannot_be_executed_is_a_configuration_error(
    server: Callable[..., VllmServer], tmp_path: Path
) -> None:
    broken = tmp_path / "vllm"
    broken.write_text("#!/nowhere/python\n")
    broken.chmod(0o755)
    with pytest.raises(EngineNotFound, match=f"cannot run '{broken}'"):
        server(_spec().model_copy(update={"command": (str(broken),)})).__enter__()


def test_a_server_that_was_not_started_says_so(server: Callable[..., VllmServer]) -> None:
    idle = server(_spec())
    assert idle.stop() == 0
    with pytest.raises(ServerError, match="not started"):
        idle.wait_until_ready(timeout_s=1)
