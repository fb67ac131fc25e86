"""Folders in S3, against a moto server."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from orchestrator.artifacts import SUMS, download_folder, sha256_of, upload_folder
from orchestrator.errors import ArtifactsFailed, UnsafeName
from tests.integration import aws
from tests.integration.aws import BUCKET

URI = f"s3://{BUCKET}/sweeps/demo"
PART_BYTES = 5 * 1024 * 1024
"""The least that S3 takes."""


@pytest.fixture(scope="module")
def _server() -> Iterator[None]:
    with aws.s3():
        yield


@pytest.fixture(autouse=True)
def _bucket(_server: None) -> Iterator[None]:
    yield
    aws.empty()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "sweep"
    (made / "raw").mkdir(parents=True)
    (made / "ledger.jsonl").write_text("one line\n")
    (made / "raw" / "a visit.gz").write_bytes(b"\x00\x01")
    (made / "report.html").symlink_to(made / "ledger.jsonl")
    return made


def overwrite(name: str, body: bytes) -> None:
    aws.put(f"sweeps/demo/{name}", body)


def test_folder_comes_back_as_it_was_sent(folder: Path, tmp_path: Path) -> None:
    sums = upload_folder(folder, URI)

    assert download_folder(URI, tmp_path / "back") == sums
    assert aws.keys() == [f"sweeps/demo/{name}" for name in (SUMS, "ledger.jsonl", "raw/a visit.gz", "report.html")]
    assert {name: sha256_of(tmp_path / "back" / name) for name in sums} == sums
    assert sorted(path.name for path in (tmp_path / "back").rglob("*")) == sorted(
        ["ledger.jsonl", "raw", "a visit.gz", "report.html"]
    )


def test_checksums_are_what_sha256sum_reads(folder: Path, tmp_path: Path) -> None:
    upload_folder(folder, URI)
    (folder / SUMS).write_bytes(aws.get(f"sweeps/demo/{SUMS}"))

    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=folder, check=True, capture_output=True)


def test_upload_can_be_repeated_but_nothing_is_overwritten(folder: Path) -> None:
    upload_folder(folder, URI)
    upload_folder(folder, URI)
    (folder / "ledger.jsonl").write_text("another line\n")

    with pytest.raises(ArtifactsFailed, match=f"{URI}/ledger.jsonl is there already with other content"):
        upload_folder(folder, URI)

    assert aws.get("sweeps/demo/ledger.jsonl") == b"one line\n"


def test_object_of_another_tool_counts_by_its_content(folder: Path) -> None:
    overwrite("ledger.jsonl", b"one line\n")
    upload_folder(folder, URI)
    overwrite("raw/a visit.gz", b"other")

    with pytest.raises(ArtifactsFailed, match=r"raw/a visit\.gz is there already with other content"):
        upload_folder(folder, URI)


@pytest.mark.parametrize("num_bytes", [10, 2 * PART_BYTES + 1])
def test_object_that_appears_during_the_upload_is_not_overwritten(
    num_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole files and those in parts: the store itself refuses the second writer."""
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "weights").write_bytes(os.urandom(num_bytes))
    asked = []

    def nothing_there_yet(store: object, key: str) -> str | None:
        asked.append(key)
        if len(asked) == 1:
            overwrite("weights", b"first")
            return None
        return "of another"

    monkeypatch.setattr("orchestrator.artifacts._Store._sha256_there", nothing_there_yet)
    with pytest.raises(ArtifactsFailed, match="is there already with other content"):
        upload_folder(folder, URI, part_bytes=PART_BYTES)

    assert aws.get("sweeps/demo/weights") == b"first"


def test_file_of_several_parts_comes_back_whole(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "weights").write_bytes(os.urandom(2 * PART_BYTES + 1))
    upload_folder(folder, URI, part_bytes=PART_BYTES)

    download_folder(URI, tmp_path / "back")

    assert (tmp_path / "back/weights").read_bytes() == (folder / "weights").read_bytes()


def test_damaged_object_is_refused_and_leaves_no_file(folder: Path, tmp_path: Path) -> None:
    upload_folder(folder, URI)
    overwrite("ledger.jsonl", b"one lime\n")

    with pytest.raises(ArtifactsFailed, match=f"{URI}/ledger.jsonl is damaged: {SUMS} says [0-9a-f]+, but "):
        download_folder(URI, tmp_path / "back")

    assert not list((tmp_path / "back").iterdir())


@pytest.mark.parametrize("name", ["../stolen", "/etc/stolen", "raw/../../stolen", ".."])
def test_name_that_leads_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    overwrite(SUMS, f"{'0' * 64}  {name}\n".encode())

    with pytest.raises(UnsafeName, match="leads out of"):
        download_folder(URI, tmp_path / "back")

    assert not list(tmp_path.rglob("*stolen*"))


def test_what_cannot_be_used_is_said_with_its_place(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArtifactsFailed, match=f"{URI}/{SUMS}: no such object; is the prefix right"):
        download_folder(URI, tmp_path / "back")
    with pytest.raises(ArtifactsFailed, match=r"s3://nowhere/x/ledger\.jsonl: .*NoSuchBucket.*check the bucket's name"):
        upload_folder(folder, "s3://nowhere/x")
    with pytest.raises(ArtifactsFailed, match="expected s3://bucket/prefix, but got 'https://x/y'"):
        upload_folder(folder, "https://x/y")
    with pytest.raises(ArtifactsFailed, match="no files there to upload"):
        upload_folder(tmp_path / "nothing", URI)
    overwrite(SUMS, b"<html>\n")
    with pytest.raises(ArtifactsFailed, match=f"{URI}/{SUMS}: not a list of SHA-256 checksums"):
        download_folder(URI, tmp_path / "back")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ArtifactsFailed, match=r"Unable to locate credentials; check .* AWS credentials"):
        download_folder(URI, tmp_path / "back")
