"""Which content a local model folder has: its path stays the same when a newer checkpoint is put there."""

import hashlib
from pathlib import Path

WHOLE_BYTES = 32 * 1024 * 1024
"""Files up to this size are read whole."""
NUM_SAMPLES, SAMPLE_BYTES = 64, 64 * 1024
"""Of a larger one: at even distances, its beginning (a safetensors header) and its end among them. Trained weights
differ everywhere."""
_NOT_SERVED = {".md", ".log", ".lock", ".png"}


def content_of(folder: Path) -> str | None:
    """Identity of the files, the same on every machine that has the same ones; None where there is no such folder.

    By names, sizes and contents, whatever the time stamps say.
    """
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not is_hidden and path.suffix not in _NOT_SERVED:
            digest.update(f"{name.as_posix()}\0{path.stat().st_size}\0".encode())
            _add(digest, path)
    return digest.hexdigest()[:16]


def _add(digest: "hashlib._Hash", path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE_BYTES:
            digest.update(file.read())
            return
        for number in range(NUM_SAMPLES):
            file.seek((size - SAMPLE_BYTES) * number // (NUM_SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
