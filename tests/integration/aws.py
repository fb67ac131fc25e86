"""S3 by a moto server: real boto3 over HTTP, no AWS."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

BUCKET = "results"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


def _client() -> Any:
    return boto3.client("s3")


@contextmanager
def s3() -> Iterator[None]:
    """boto3 of this process and of its children finds a server with one bucket in it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as environment:
        host, port = server.get_host_and_port()
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            environment.setenv(name, value)
        environment.setattr(boto3, "DEFAULT_SESSION", None)  # it remembers credentials
        _client().create_bucket(Bucket=BUCKET)
        try:
            yield
        finally:
            server.stop()


def keys() -> list[str]:
    """Of all objects in the bucket."""
    found = _client().list_objects_v2(Bucket=BUCKET)
    return [entry["Key"] for entry in found.get("Contents", ())]


def get(key: str) -> bytes:
    body: bytes = _client().get_object(Bucket=BUCKET, Key=key)["Body"].read()
    return body


def put(key: str, body: bytes) -> None:
    _client().put_object(Bucket=BUCKET, Key=key, Body=body)


def empty() -> None:
    client = _client()
    for found in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        client.delete_object(Bucket=BUCKET, Key=found["Key"])
