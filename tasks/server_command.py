"""The engine's command line and environment: functions of the arm's ServerSpec, as it is `located` on this node."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from ctypes.util import find_library
from pathlib import Path
from types import MappingProxyType

from orchestrator.errors import EngineNotFound
from orchestrator.ids import canonical_json
from orchestrator.records import ServerSpec
from tasks import early_interpreters
from tasks.demo import resolve_model

OPENMP = "libiomp5.so"
TCMALLOC = "libtcmalloc_minimal.so.4"
"""As the loader knows them."""
_TCMALLOC = "tcmalloc_minimal"
_KEPT_VLLM_VARIABLES = frozenset(
    {"VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_ASSETS_CACHE", "VLLM_TARGET_DEVICE", "VLLM_LOGGING_CONFIG_PATH"}
)
_DROPPED_VARIABLES = frozenset({"PYTHONPATH", "PYTHONHOME"})
"""They belong to the orchestrator's interpreter."""
_DROPPED_PREFIXES = ("RAY_", "OMP_", "GOMP_", "KMP_", "MKL_")
"""Ray sets OMP_NUM_THREADS in its workers; what a shell sets of the others would be in no exported file."""


def located(spec: ServerSpec, folders: Mapping[str, str] = MappingProxyType({})) -> ServerSpec:
    """`spec` with models that lie on this node by their absolute paths; a Hugging Face id stays.

    Args:
        folders: model as the spec names it -> its files, where they were fetched (tasks.model_files).
    """
    config = spec.speculative_config
    if config is not None and isinstance(drafter := config.get("model"), str):
        config = config | {"model": _place(drafter, folders)}
    return spec.model_copy(update={"target": _place(spec.target, folders), "speculative_config": config})


def _place(model: str, folders: Mapping[str, str]) -> str:
    found = folders.get(model) or resolve_model(model)
    return str(Path(found).expanduser().absolute()) if is_local(found) else found


def server_argv(spec: ServerSpec, *, host: str, port: int) -> list[str]:
    """The full `vllm serve` command; `server.extra_args` come last, where they override.

    Raises:
        EngineNotFound: the command's executable does not exist.
    """
    at = ["--host", host, "--port", str(port), "--disable-uvicorn-access-log"]
    return [*_started_early(spec), "serve", spec.target, *at, *serve_arguments(spec), *spec.extra_args]


def engine_command(spec: ServerSpec) -> list[str]:
    """`server.command`, else `docker` for containers, else the `vllm` installed beside the running interpreter.

    Raises:
        EngineNotFound: the executable does not exist or is not on PATH.
    """
    in_container = spec.launcher == "docker"
    own = "docker" if in_container else str(Path(sys.executable).parent / "vllm")
    command = list(spec.command) if spec.command else [own]
    if shutil.which(command[0]) is None and in_container:
        raise EngineNotFound(f"server.launcher=docker needs {command[0]!r}, which is no executable here")
    if shutil.which(command[0]) is None:
        where = "server.command names" if spec.command else "this environment has no vLLM:"
        raise EngineNotFound(
            f"{where} {command[0]!r}, which is no executable here; install the engine with `make setup`, or name "
            'another one, for example server.command=["/opt/vllm/bin/vllm"]'
        )
    return command


def _started_early(spec: ServerSpec) -> list[str]:
    """The engine's command; for the vLLM beside this interpreter, by way of tasks.early_interpreters."""
    command = engine_command(spec)
    return command if spec.command else [sys.executable, "-P", early_interpreters.__file__]


def serve_arguments(spec: ServerSpec) -> list[str]:
    """What follows `vllm serve MODEL` because of the arm alone: no host, no port, no `server.extra_args`."""
    prefix_caching = "--enable-prefix-caching" if spec.enable_prefix_caching else "--no-enable-prefix-caching"
    arguments = [
        *("--dtype", spec.dtype),
        *("--max-model-len", str(spec.max_model_len)),
        *("--max-num-seqs", str(spec.max_num_seqs)),
        prefix_caching,
    ]
    if spec.tensor_parallel_size > 1:
        arguments += ["--tensor-parallel-size", str(spec.tensor_parallel_size)]
    if spec.max_num_batched_tokens is not None:
        arguments += ["--max-num-batched-tokens", str(spec.max_num_batched_tokens)]
    if spec.enable_chunked_prefill is not None:
        arguments.append("--enable-chunked-prefill" if spec.enable_chunked_prefill else "--no-enable-chunked-prefill")
    if spec.enforce_eager:
        arguments.append("--enforce-eager")
    if spec.revision and not is_local(spec.target):
        arguments += ["--revision", spec.revision]
    if spec.trust_remote_code:
        arguments.append("--trust-remote-code")
    if spec.speculative_config is not None:
        arguments += ["--speculative-config", canonical_json(spec.speculative_config)]
    return arguments


def server_env(
    spec: ServerSpec,
    *,
    api_key: str,
    preload: Sequence[str],
    inherited: Mapping[str, str],
    sockets_dir: Path | None = None,
) -> dict[str, str]:
    """The engine's whole environment: `inherited` without what would silently change the arm, the arm's own on top.

    Args:
        preload: libraries, as paths or names that the loader finds (see `preloaded_libraries`).
        inherited: the environment of the process that starts the engine. VLLM_* (but for its folders), RAY_*
            and the threading libraries' variables are dropped: what shapes a measurement comes from `server.env`,
            which is part of the arm.
        sockets_dir: for the sockets between vLLM's processes, which it never removes; None: TMPDIR, as vLLM has it.
    """
    env = {name: value for name, value in inherited.items() if not _is_dropped(name)}
    # The container image already preloads OpenMP together with an allocator: keep what is there.
    there = env.get("LD_PRELOAD", "")
    missing = [library for library in preload if Path(library).name not in there]
    own = arm_env(spec, ":".join(filter(None, [*missing, there])) if missing else None)
    env |= {"VLLM_API_KEY": api_key, "PYTHONUNBUFFERED": "1"}
    if sockets_dir is not None:
        env["VLLM_RPC_BASE_PATH"] = str(sockets_dir)  # vLLM leaves it out of what its compile cache is keyed by
    return env | own


def arm_env(spec: ServerSpec, ld_preload: str | None = None) -> dict[str, str]:
    """What an arm sets in the environment of its engine, where it is measured and where it is put into service alike.

    Args:
        spec: as it is `located`: an engine whose models are all folders is kept from the hub.
        ld_preload: None leaves the variable to what starts the engine.
    """
    env = {"VLLM_CPU_KVCACHE_SPACE": f"{spec.kv_cache_gib:g}", "VLLM_NO_USAGE_STATS": "1"}
    if ld_preload is not None:
        env["LD_PRELOAD"] = ld_preload
    if spec.omp_threads_bind is not None:
        env["VLLM_CPU_OMP_THREADS_BIND"] = spec.omp_threads_bind
    if len(local_models(spec)) == len(_models(spec)):
        env["HF_HUB_OFFLINE"] = "1"
    return env | spec.env | ({"VLLM_PLUGINS": plugins(spec)} if spec.patches else {})


def local_models(spec: ServerSpec) -> list[str]:
    """Target and drafter of a located `spec`, as far as they are folders."""
    return [model for model in _models(spec) if is_local(model)]


def mounted_folders(spec: ServerSpec) -> list[str]:
    """What a container must be given to see the models of a located `spec`: of one in the Hugging Face cache all of
    it, whose snapshots are links."""
    folders = map(Path, local_models(spec))
    whole = (folder.parents[1] if folder.parent.name == "snapshots" else folder for folder in folders)
    return list(dict.fromkeys(map(str, whole)))


def _models(spec: ServerSpec) -> list[str]:
    drafter = (spec.speculative_config or {}).get("model")
    return [spec.target, *([str(drafter)] if drafter else [])]


def plugins(spec: ServerSpec) -> str:
    """VLLM_PLUGINS: the patches, and what `server.env` names besides. Without either vLLM loads all that it finds."""
    return ",".join([*filter(None, [spec.env.get("VLLM_PLUGINS")]), *spec.patches])


def preloaded_libraries(spec: ServerSpec) -> list[str]:
    """What the arm asks to preload, as far as this node has it: OpenMP is left out where there is none, since every
    arm asks for it, but an allocator that was asked for must be there.

    Raises:
        EngineNotFound: the allocator is missing.
    """
    openmp = openmp_library(spec)
    found = [str(openmp)] if openmp else []
    if spec.preload_tcmalloc:
        allocator = find_library(_TCMALLOC)
        if allocator is None:
            raise EngineNotFound(
                f"server.preload_tcmalloc: this node has no lib{_TCMALLOC}; install it (Debian, Ubuntu: "
                "apt-get install libtcmalloc-minimal4), or leave preload_tcmalloc false"
            )
        found.append(allocator)
    return found


def openmp_library(spec: ServerSpec) -> Path | None:
    """libiomp5.so of the engine's own environment (`<env>/bin/vllm` -> `<env>/lib`); None where there is none."""
    executable = shutil.which(engine_command(spec)[0])
    if not spec.preload_openmp or executable is None:
        return None
    # A linked `vllm` (pipx, uv tool) leads to its environment; a venv's `python` link leads out of it: try both.
    places = [Path(executable).absolute(), Path(executable).resolve()]
    candidates = [place.parent.parent / "lib" / OPENMP for place in places]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def is_local(model: str) -> bool:
    """Whether `model` names a folder, which may be missing, rather than a Hugging Face id."""
    return model.startswith(("/", "./", "../", "~")) or Path(model).is_dir()


def _is_dropped(name: str) -> bool:
    if name.startswith("VLLM_"):
        return name not in _KEPT_VLLM_VARIABLES
    return name.startswith(_DROPPED_PREFIXES) or name in _DROPPED_VARIABLES
