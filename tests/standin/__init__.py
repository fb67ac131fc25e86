"""Starts the stand-in server for tests: `with standin("--standin-short") as server: ...`."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SERVER = Path(__file__).with_name("server.py")
COMMAND = (sys.executable, str(SERVER))
"""What `server.command` takes in place of `vllm`."""


@dataclass(frozen=True)
class StandIn:
    base_url: str
    model: str
    process: subprocess.Popen[bytes]

    def gauge(self, name: str) -> float:
        """The value of one of the stand-in's own series, for example `standin:peak_requests_running`."""
        with urllib.request.urlopen(f"{self.base_url}/metrics", timeout=5) as response:
            lines = response.read().decode().splitlines()
        return float(next(line.split()[-1] for line in lines if line.startswith(name)))


@contextmanager
def standin(*flags: str, model: str = "stand-in", api_key: str | None = None) -> Iterator[StandIn]:
    """A running stand-in on a free port, ready, killed at the end."""
    port = free_port()
    env = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
    process = subprocess.Popen(
        [*COMMAND, "serve", model, "--port", str(port), *flags],
        env=env | ({"VLLM_API_KEY": api_key} if api_key else {}),
        stdout=subprocess.DEVNULL,
    )
    try:
        server = StandIn(f"http://127.0.0.1:{port}", model, process)
        _wait_until_ready(server)
        yield server
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(server: StandIn, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            urllib.request.urlopen(f"{server.base_url}/health", timeout=1).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"the stand-in did not answer within {timeout_s} s (exit code {server.process.poll()})")
