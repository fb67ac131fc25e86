"""The small trained pair that is shipped with the project, under `demo://` names.

| name | what |
|---|---|
| demo://target | Qwen3 target, 2.8 M parameters |
| demo://dflash | its DFlash drafter, 1.4 M parameters, block of 16 |
| demo://deep | the target padded to 99.5 M parameters with the same output (`recipe/padding.py`), built at first use |
| demo://prompts/{code,math,chat}.jsonl | 256 prompts each, column `prompt` |

Importing this loads neither torch nor numpy.
"""

from pathlib import Path

from orchestrator.errors import ConfigError

SCHEME = "demo://"
_HERE = Path(__file__).parent
_DEEP = "deep"
_SHIPPED_MODELS = ("target", "dflash")
_PROMPT_FILES = ("prompts/code.jsonl", "prompts/math.jsonl", "prompts/chat.jsonl")


def resolve_model(ref: str) -> str:
    """The local folder of a `demo://` model; every other reference comes back unchanged.

    `demo://deep` is built on this machine at first use (some seconds, 200 MB under the user's cache folder).

    Raises:
        ConfigError: unknown `demo://` name, or the padded target cannot be written.
    """
    if not ref.startswith(SCHEME):
        return ref
    name = _known_name(ref, "model", (*_SHIPPED_MODELS, _DEEP))
    if name != _DEEP:
        return str(_HERE / name)
    from tasks.demo.deep import cached_deep_target  # numpy only for those who need it

    return str(cached_deep_target(_HERE / "target"))


def resolve_data_file(ref: str) -> str:
    """The local path of a `demo://` prompt file; every other reference comes back unchanged.

    Raises:
        ConfigError: unknown `demo://` name.
    """
    if not ref.startswith(SCHEME):
        return ref
    return str(_HERE / _known_name(ref, "data file", _PROMPT_FILES))


def _known_name(ref: str, kind: str, known: tuple[str, ...]) -> str:
    name = ref.removeprefix(SCHEME)
    if name not in known:
        names = ", ".join(SCHEME + name for name in known)
        raise ConfigError(f"unknown demo {kind} {ref!r}; choose one of: {names}")
    return name
