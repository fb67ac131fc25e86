"""Terraform with the real AWS provider against moto's server: no network, no account."""

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE = ROOT / "infra" / "terraform"
PROVIDER = "registry.terraform.io/hashicorp/aws"
REGION = "us-east-1"

# Long enough for what the variables demand, and found nowhere else.
SECRETS = {
    "ray_token": "planted-ray-0f4b9c2d7e",
    "mlflow_password": "planted-mlflow-%83d1",
    "hf_token": "hf_planted_5a6c",
}


@functools.cache
def provider_mirror() -> Path | None:
    """The folder that holds the AWS provider in registry layout, where the usual places have one."""
    named = [os.environ[name] for name in ("TF_PLUGIN_MIRROR", "TF_PLUGIN_CACHE_DIR") if os.environ.get(name)]
    usual = [
        Path.home() / ".terraform.d",
        Path("/usr/share/terraform"),
        Path("/usr/local/share/terraform"),
        Path("/opt"),
    ]
    for base in [*map(Path, named), *usual]:
        for pattern in (PROVIDER, f"*/{PROVIDER}", f"*/*/{PROVIDER}"):
            for found in base.glob(pattern):
                return found.parents[2]
    return None


def why_not() -> str | None:
    """The reason why Terraform cannot run here; None if it can."""
    if shutil.which("terraform") is None:
        return "terraform is not installed"
    if provider_mirror() is None:
        return f"no folder {PROVIDER} in the usual places or in TF_PLUGIN_MIRROR: Terraform would need a network"
    return None


class Terraform:
    """The module with state, settings and provider links in one folder, as a fleet keeps them.

    Raises subprocess.CalledProcessError, with Terraform's own words, when a command fails.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tfvars = folder / "fleet.auto.tfvars.json"
        config = folder / "terraform.rc"
        config.write_text(
            f'provider_installation {{\n  filesystem_mirror {{\n    path    = "{provider_mirror()}"\n'
            '    include = ["registry.terraform.io/*/*"]\n  }\n}\n',
            encoding="utf-8",
        )
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TF_"))},
            **{f"TF_VAR_{name}": value for name, value in SECRETS.items()},
            "TF_CLI_CONFIG_FILE": str(config),
            "TF_DATA_DIR": str(folder / "terraform"),
            "TF_IN_AUTOMATION": "1",
            "CHECKPOINT_DISABLE": "1",
        }

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """Output and errors of `terraform ARGUMENTS`."""
        command = ["terraform", f"-chdir={MODULE}", *arguments]
        done = subprocess.run(
            command, env={**self.environment, **(environment or {})}, capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr + done.stdout)
        return done.stdout + done.stderr

    def init(self) -> None:
        state = self.folder / "terraform.tfstate"
        self.run("init", "-input=false", "-no-color", f"-backend-config=path={state}", "-reconfigure")

    def change(self, command: str, *arguments: str) -> str:
        """`plan`, `apply` or `destroy` with the folder's settings."""
        return self.run(command, "-input=false", "-no-color", "-parallelism=20", f"-var-file={self.tfvars}", *arguments)


@contextmanager
def moto_server() -> Iterator[str]:
    """The address of a fresh emulation of AWS."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, "MOTO_IAM_LOAD_MANAGED_POLICIES": "true"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(endpoint, process)
        yield endpoint
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)


def _wait_for(endpoint: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"moto's server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"{endpoint}/moto-api/data.json", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise TimeoutError(f"moto's server does not answer at {endpoint}")
