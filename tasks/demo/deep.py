"""The padded target in the user's cache: built once per machine, whoever comes first."""

import hashlib
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

from orchestrator.errors import ConfigError
from orchestrator.ids import content_id
from tasks.demo.recipe.padding import Padding, pad_target


def cached_deep_target(source: Path, padding: Padding | None = None, cache: Path | None = None) -> Path:
    """The folder of the padded copy of `source`, built if it is not there.

    A folder under its final name is complete: it is built under another name and renamed. A lock that ends with its
    process lets one build at a time, so what an earlier, killed build left behind is nobody's and is removed.

    Args:
        source: folder of the target to pad.
        padding: sizes; None takes the defaults, about 100 M parameters.
        cache: where to keep it; None takes `cache_folder()`.

    Raises:
        ConfigError: the cache cannot be written.
    """
    padding = padding or Padding()
    cache = cache or cache_folder()
    final = cache / f"demo-deep-{_identity(source, padding)}"
    try:
        if not final.is_dir():
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{final}.lock"):
                _build(source, final, padding)
    except OSError as error:
        raise ConfigError(
            f"demo://deep: cannot build the padded target (200 MB) in {cache}: {error}; "
            "free the disk, or point XDG_CACHE_HOME elsewhere"
        ) from error
    return final


def cache_folder() -> Path:
    """`specsweep` under $XDG_CACHE_HOME, which counts only if absolute (XDG base directory specification)."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "specsweep"


def _build(source: Path, final: Path, padding: Padding) -> None:
    if final.is_dir():  # somebody else built it while we waited for the lock
        return
    unfinished = final.with_name(f"{final.name}.building")
    shutil.rmtree(unfinished, ignore_errors=True)
    pad_target(source, unfinished, padding)
    unfinished.rename(final)


def _identity(source: Path, padding: Padding) -> str:
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in source.iterdir() if path.is_file()}
    return content_id({"padding": asdict(padding), "files": files})
