"""Terraform, run on the module in infra/terraform: variables from the configuration, state in the fleet's folder."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from orchestrator.config import Fleet, FleetSize, Hardware
from orchestrator.errors import ConfigError, FleetFailed

MODULE = Path(__file__).parents[1] / "infra" / "terraform"
TFVARS = "fleet.auto.tfvars.json"


def tfvars(
    fleet: Fleet, workers: Sequence[tuple[Hardware, FleetSize]], zones: Sequence[str], aws_endpoint: str | None
) -> dict[str, Any]:
    """The module's variables but the secret ones, which never lie in a file."""
    return {
        "name": fleet.name,
        "region": fleet.region,
        "availability_zones": list(zones),
        "vpc_cidr": fleet.vpc_cidr,
        "head_instance_type": fleet.head_instance_type,
        "head_volume_gb": fleet.head_volume_gb,
        "workers": {hardware.name: _group(fleet, hardware, size) for hardware, size in workers},
        "head_image": fleet.head_image,
        "worker_image": fleet.worker_image,
        "model_mirror": fleet.model_mirror or "",
        "results_bucket": fleet.results_bucket or "",
        "ttl_hours": fleet.max_hours,  # of the head, which outlives the workers' lease
        "mlflow_allowed_hosts": list(fleet.mlflow_allowed_hosts),
        "aws_endpoint": aws_endpoint or "",
        "hf_token_version": fleet.hf_token_version,
    }


def new_secrets() -> dict[str, str]:
    """As environment variables of Terraform. It stores them when it makes the fleet, and HF_TOKEN again where
    hf_token_version is new: so they may differ from call to call, and nobody here needs to keep them."""
    return {
        "TF_VAR_ray_token": secrets.token_hex(32),
        "TF_VAR_mlflow_password": secrets.token_urlsafe(24),
        "TF_VAR_hf_token": os.environ.get("HF_TOKEN", ""),
    }


class Terraform:
    """One fleet's Terraform: `folder` holds variables, state, plugins and the log."""

    def __init__(self, folder: Path, console: Console, module: Path = MODULE) -> None:
        self.folder, self.module = folder.resolve(), module.resolve()
        self._console = console
        self._state = self.folder / "terraform.tfstate"

    def require(self) -> None:
        """Raise ConfigError where Terraform or the module is missing."""
        if shutil.which("terraform") is None:
            raise ConfigError(
                "terraform is not installed; get 1.11 or newer from https://developer.hashicorp.com/terraform"
            )
        if not (self.module / "versions.tf").exists():
            raise ConfigError(f"{self.module}: no Terraform module there; run from a checkout of this project")

    @property
    def has_state(self) -> bool:
        """Whether anything is known to be there."""
        return any(found["mode"] == "managed" for found in self._resources())

    def _resources(self) -> list[dict[str, Any]]:
        if not self._state.exists():
            return []
        found: list[dict[str, Any]] = json.loads(self._state.read_text(encoding="utf-8"))["resources"]
        return found

    def apply(self, variables: Mapping[str, Any]) -> None:
        """Bring AWS in line with `variables`; what is in line already is left.

        Raises:
            FleetFailed: with Terraform's own words.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.folder / TFVARS).write_text(json.dumps(variables, indent=1), encoding="utf-8")
        self._init()
        self._changing("apply", "-auto-approve")

    def destroy(self, keep: Sequence[str] = ()) -> None:
        """Remove everything, or everything but the resources `keep` (addresses as in `addresses`)."""
        self._init()
        gone = [f"-target={address}" for address in self.addresses() if address not in keep] if keep else []
        if keep and not gone:
            return
        self._changing("destroy", "-auto-approve", *gone)

    def addresses(self) -> list[str]:
        """Of every resource in the state, without data sources."""
        listed = self._run(["state", "list"]).splitlines()
        return [address for address in listed if ".data." not in f".{address}"]

    def results_bucket(self) -> str | None:
        """Its name, as long as Terraform knows it: after a destroy that kept it there are no outputs."""
        buckets = [found for found in self._resources() if found["type"] == "aws_s3_bucket"]
        return next((str(instance["attributes"]["bucket"]) for b in buckets for instance in b["instances"]), None)

    def outputs(self) -> dict[str, Any]:
        """The module's outputs, from the state; empty before the first apply and after the last destroy."""
        found = json.loads(self._state.read_text(encoding="utf-8"))["outputs"] if self._state.exists() else {}
        return {name: output["value"] for name, output in found.items()}

    def _init(self) -> None:
        self._run(["init", "-input=false", "-no-color", "-reconfigure", f"-backend-config=path={self._state}"])

    def _changing(self, verb: str, *options: str) -> None:
        command = [
            verb,
            "-json",
            "-input=false",
            f"-var-file={self.folder / TFVARS}",
            *options,
        ]
        begun = time.monotonic()
        process = subprocess.Popen(
            self._command(command),
            env=_environment(self.folder) | new_secrets(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a Ctrl-C reaches it once, from here
        )
        with self._console.status(f"terraform {verb} ...") as status:
            problems, summary = _patiently(process, lambda: self._follow(process, verb, status))
        if process.returncode:
            raise FleetFailed(
                f"terraform {verb} failed: {'; '.join(problems) or 'without a reason'} (log: {self.log}); "
                "the same command continues from where it is"
            )
        self._console.print(f"{summary} ({time.monotonic() - begun:.0f} s)", highlight=False, soft_wrap=True)

    @property
    def log(self) -> Path:
        return self.folder / "terraform.log"

    def _follow(self, process: "subprocess.Popen[str]", verb: str, status: Status) -> tuple[list[str], str]:
        """Show progress from Terraform's JSON lines. What it called errors, and its last summary."""
        assert process.stdout is not None
        problems: list[str] = []
        total, done, summary = 0, 0, f"terraform {verb}: done"
        with self.log.open("a", encoding="utf-8") as log:
            for line in process.stdout:
                log.write(line)
                event = _event(line)
                kind = event.get("type")
                if kind == "change_summary":
                    changes = event["changes"]
                    total = sum(changes.get(key, 0) for key in ("add", "change", "remove"))
                    summary = f"terraform {verb}: {_counted(changes)}"
                elif kind in ("apply_start", "apply_complete"):
                    done += kind == "apply_complete"
                    address = event["hook"]["resource"]["addr"]
                    status.update(f"terraform {verb}: {done} of {total}, {address}")
                elif kind == "diagnostic" and event["diagnostic"]["severity"] == "error":
                    found = event["diagnostic"]
                    problems.append(" ".join(f"{found['summary']}: {found.get('detail', '')}".split()))
        return problems, summary

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return ["terraform", f"-chdir={self.module}", *arguments]

    def _run(self, arguments: Sequence[str]) -> str:
        done = subprocess.run(
            self._command(arguments),
            env=_environment(self.folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise FleetFailed(f"terraform {arguments[0]} failed: {' '.join((done.stderr or done.stdout).split())}")
        return done.stdout


def _group(fleet: Fleet, hardware: Hardware, size: FleetSize) -> dict[str, Any]:
    return {
        "instance_type": hardware.instance_type,
        "max_size": size.max_size,
        "on_demand_base": fleet.on_demand_base,
        "spot_percentage": fleet.spot_percentage,
        "volume_gb": fleet.worker_volume_gb,
        "ray_resources": {hardware.node_resource: hardware.servers_per_node},
        "ray_labels": hardware.node_labels,
    }


def _environment(folder: Path) -> dict[str, str]:
    # A debug log of the provider's would have the secrets in it.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TF_LOG")}
    return kept | {"TF_DATA_DIR": str(folder / ".terraform"), "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}


def _patiently(process: "subprocess.Popen[str]", follow: Any) -> Any:
    """An interruption is passed on, and waited for: Terraform finishes what it has begun and writes its state."""
    try:
        return follow()
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    finally:
        process.wait()


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _counted(changes: Mapping[str, int]) -> str:
    words = {"add": "made", "change": "changed", "remove": "removed"}
    return ", ".join(f"{changes.get(key, 0)} {word}" for key, word in words.items() if changes.get(key)) or "no changes"
