"""The engine's command line, environment and log, without a process."""

import json
import sys
from pathlib import Path

import pytest
from pydantic import JsonValue

from orchestrator.errors import EngineNotFound
from orchestrator.records import ServerSpec
from tasks import early_interpreters
from tasks.server_command import (
    engine_command,
    is_local,
    openmp_library,
    preloaded_libraries,
    serve_arguments,
    server_argv,
    server_env,
)
from tasks.server_log import last_line, root_cause, running_engine, thread_binding

DRAFTER: dict[str, JsonValue] = {"num_speculative_tokens": 7, "method": "dflash", "model": "z-lab/drafter"}


def _spec(**changes: object) -> ServerSpec:
    spec: dict[str, object] = {
        "command": [sys.executable],
        "target": "demo://target",
        "revision": None,
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "kv_cache_gib": 1.0,
        "enforce_eager": False,
        "enable_prefix_caching": False,
        "trust_remote_code": False,
        "preload_openmp": True,
        "omp_threads_bind": None,
        "speculative_config": None,
        "extra_args": [],
        "env": {},
    }
    return ServerSpec.model_validate(spec | changes)


def _argv(spec: ServerSpec, model: str = "/models/target", speculative: bool = False) -> list[str]:
    located = {"target": model, "speculative_config": dict(DRAFTER) if speculative else None}
    return server_argv(spec.model_copy(update=located), host="127.0.0.1", port=8000)


def _env(
    spec: ServerSpec, model: str = "/models/target", drafter: str | None = None, **inherited: str
) -> dict[str, str]:
    speculative: dict[str, JsonValue] | None = None if drafter is None else {**DRAFTER, "model": drafter}
    preload = [inherited.pop("openmp")] if "openmp" in inherited else []
    located = spec.model_copy(update={"target": model, "speculative_config": speculative})
    return server_env(located, api_key="key", preload=preload, inherited=inherited)


def test_baseline_command_has_every_setting_and_no_speculation() -> None:
    assert _argv(_spec()) == [
        sys.executable,
        "serve",
        "/models/target",
        *("--host", "127.0.0.1", "--port", "8000", "--disable-uvicorn-access-log"),
        *("--dtype", "bfloat16", "--max-model-len", "1024", "--max-num-seqs", "16", "--no-enable-prefix-caching"),
    ]


def test_speculative_config_is_one_canonical_json_argument() -> None:
    argv = _argv(_spec(), speculative=True)
    value = argv[argv.index("--speculative-config") + 1]
    assert value == '{"method":"dflash","model":"z-lab/drafter","num_speculative_tokens":7}'
    assert json.loads(value) == DRAFTER


def test_switches_appear_only_when_asked_for_and_extra_args_come_last() -> None:
    asked = _argv(
        _spec(
            enforce_eager=True,
            max_num_batched_tokens=2048,
            enable_prefix_caching=True,
            trust_remote_code=True,
            revision="abc",
            extra_args=["--max-model-len", "512"],
        ),
        model="Qwen/Qwen3-8B",
    )
    assert {"--enforce-eager", "--enable-prefix-caching", "--trust-remote-code", "--revision", "abc"} <= set(asked)
    assert asked[asked.index("--max-num-batched-tokens") + 1] == "2048"
    assert "--no-enable-prefix-caching" not in asked
    assert "--max-num-batched-tokens" not in _argv(_spec())
    assert asked[-2:] == ["--max-model-len", "512"]
    assert not {"--enforce-eager", "--enable-prefix-caching", "--trust-remote-code", "--revision"} & set(_argv(_spec()))


def test_the_api_key_is_in_the_environment_and_never_in_argv() -> None:
    assert _env(_spec())["VLLM_API_KEY"] == "key"
    assert not [part for part in _argv(_spec()) if "key" in part]


@pytest.mark.parametrize("command", [["/nowhere/vllm"], ["no-such-engine"]])
def test_a_missing_engine_is_a_configuration_error_that_says_what_to_do(command: list[str]) -> None:
    with pytest.raises(EngineNotFound, match=r"make setup.*server\.command=") as caught:
        engine_command(_spec(command=command))
    assert caught.value.exit_code == 2
    assert command[0] in str(caught.value)


def test_without_a_command_vllm_beside_the_interpreter_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    with pytest.raises(EngineNotFound, match="this environment has no vLLM"):
        engine_command(_spec(command=None))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm").touch(mode=0o755)
    assert engine_command(_spec(command=None)) == [str(tmp_path / "bin" / "vllm")]


def test_only_the_vllm_beside_the_interpreter_has_its_interpreters_started_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    own = _argv(_spec(command=None))
    assert own[:2] == [str(tmp_path / "python"), "-P"]
    assert own[2:4] == [early_interpreters.__file__, "serve"]
    assert _argv(_spec(command=[str(tmp_path / "vllm")])) == [str(tmp_path / "vllm"), *own[3:]]


def test_openmp_comes_from_the_engines_environment_even_through_a_link(tmp_path: Path) -> None:
    for folder in ("env/bin", "env/lib", "elsewhere/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "env/bin/vllm").touch(mode=0o755)
    (tmp_path / "elsewhere/bin/vllm").symlink_to(tmp_path / "env/bin/vllm")
    command = [str(tmp_path / "elsewhere/bin/vllm")]
    assert openmp_library(_spec(command=command)) is None
    (tmp_path / "env/lib/libiomp5.so").touch()
    assert openmp_library(_spec(command=command)) == tmp_path / "env/lib/libiomp5.so"
    assert openmp_library(_spec(command=command, preload_openmp=False)) is None


def test_an_allocator_that_is_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = (str(tmp_path / "env/bin/vllm"),)
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/vllm").touch(mode=0o755)
    asked = _spec(command=command, preload_tcmalloc=True)
    monkeypatch.setattr("tasks.server_command.find_library", lambda name: f"lib{name}.so.4")
    assert preloaded_libraries(asked) == ["libtcmalloc_minimal.so.4"]
    monkeypatch.setattr("tasks.server_command.find_library", lambda name: None)
    with pytest.raises(EngineNotFound, match="apt-get install libtcmalloc-minimal4"):
        preloaded_libraries(asked)
    assert preloaded_libraries(_spec(command=command)) == []


@pytest.mark.parametrize(
    ("chunked", "flag"), [(True, "--enable-chunked-prefill"), (False, "--no-enable-chunked-prefill")]
)
def test_chunked_prefill_is_a_flag_only_where_the_arm_says(chunked: bool, flag: str) -> None:
    assert flag in serve_arguments(_spec(enable_chunked_prefill=chunked))
    assert not any("chunked" in part for part in serve_arguments(_spec()))


def test_openmp_is_added_to_a_preload_once() -> None:
    assert "LD_PRELOAD" not in _env(_spec())
    assert _env(_spec(), openmp="/e/libiomp5.so")["LD_PRELOAD"] == "/e/libiomp5.so"
    assert _env(_spec(), openmp="/e/libiomp5.so", LD_PRELOAD="/tc.so")["LD_PRELOAD"] == "/e/libiomp5.so:/tc.so"
    image = "/tc.so:/opt/libiomp5.so"
    assert _env(_spec(), openmp="/e/libiomp5.so", LD_PRELOAD=image)["LD_PRELOAD"] == image


def test_inherited_settings_that_would_change_the_arm_unseen_are_dropped() -> None:
    env = _env(
        _spec(),
        PATH="/bin",
        HF_HOME="/hf",
        VLLM_CACHE_ROOT="/cache",
        VLLM_ATTENTION_BACKEND="X",
        OMP_NUM_THREADS="1",
        KMP_BLOCKTIME="1",
        RAY_ADDRESS="h:1",
        PYTHONPATH="/p",
    )
    assert {"PATH", "HF_HOME", "VLLM_CACHE_ROOT"} <= env.keys()
    assert not {"VLLM_ATTENTION_BACKEND", "OMP_NUM_THREADS", "KMP_BLOCKTIME", "RAY_ADDRESS", "PYTHONPATH"} & env.keys()


def test_sockets_lie_where_the_visit_wants_them_and_by_vllms_own_choice_without_one(tmp_path: Path) -> None:
    placed = server_env(_spec(), api_key="key", preload=(), inherited={}, sockets_dir=tmp_path)
    assert placed["VLLM_RPC_BASE_PATH"] == str(tmp_path)
    assert "VLLM_RPC_BASE_PATH" not in _env(_spec())


def test_the_arms_own_environment_has_the_last_word() -> None:
    env = _env(
        _spec(kv_cache_gib=40, omp_threads_bind="0-31", env={"OMP_NUM_THREADS": "8", "VLLM_CPU_KVCACHE_SPACE": "2"})
    )
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "0-31"
    assert env["OMP_NUM_THREADS"] == "8"
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert _env(_spec(kv_cache_gib=40))["VLLM_CPU_KVCACHE_SPACE"] == "40"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in _env(_spec())


@pytest.mark.parametrize(
    ("model", "drafter", "offline"),
    [
        ("/m", None, True),
        ("/m", "/d", True),
        ("/m", "z-lab/drafter", False),
        ("Qwen/Qwen3-8B", "/d", False),
        ("Qwen/Qwen3-8B", None, False),
    ],
)
def test_the_hub_is_off_only_when_both_models_are_folders(model: str, drafter: str | None, offline: bool) -> None:
    assert ("HF_HUB_OFFLINE" in _env(_spec(), model=model, drafter=drafter)) is offline


def test_a_missing_folder_still_counts_as_local() -> None:
    assert is_local("/nowhere/model")
    assert is_local("./model")
    assert not is_local("Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            "Traceback (most recent call last):\n"
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n"
            "  Value error, Invalid repository ID or local directory specified: '/x'.\n"
            "Please verify the following requirements:\n",
            "SpeculativeConfig: Value error, Invalid repository ID or local directory specified: '/x'.",
        ),
        (
            "ValidationError: 1 validation error for SpeculativeConfig\n"
            "num_speculative_tokens\n"
            "  Input should be greater than 0 [type=greater_than, input_value=0, input_type=int]\n",
            "SpeculativeConfig: num_speculative_tokens: Input should be greater than 0",
        ),
        (
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form\n",
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form",
        ),
        (
            "INFO: started\nusage: vllm [-h]\nvllm: error: unrecognized arguments: --foo\n",
            "vllm: error: unrecognized arguments: --foo",
        ),
        ("  File x\n    assert a\nAssertionError\nlater\n", "AssertionError"),
        ("(Worker pid=1) ERROR 11-29 18:03:15 [a.py:1] it broke\nbye\n", "it broke"),
        ("(Worker pid=1) INFO 11-29 18:03:15 [a.py:1] last words\n\n", "last words"),
        (
            "(VllmWorker-0 pid=1) ERROR 11-29 18:03:15 [a.py:1] ValueError: no room\n"
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
            "See stack trace (above) for the root cause.\n",
            "ValueError: no room",
        ),
        ("", "the log is empty"),
    ],
)
def test_the_line_that_explains_a_crash_is_found(log: str, cause: str) -> None:
    assert root_cause(log.splitlines()) == cause


def test_a_long_message_is_cut() -> None:
    assert len(root_cause(["ValueError: " + "x" * 5000])) < 500


def test_the_last_line_of_a_log_comes_without_prefixes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("(Worker pid=8308) INFO 11-29 18:03:50 [a.py:82] Initializing model took 0.1 seconds\n\n")
    assert last_line(log) == "Initializing model took 0.1 seconds"


def test_the_running_configuration_is_read_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "(EngineCore pid=8262) INFO 11-29 18:03:39 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
        "model='/m/target', speculative_config=SpeculativeConfig(method='ngram', model=None, num_spec_tokens=3), "
        "tokenizer='/m/target', dtype=torch.bfloat16, max_seq_len=1024, enforce_eager=True, seed=0\n"
    )
    running = running_engine(log)
    assert running is not None
    assert (running.model, running.dtype, running.max_model_len) == ("/m/target", "bfloat16", 1024)
    assert (running.method, running.drafter, running.num_speculative_tokens) == ("ngram", None, 3)
    assert (running.enforce_eager, running.enable_prefix_caching) == (True, None)


def test_speculation_in_an_unknown_form_is_not_taken_for_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Initializing a V1 LLM engine (v9) with config: model='/m', speculative_config=Other(k=3), x=1\n")
    running = running_engine(log)
    assert running is not None
    assert not running.speculation_stated
    log.write_text("nothing of the kind\n")
    assert running_engine(log) is None


def test_thread_binding_is_what_the_log_says_below_its_header(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    prefix = "(EngineCore pid=27099) INFO 11-29 20:11:51 [ompmultiprocessing.py:185] "
    lines = ["OpenMP thread binding info: ", "\tlocal_world_size=1, reserve_cpu_num=1", "\tlocal_rank=0, core ids=[0]"]
    log.write_text("".join(f"{prefix}{line}\n" for line in (*lines, "Loading weights", "\tnot of it")))

    assert thread_binding(log) == "local_world_size=1, reserve_cpu_num=1; local_rank=0, core ids=[0]"


def test_log_without_thread_binding_tells_none(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("Loading weights\n")

    assert thread_binding(log) is None
