"""Names that come out of data (a node's answer, a ledger, a list of checksums) before a file is named after them."""

import re
from pathlib import Path, PurePosixPath

from orchestrator.errors import UnsafeName

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+=-]{0,199}")


def file_name(name: str) -> str:
    """`name` itself, once it is sure that it names a file of the folder it is put in, on any file system.

    Raises:
        UnsafeName: it has a separator, begins with a dot, or has anything else than letters, digits and `._@+=-`.
    """
    if not _FILE_NAME.fullmatch(name):
        raise UnsafeName(
            f"{name!r} cannot name a file here; whoever sent it, or wrote it into the ledger, is not this tool"
        )
    return name


def below(folder: Path, name: str) -> Path:
    """The path of `name`, which may have `/` in it, below `folder`.

    Raises:
        UnsafeName: it leads elsewhere.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise UnsafeName(f"{name!r} leads out of {folder}")
    path = folder / name
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise UnsafeName(f"{name!r} leads out of {folder} by a link")
    return path
