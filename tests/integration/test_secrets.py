"""A sweep with secrets planted in its environment, and an engine that prints all it knows: nothing keeps them."""

import gzip
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.sweeping import Sandbox, sandbox, slow, small
from tests.standin import SERVER

pytestmark = pytest.mark.timeout(240)

PLANTED = {
    "HF_TOKEN": "hf_planted0000001",
    "MLFLOW_TRACKING_PASSWORD": "planted-mlflow-02",
    "AWS_ACCESS_KEY_ID": "AKIAPLANTED00003",
    "AWS_SECRET_ACCESS_KEY": "planted/aws/secret/04",
    "AWS_SESSION_TOKEN": "planted-session-05",
    "MY_GATEWAY_API_KEY": "planted-gateway-06",
}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path) as found:
        yield found


def talkative_server(folder: Path) -> str:
    path = folder / "talkative-vllm"
    path.write_text(f'#!/bin/sh\nenv\nexec {sys.executable} {SERVER} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def environment(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except psutil.Error:
        return None


def command_lines(box: Sandbox) -> str:
    lines = []
    for process in box.processes():
        try:
            lines.append("\0".join(process.cmdline()))
        except psutil.NoSuchProcess:
            continue
    return "\n".join(lines)


def listening(box: Sandbox) -> dict[str, str]:
    """Address -> process, of all that listen beyond loopback."""
    found = {}
    for process in box.processes():
        try:
            sockets = process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        for socket in sockets:
            if socket.status == psutil.CONN_LISTEN and not socket.laddr.ip.removeprefix("::ffff:").startswith("127."):
                found[f"{socket.laddr.ip}:{socket.laddr.port}"] = " ".join(process.cmdline())[:100]
    return found


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def holders(folder: Path, secrets: dict[str, str]) -> list[str]:
    """Files below `folder` with a secret in them, and which."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [
        f"{name} in {path}" for path in files for name, secret in secrets.items() if secret.encode() in content(path)
    ]


def test_no_secret_is_kept_or_shown_and_nothing_listens_beyond_loopback(box: Sandbox) -> None:
    arguments = small("tracking=sqlite", command=[talkative_server(box.path)], extra_args=slow(20))
    running = box.start(*arguments, env=PLANTED)
    running.until(lambda: box.num_ledger_lines() >= 1)

    lines, beyond = command_lines(box), listening(box)
    tokens = {Path(path) for p in box.processes() if (path := environment(p, "RAY_AUTH_TOKEN_PATH"))}
    keys = {key for process in box.processes() if (key := environment(process, "VLLM_API_KEY"))}
    (token_file,) = tokens
    secrets = PLANTED | {"Ray token": token_file.read_text(), **{f"API key {i}": key for i, key in enumerate(keys)}}
    mode = stat.S_IMODE(token_file.stat().st_mode)
    ended = running.wait()

    assert ended.exit_code == 0, ended
    assert mode == 0o600
    assert keys
    assert beyond == {}
    assert [name for name, secret in secrets.items() if secret in lines + ended.stdout + ended.stderr] == []
    assert "HF_TOKEN=[redacted]" in next(box.sweep.path.glob("logs/*")).read_text()
    assert (box.path / "mlflow.db").exists()
    assert list(box.path.glob("mlartifacts/**/logs/*.log"))
    assert holders(box.path, secrets) == []
    assert holders(box.temporary, secrets) == []
    assert not token_file.exists()


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ("tracking.uri=http://me:planted@mlflow.example", "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        ("server.env.HF_TOKEN=planted", "HF_TOKEN would hold a secret, which has no place in a configuration"),
        ("server.extra_args=['--api-key=planted']", "--api-key would show a secret in the process list"),
        ("server.extra_args=['--hf-token','planted']", "--hf-token would show a secret in the process list"),
    ],
)
def test_secret_in_a_configuration_is_refused_with_where_it_belongs(override: str, advice: str) -> None:
    from orchestrator.compose import compose
    from orchestrator.errors import ConfigError

    with pytest.raises(ConfigError) as refused:
        compose([override])

    assert advice in str(refused.value)
    assert "planted" not in str(refused.value)
