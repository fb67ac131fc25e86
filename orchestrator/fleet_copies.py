"""Copies of a sweep in the fleet's bucket, from which a new head continues it: what a sweep uploaded at its end, and
what a head that ended copied below rescued/. A head that lives has them all in its own folder."""

import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock
from rich.console import Console

from orchestrator.artifacts import SUMS, download_folder
from orchestrator.config import Strict, SweepConfig
from orchestrator.errors import ConfigError, LedgerError
from orchestrator.fleet_aws import Aws, aws_errors
from orchestrator.safe_names import below
from orchestrator.sweep_dir import SweepDir

RESCUED = "rescued/"
"""In the bucket, one folder a head that has ended: infra/boot/rescue.sh."""
_LEDGER, _PLAN, _SELECTION = "ledger.jsonl", "plan.json", "selection.json"


class SweepCopy(Strict):
    """One copy of one sweep's folder."""

    bucket: str
    prefix: str
    """Without a slash at its end."""
    sweep: str
    """Name of the sweep's folder, its UTC time."""
    ledger_bytes: int
    copied_utc: datetime
    has_sums: bool
    is_finished: bool
    """Whether a selection was made of it."""

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def copies_of(aws: Aws, bucket: str, name: str) -> list[SweepCopy]:
    """The newest whole copy of every sweep of that name, oldest sweep first.

    A ledger only grows, so the longest is the newest, whatever clocks say.
    """
    with aws_errors(f"looking for copies of {name} in the bucket {bucket}"):
        s3 = aws.client("s3")
        found = list(_in_folders(s3, bucket, f"{name}/", depth=2))  # an upload has a folder of its own: its time
        for head in _folders(s3, bucket, RESCUED):
            found += _in_folders(s3, bucket, f"{head}results/{name}/", depth=1)
    newest: dict[str, SweepCopy] = {}
    for copy in sorted(found, key=lambda copy: (copy.sweep, copy.ledger_bytes, copy.copied_utc)):
        newest[copy.sweep] = copy
    return list(newest.values())


def fetch_earlier(config: SweepConfig, console: Console) -> None:
    """On the head, before it measures: sweeps of that name that its results folder lacks.

    Raises:
        ArtifactsFailed, FleetFailed: a copy is damaged, or S3 cannot be used.
        UnsafeName: a name leads out of the folder.
    """
    fleet, results = config.cluster.aws, Path(config.results_dir)
    if fleet is None or fleet.results_bucket is None:
        return
    aws, root = Aws(fleet.region), results / config.name
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / ".fetch.lock"):  # two jobs of one sweep; only one will get the sweep's own lock
        for copy in copies_of(aws, fleet.results_bucket, config.name):
            if not below(root, copy.sweep).exists():
                _fetch(aws, copy, results, config.name, console)


def _fetch(aws: Aws, copy: SweepCopy, results: Path, name: str, console: Console) -> None:
    """Whole or not at all: what is half there would be taken for the sweep."""
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=results) as temporary:
        folder = Path(temporary) / name / copy.sweep  # as deep as nobody looks for sweeps
        if copy.has_sums:
            download_folder(copy.uri, folder)
        else:
            _download(aws, copy, folder)
        if reason := _unreadable(SweepDir(folder)):
            console.print(f"{copy.uri} does not count: {reason}", style="yellow", highlight=False, soft_wrap=True)
            return
        folder.rename(results / name / copy.sweep)
    console.print(f"Fetched {copy.uri}, which an earlier head measured", highlight=False, soft_wrap=True)


def _download(aws: Aws, copy: SweepCopy, folder: Path) -> None:
    """What `aws s3 sync` put there; boto3 verifies S3's own checksums."""
    with aws_errors(f"fetching {copy.uri}"):
        s3 = aws.client("s3")
        for found in _objects(s3, copy.bucket, f"{copy.prefix}/"):
            path = below(folder, found["Key"].removeprefix(f"{copy.prefix}/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(copy.bucket, found["Key"], str(path))


def _unreadable(sweep: SweepDir) -> str | None:
    try:
        sweep.plan()
        sweep.ledger()
    except (ConfigError, LedgerError) as error:
        return str(error)
    return None


def _in_folders(s3: Any, bucket: str, prefix: str, depth: int) -> Iterator[SweepCopy]:
    """Whole copies `depth` folders below `prefix`, the first of which is the sweep's."""
    folders: dict[str, dict[str, dict[str, Any]]] = {}
    for found in _objects(s3, bucket, prefix):
        folder, _, file = found["Key"].rpartition("/")
        if folder.removeprefix(prefix).count("/") == depth - 1 and folder.startswith(prefix):
            folders.setdefault(folder, {})[file] = found
    for folder, files in folders.items():
        is_upload = depth > 1
        if not files.keys() >= {_PLAN, _LEDGER, *([SUMS] if is_upload else [])}:
            continue  # not begun, or an upload that was cut off
        yield SweepCopy(
            bucket=bucket,
            prefix=folder,
            sweep=folder.removeprefix(prefix).partition("/")[0],
            ledger_bytes=files[_LEDGER]["Size"],
            copied_utc=files[_LEDGER]["LastModified"],
            has_sums=is_upload,
            is_finished=_SELECTION in files,
        )


def _objects(s3: Any, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        yield from page.get("Contents", ())


def _folders(s3: Any, bucket: str, prefix: str) -> Iterator[str]:
    """With a slash at their end."""
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, Delimiter="/"):
        yield from (found["Prefix"] for found in page.get("CommonPrefixes", ()))
