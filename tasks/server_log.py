"""What a vLLM server's log tells: why it ended, and the configuration it really runs."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from orchestrator.config import Strict

_TAIL_BYTES = 512 * 1024
_HEAD_BYTES = 4 * 1024 * 1024
_MAX_MESSAGE_CHARS = 400
_EMPTY = "the log is empty"

_PROCESS_PREFIX = re.compile(r"^\([\w-]+ pid=\d+\) ?")
_LEVEL_PREFIX = re.compile(r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?")
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|NotFound)(?P<message>: .+)?$")
_USAGE_ERROR = re.compile(r"^[\w .-]+: error: .+")
_VALIDATION = re.compile(r"^(?:\w+\.)*ValidationError: \d+ validation errors? for (?P<subject>\w+)$")
_WRAPPERS = re.compile(r"root cause|stack trace|initialization failed|CancelledError|KeyboardInterrupt|SystemExit")
"""Exceptions that only say that another one came before."""

_ENGINE_LINE = re.compile(r"Initializing a V1 LLM engine \(v(?P<version>\S+)\) with config: (?P<fields>.*)")
_SPECULATION = re.compile(
    r"\bspeculative_config=(?:None|SpeculativeConfig\("
    r"method='(?P<method>[^']*)', model=(?:None|'(?P<model>[^']*)'), num_spec_tokens=(?P<k>\d+)\))"
)


_PATCH = re.compile(r"specsweep patch (?P<name>\w+) is applied")
"""What infra/engine/patches logs in every process of the engine."""
_NO_TRITON = re.compile(r"Disabling Triton|Triton (?:is )?not installed")
_BINDING_HEADER = "OpenMP thread binding info:"


class RunningEngine(Strict):
    """vLLM's own account of itself at start; None is `not stated there`."""

    model: str | None
    dtype: str | None
    max_model_len: int | None
    enforce_eager: bool | None
    enable_prefix_caching: bool | None
    speculation_stated: bool
    """False where the line has no speculative_config in the form we know."""
    method: str | None
    """None for a server without speculation."""
    drafter: str | None
    num_speculative_tokens: int | None


def useful_line(log_path: Path, start: int = 0) -> str:
    """The line after byte `start` that explains best why the server ended (see `root_cause`)."""
    return root_cause(_tail(log_path, start))


def last_line(log_path: Path, start: int = 0) -> str:
    """The last line after byte `start` that says anything, without vLLM's prefixes."""
    return _shorten(_last([_strip(line)[1].strip() for line in _tail(log_path, start)]) or _EMPTY)


def root_cause(lines: Sequence[str]) -> str:
    """The last exception that is not a wrapper around an earlier one, else the last error, else the last line.

    vLLM's processes log one failure several times: the worker's exception, then the engine core's, then the API
    server's "Engine core initialization failed. See root cause above". Source: logs of vLLM 0.32.
    """
    stripped = [_strip(line) for line in lines]
    texts = [text for _, text in stripped]
    exceptions = [i for i, text in enumerate(texts) if _EXCEPTION.match(text) and not _WRAPPERS.search(text)]
    with_message = [i for i in exceptions if ": " in texts[i]]
    if with_message:
        return _shorten(_with_detail(texts, with_message[-1]))
    found = (
        _last([text for text in texts if _USAGE_ERROR.match(text)])
        or _last([texts[i] for i in exceptions])
        or _last([text for level, text in stripped if level in ("ERROR", "CRITICAL") and text[:1].strip()])
        or _last([text.strip() for text in texts])
    )
    return _shorten(found or _EMPTY)


def running_engine(log_path: Path, start: int = 0) -> RunningEngine | None:
    """The configuration in the "Initializing a V1 LLM engine" line after byte `start`; None without such a line."""
    line = _ENGINE_LINE.search(_head(log_path, start))
    if line is None:
        return None
    fields = line["fields"]
    speculation = _SPECULATION.search(fields)
    k = speculation["k"] if speculation else None
    max_seq_len = _field(fields, "max_seq_len")
    return RunningEngine(
        model=_field(fields, "model"),
        dtype=(_field(fields, "dtype") or "").removeprefix("torch.") or None,
        max_model_len=int(max_seq_len) if max_seq_len else None,
        enforce_eager=_flag(fields, "enforce_eager"),
        enable_prefix_caching=_flag(fields, "enable_prefix_caching"),
        speculation_stated=speculation is not None,
        method=speculation["method"] if speculation else None,
        drafter=speculation["model"] if speculation else None,
        num_speculative_tokens=int(k) if k else None,
    )


def thread_binding(log_path: Path) -> str | None:
    """The lines below vLLM's "OpenMP thread binding info:", in one: `...; local_rank=0, core ids=[0-3]; ...`.

    None without such lines. Source: vllm/utils/ompmultiprocessing.py of vLLM 0.32.
    """
    lines = [_strip(line)[1] for line in _head(log_path, 0).splitlines()]
    header = next((at for at, line in enumerate(lines) if line.startswith(_BINDING_HEADER)), None)
    if header is None:
        return None
    details = itertools.takewhile(lambda line: line.startswith("\t"), lines[header + 1 :])
    return "; ".join(line.strip() for line in details) or None


def applied_patches(log_path: Path, start: int = 0) -> tuple[str, ...]:
    """Names of the repairs that the engine says it runs with."""
    return tuple(sorted({found["name"] for found in _PATCH.finditer(_head(log_path, start))}))


def has_triton(log_path: Path, start: int = 0) -> bool:
    """Whether vLLM found a Triton that it can use: it says so only where it did not (triton_utils/importing.py)."""
    return _NO_TRITON.search(_head(log_path, start)) is None


def _head(log_path: Path, start: int) -> str:
    with log_path.open("rb") as log:
        log.seek(start)
        return log.read(_HEAD_BYTES).decode(errors="replace")


def _tail(log_path: Path, start: int) -> list[str]:
    with log_path.open("rb") as log:
        log.seek(max(start, log_path.stat().st_size - _TAIL_BYTES))
        return log.read().decode(errors="replace").splitlines()


def _field(fields: str, name: str) -> str | None:
    match = re.search(rf"(?:^|, ){name}=(?:'([^']*)'|([^,\s]+))", fields)
    return (match[1] or match[2]) if match else None


def _flag(fields: str, name: str) -> bool | None:
    return {"True": True, "False": False}.get(_field(fields, name) or "")


def _strip(line: str) -> tuple[str, str]:
    """Level (empty for none) and text of a log line; the text keeps its indentation, which marks frames."""
    line = _PROCESS_PREFIX.sub("", line.rstrip())
    prefix = _LEVEL_PREFIX.match(line)
    return (prefix[1], line[prefix.end() :]) if prefix else ("", line)


def _with_detail(texts: Sequence[str], index: int) -> str:
    """pydantic puts what is wrong on the lines after the exception's own: perhaps a field, then an indented message."""
    validation = _VALIDATION.match(texts[index])
    if validation is None:
        return texts[index]
    parts = [validation["subject"]]
    for text in texts[index + 1 : index + 3]:
        parts.append(text.strip().partition(" [type=")[0])
        if text.startswith(" "):
            break
    return ": ".join(parts)


def _last(texts: Sequence[str]) -> str | None:
    return next((text for text in reversed(texts) if text), None)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:_MAX_MESSAGE_CHARS]}..."
