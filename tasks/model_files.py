"""A model's files on the node that serves it: fetched once, at one commit, before anything is measured.

From the Hugging Face hub into its cache, or, where the sweep names a mirror, from S3 into a folder beside that. The
engine is then given folders, so that it needs no network and cannot take another revision.
"""

import errno
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from orchestrator.config import Strict
from orchestrator.errors import ArtifactsFailed, ModelFilesUnavailable
from orchestrator.records import ServerSpec, VisitRecord
from tasks.demo import resolve_model
from tasks.local_model import content_of
from tasks.server_command import is_local

FETCH_TIMEOUT_S = 7200.0
"""How long one process waits for another one on its node that fetches the same files."""
NOT_SERVED = ("original/*", "onnx/*", "*.pth", "*.gguf", "*.onnx", "*.msgpack", "*.h5", "*.tflite", "*.ot")
"""The same weights in formats that vLLM does not load here."""
WHOLE = "SHA256SUMS"
"""In a folder fetched from a mirror: it was verified to the last file."""

_COMMIT = re.compile(r"[0-9a-f]{40}")

Revisions = Mapping[str, str]
"""Hugging Face id -> commit hash."""


class FetchedModels(Strict):
    folders: dict[str, str]
    """Reference as the arm has it -> folder on this node."""
    revisions: dict[str, str]
    """Of those that came from the hub or a mirror; empty where all are local."""
    local: dict[str, str]
    """Of the others: reference -> identity of the files, where they are."""
    fetch_s: float | None
    """None where there was nothing to fetch."""


def references(spec: ServerSpec) -> dict[str, str | None]:
    """Target and drafter of a server, each with the revision that the configuration pins."""
    drafter = spec.speculative_config or {}
    found = {spec.target: spec.revision}
    if isinstance(model := drafter.get("model"), str):
        revision = drafter.get("revision")
        found[model] = revision if isinstance(revision, str) else None
    return found


def is_remote(reference: str) -> bool:
    """Whether it is the id of a model on the hub, rather than a folder or the shipped pair."""
    return not is_local(resolve_model(reference))


def fetch_models(spec: ServerSpec, revisions: Revisions, mirror: str | None) -> FetchedModels:
    """Have the files of target and drafter on this node.

    Args:
        revisions: the sweep's commit of every model that is not local.
        mirror: `s3://bucket/prefix` to fetch from in place of the hub; None: the hub, or its cache.

    Raises:
        ModelFilesUnavailable: with what to do.
    """
    begun = time.monotonic()
    folders, found = {}, {}
    for reference in references(spec):
        if not is_remote(reference):
            folders[reference] = resolve_model(reference)
            continue
        found[reference] = revisions[reference]
        folders[reference] = str(fetch_model(reference, revisions[reference], mirror))
    fetch_s = time.monotonic() - begun if found else None
    return FetchedModels(folders=folders, revisions=found, local=local_contents([spec]), fetch_s=fetch_s)


def local_contents(servers: Iterable[ServerSpec]) -> dict[str, str]:
    """Reference -> identity of the files, of every target and drafter that is a folder of this machine."""
    names = {name for spec in servers for name in references(spec) if not is_remote(name)}
    found = {name: content_of(Path(resolve_model(name)).expanduser()) for name in sorted(names)}
    return {name: content for name, content in found.items() if content is not None}


def fetch_model(model: str, revision: str, mirror: str | None = None) -> Path:
    """The folder with the model's files at a commit; fetched by one process of this node at a time.

    Raises:
        ModelFilesUnavailable: with what to do.
    """
    cache = _cache()
    locks = cache / ".locks"
    with _named_errors(model, revision):
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"specsweep-{mirror_name(model)}.lock", timeout=FETCH_TIMEOUT_S):
            if mirror is None:
                return _from_hub(model, revision)
            return _from_mirror(model, revision, mirror, cache / "specsweep")


def pin_revisions(servers: Iterable[ServerSpec], visits: Iterable[VisitRecord]) -> dict[str, str]:
    """One commit for every model that is not local, the same on every node and over every continuation of a sweep.

    A commit in the configuration is taken; else what earlier `visits` of the sweep served, though the hub may have
    moved on; else what the revision is now.

    Raises:
        ModelFilesUnavailable: neither hub nor cache knows it.
    """
    wanted = {name: revision for spec in servers for name, revision in references(spec).items() if is_remote(name)}
    served: dict[str, str] = {}
    for visit in visits:
        served |= visit.model_revisions
    return {
        name: revision
        if revision and _COMMIT.fullmatch(revision)
        else served.get(name) or resolve_revision(name, revision)
        for name, revision in wanted.items()
    }


def resolve_revision(model: str, revision: str | None) -> str:
    """The commit that `revision` (a commit, branch or tag; None: the default branch) of a model is now.

    Asks the hub; where it does not answer, what this machine's cache has.

    Raises:
        ModelFilesUnavailable: neither knows it.
    """
    if revision and _COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HTTPError,  # of the HTTP library that huggingface_hub is built on
    )

    with _named_errors(model, revision):
        try:
            commit = HfApi().model_info(model, revision=revision, timeout=10).sha
            assert commit is not None
            _remember_revision(model, revision, commit)
            return str(commit)
        except (OSError, HTTPError) as error:
            # Of an answer that refuses the cache cannot make up for.
            cached = None if isinstance(error, HfHubHTTPError) else _cached_revision(model, revision)
            if cached is None:
                raise
            return cached


def fill_mirror(models: Mapping[str, str | None], mirror: str) -> Iterator[str]:
    """Put `models` (Hugging Face id -> revision; local ones are passed over) into a mirror; yields where each one is.

    Raises:
        ModelFilesUnavailable, ArtifactsFailed: with what to do.
    """
    from orchestrator.artifacts import upload_folder

    for model, revision in models.items():
        if is_remote(model):
            commit = resolve_revision(model, revision)
            uri = f"{mirror.rstrip('/')}/{mirror_name(model)}/{commit}"
            upload_folder(fetch_model(model, commit), uri)
            yield uri


def mirror_name(model: str) -> str:
    """`org--name`: its folder in a mirror."""
    return model.replace("/", "--")


def _from_hub(model: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    return Path(snapshot_download(model, revision=revision, ignore_patterns=list(NOT_SERVED)))


def _from_mirror(model: str, revision: str, mirror: str, under: Path) -> Path:
    from orchestrator.artifacts import download_folder, sums_text

    folder = under / mirror_name(model) / revision
    if not (folder / WHOLE).exists():
        sums = download_folder(f"{mirror.rstrip('/')}/{mirror_name(model)}/{revision}", folder)
        (folder / WHOLE).write_text(sums_text(sums), encoding="utf-8")
    return folder


def _cache() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _ref(model: str, revision: str | None) -> Path:
    """Where the cache keeps the commit that a branch or tag was when it was last asked for."""
    return _cache() / f"models--{mirror_name(model)}" / "refs" / (revision or "main")


def _cached_revision(model: str, revision: str | None) -> str | None:
    ref = _ref(model, revision)
    return ref.read_text().strip() if ref.is_file() else None


def _remember_revision(model: str, revision: str | None, commit: str) -> None:
    """As huggingface_hub itself does where it is asked for a branch; here it is always asked for a commit."""
    ref = _ref(model, revision)
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)


@contextmanager
def _named_errors(model: str, revision: str | None) -> Iterator[None]:
    """What huggingface_hub raises, in the order from narrow to wide, as one line that says what to do."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        HTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    at = f"{model} at {revision or 'its default branch'}"
    try:
        yield
    except GatedRepoError as error:
        raise ModelFilesUnavailable(
            f"{at}: the model is gated; accept its terms on the hub, and set HF_TOKEN in the environment of every node"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelFilesUnavailable(f"{at}: the hub has the model, but no such revision; correct it") from error
    except RepositoryNotFoundError as error:
        raise ModelFilesUnavailable(
            f"{at}: the hub has no such model, or it is private; check the name, and HF_TOKEN on every node"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise ModelFilesUnavailable(
            f"{at}: the hub cannot be reached and the files are not (all) in {_cache()}; fetch them there once with a "
            "network, pin the commit as the revision, name a mirror, or give a local path"
        ) from error
    except (HFValidationError, Timeout, ArtifactsFailed) as error:
        raise ModelFilesUnavailable(f"{at}: {_first_line(error)}") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ModelFilesUnavailable(
                f"{at}: no space left on this node's disk for {_cache()}; free some, or put the cache elsewhere by "
                "HF_HOME"
            ) from error
        raise ModelFilesUnavailable(f"{at}: the files cannot be had: {_first_line(error)}") from error
    except HTTPError as error:
        raise ModelFilesUnavailable(f"{at}: the hub does not answer: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
