"""Folders of files in S3: with SHA-256 checksums, verified when read, and never overwritten.

Beside the files lies SHA256SUMS in the format of coreutils (`sha256sum --check SHA256SUMS`). It is written last, so a
prefix that has one is whole. Credentials, region and endpoint are boto3's own (environment, profile or instance role).
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from orchestrator.errors import ArtifactsFailed
from orchestrator.safe_names import below

SUMS = "SHA256SUMS"
PART_BYTES = 64 * 1024 * 1024
"""Larger files go up in parts of this size."""
_TAKEN = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
_ABSENT = {"404", "NoSuchKey", "NotFound"}
_SUM_LINE = re.compile(r"(?P<sum>[0-9a-f]{64}) [ *](?P<name>.+)")

Sums = Mapping[str, str]
"""Name below the folder, with `/` -> SHA-256 of the file, hex."""


def upload_folder(folder: Path, uri: str, *, part_bytes: int = PART_BYTES) -> Sums:
    """Every file below `folder` (links count as what they lead to) to `s3://bucket/prefix`, then SHA256SUMS.

    Nothing is overwritten: an object that is there with the same content is left, so that a call can be repeated.

    Raises:
        ArtifactsFailed: an object is there with other content, or S3 cannot be used.
    """
    store = _Store(uri, part_bytes)
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / SUMS
    }
    if not files:
        raise ArtifactsFailed(f"{folder}: no files there to upload to {uri}")
    sums = {name: sha256_of(path) for name, path in files.items()}
    for name, path in files.items():
        store.put_file(name, path, sums[name])
    store.put_text(SUMS, sums_text(sums))
    return sums


def download_folder(uri: str, folder: Path) -> Sums:
    """All files that SHA256SUMS of `s3://bucket/prefix` lists, verified; those that are there already are not fetched.

    A file appears under its name only once it is verified, so what a failed call leaves behind is sound.

    Raises:
        ArtifactsFailed: nothing there, a checksum is wrong, a name leads out of `folder`, or S3 cannot be used.
    """
    store = _Store(uri)
    sums = read_sums(store.read_text(SUMS), f"{uri}/{SUMS}")
    for name, sum_ in sums.items():
        path = below(folder, name)
        if path.is_file() and sha256_of(path) == sum_:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        try:
            store.get_file(name, part)
            if (found := sha256_of(part)) != sum_:
                raise ArtifactsFailed(
                    f"{uri}/{name} is damaged: {SUMS} says {sum_}, but its SHA-256 is {found}; upload it anew"
                )
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    return sums


def sums_text(sums: Sums) -> str:
    """As `read_sums` reads it."""
    return "".join(f"{sum_}  {name}\n" for name, sum_ in sums.items())


def read_sums(text: str, where: str) -> Sums:
    """The lines of a SHA256SUMS file.

    Raises:
        ArtifactsFailed: a line is none; `where` says whose.
    """
    lines = [_SUM_LINE.fullmatch(line) for line in text.splitlines()]
    if not lines or None in lines:
        raise ArtifactsFailed(f"{where}: not a list of SHA-256 checksums; upload the folder anew")
    return {line["name"]: line["sum"] for line in lines if line}


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Store:
    """One prefix of a bucket."""

    def __init__(self, uri: str, part_bytes: int = PART_BYTES) -> None:
        parts = urlsplit(uri)
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise ArtifactsFailed(f"expected s3://bucket/prefix, but got {uri!r}")
        self.uri, self.bucket, self.prefix = uri.rstrip("/"), parts.netloc, parts.path.strip("/")
        self._transfer = TransferConfig(multipart_threshold=part_bytes, multipart_chunksize=part_bytes)
        with _named_errors(self.uri):
            self._s3 = boto3.client("s3", config=Config(connect_timeout=5, retries={"total_max_attempts": 3}))
        # boto3's transfers know no conditional writes, the calls they make do.
        for operation in ("PutObject", "CompleteMultipartUpload"):
            self._s3.meta.events.register(f"provide-client-params.s3.{operation}", _only_if_absent)

    def put_file(self, name: str, path: Path, sha256: str) -> None:
        send = partial(self._s3.upload_file, str(path), Config=self._transfer)
        extra = {"Metadata": {"sha256": sha256}, "ChecksumAlgorithm": "SHA256"}
        self._put(name, sha256, lambda key: send(self.bucket, key, ExtraArgs=extra))

    def put_text(self, name: str, text: str) -> None:
        body = text.encode()
        digest = hashlib.sha256(body)
        checks = {
            "ChecksumSHA256": base64.b64encode(digest.digest()).decode(),
            "Metadata": {"sha256": digest.hexdigest()},
        }
        self._put(
            name, digest.hexdigest(), lambda key: self._s3.put_object(Bucket=self.bucket, Key=key, Body=body, **checks)
        )

    def _put(self, name: str, sha256: str, send: Any) -> None:
        key = self._key(name)
        with _named_errors(f"{self.uri}/{name}"):
            found = self._sha256_there(key)
            if found is None:
                try:
                    send(key)
                except (ClientError, Boto3Error) as error:
                    if not _is_taken(error):
                        raise
                    found = self._sha256_there(key)
        if found not in (None, sha256):
            raise ArtifactsFailed(
                f"{self.uri}/{name} is there already with other content, and nothing is overwritten; "
                "choose another prefix, or remove it yourself"
            )

    def _sha256_there(self, key: str) -> str | None:
        """Of the object's content; None where there is no such object."""
        try:
            head = self._s3.head_object(Bucket=self.bucket, Key=key)
        except ClientError as error:
            if _code(error) in _ABSENT:
                return None
            raise
        stated = head["Metadata"].get("sha256")
        if stated:
            return str(stated)
        digest = hashlib.sha256()
        for chunk in self._s3.get_object(Bucket=self.bucket, Key=key)["Body"].iter_chunks(1024 * 1024):
            digest.update(chunk)
        return digest.hexdigest()

    def read_text(self, name: str) -> str:
        with _named_errors(f"{self.uri}/{name}"):
            return str(self._s3.get_object(Bucket=self.bucket, Key=self._key(name))["Body"].read().decode())

    def get_file(self, name: str, path: Path) -> None:
        with _named_errors(f"{self.uri}/{name}"):
            self._s3.download_file(self.bucket, self._key(name), str(path), Config=self._transfer)

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name


def _only_if_absent(params: dict[str, Any], **event: object) -> None:
    params["IfNoneMatch"] = "*"


def _code(error: BaseException) -> str:
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""


def _is_taken(error: Exception) -> bool:
    """Transfers wrap what the call said."""
    return _code(error) in _TAKEN or any(f"({code})" in str(error) for code in _TAKEN)


@contextmanager
def _named_errors(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArtifactsFailed(f"{where}: {error}") from error
    except (BotoCoreError, ClientError, Boto3Error) as error:
        if _code(error) in _ABSENT:
            raise ArtifactsFailed(f"{where}: no such object; is the prefix right, and its upload finished?") from error
        raise ArtifactsFailed(
            f"{where}: {error}; check the bucket's name and region, and that this machine's AWS credentials allow it"
        ) from error
