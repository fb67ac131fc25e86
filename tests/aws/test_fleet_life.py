"""A fleet's whole life as a user types it: real `orchestrator fleet` commands, real Terraform, an emulated AWS."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest

from orchestrator.fleet_aws import TAG, Aws
from orchestrator.fleet_left import is_gone
from tests.aws import emulated

ORCHESTRATOR = str(Path(sys.executable).with_name("orchestrator"))
PLANTED = "hf_planted_77c1"
CONFIG = [
    "sweep=xeon_dflash",
    "cluster=aws",
    "cluster.aws.head_image=own/head:1",
    "cluster.aws.worker_image=own/worker:1",
    "cluster.aws.sizes.default.desired_size=2",
    "cluster.aws.on_demand_base=2",
]


@dataclass
class User:
    """Someone at a shell in a folder of their own, and every command line that their commands ran."""

    folder: Path
    environment: dict[str, str]
    command_lines: set[str] = field(default_factory=set)
    shown: str = ""

    def types(self, *words: str) -> str:
        """What `orchestrator fleet WORDS` prints; it must succeed."""
        process = subprocess.Popen(
            [ORCHESTRATOR, "fleet", *words, *CONFIG],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(process.pid, over))
        watch.start()
        try:
            out, _ = process.communicate(timeout=400)
        finally:
            over.set()
            watch.join()
        self.shown += out
        assert process.returncode == 0, out
        return out

    def client(self, service: str) -> Any:
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        endpoint = self.environment["AWS_ENDPOINT_URL"]
        return boto3.client(service, region_name=emulated.REGION, endpoint_url=endpoint, **keys)

    @property
    def fleet(self) -> Path:
        return self.folder / "fleets" / "specsweep"

    def output(self, name: str) -> Any:
        return json.loads((self.fleet / "terraform.tfstate").read_text())["outputs"][name]["value"]

    def tagged(self) -> list[str]:
        """ARNs of what Terraform has made with the fleet's tag."""
        resources = json.loads((self.fleet / "terraform.tfstate").read_text())["resources"]
        made = [one["attributes"] for found in resources if found["mode"] == "managed" for one in found["instances"]]
        return [one["arn"] for one in made if one.get("arn") and TAG in (one.get("tags_all") or {})]

    def _watch(self, pid: int, over: threading.Event) -> None:
        while not over.wait(0.1):
            try:
                family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
                self.command_lines |= {" ".join(process.cmdline()) for process in family}
            except psutil.Error:
                continue


@pytest.fixture(scope="module")
def user(aws_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> User:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TF_"))}
    own = {
        "AWS_ENDPOINT_URL": aws_endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "TF_CLI_CONFIG_FILE": emulated.Terraform(tmp_path_factory.mktemp("rc")).environment["TF_CLI_CONFIG_FILE"],
        "HF_TOKEN": PLANTED,
        "COLUMNS": "160",
    }
    user = User(tmp_path_factory.mktemp("user"), kept | own)
    user.types("up")
    return user


def test_up_makes_everything_and_gives_it_an_end(user: User) -> None:
    assert "2 x r8i.16xlarge, $9.04 an hour" in user.shown
    assert "terraform apply: 47 made" in user.shown
    assert len([line for line in user.shown.splitlines() if "r8i.16xlarge" in line and "running" in line]) == 2
    actions = user.client("autoscaling").describe_scheduled_actions()["ScheduledUpdateGroupActions"]
    assert [(action["AutoScalingGroupName"], action["DesiredCapacity"]) for action in actions] == [
        ("specsweep-r8i_16xlarge", 0)
    ]


def test_no_secret_is_in_a_file_an_argument_or_a_word_that_was_shown(user: User) -> None:
    parameters = user.output("secret_parameters")
    secrets = {
        name: user.client("ssm").get_parameter(Name=parameter, WithDecryption=True)["Parameter"]["Value"]
        for name, parameter in parameters.items()
    }
    assert secrets["hf_token"] == PLANTED
    files = [path for path in user.folder.rglob("*") if path.is_file() and ".terraform/" not in str(path)]
    assert user.fleet / "terraform.tfstate" in files
    assert any(line.startswith("terraform ") and " apply " in line for line in user.command_lines)

    for secret in secrets.values():
        assert len(secret) >= len(PLANTED)
        assert not [path for path in files if secret.encode() in path.read_bytes()]
        assert not [line for line in user.command_lines if secret in line]
        assert secret not in user.shown
    assert user.fleet.stat().st_mode & 0o077 == 0


def test_status_is_for_programs_too(user: User) -> None:
    shown = user.types("status", "--json")
    status = json.loads(shown[shown.index("\n{") if "\n{" in shown else 0 :])

    assert status["head_id"] == user.output("head_instance_id")
    assert [group["in_service"] for group in status["groups"]] == [2]
    ends, asked = (datetime.fromisoformat(status[key]) for key in ("workers_end_utc", "asked_utc"))
    assert timedelta(hours=3.9) < ends - asked <= timedelta(hours=4)


def test_scale_in_ends_a_node(user: User) -> None:
    assert "1 in service, 1 wanted, at most 4" in user.types("scale", "1")


def test_down_keeps_results_with_their_key_until_it_is_told_to_delete_them(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, user.environment[name])
    asked, tagged = Aws(emulated.REGION), user.tagged()
    assert len(tagged) > 20
    assert [arn for arn in tagged if is_gone(asked, arn)] == []
    bucket = user.output("results_bucket")
    user.client("s3").put_object(Bucket=bucket, Key="mine/ledger.jsonl", Body=b"measured")

    shown = user.types("down")

    assert f"Results stay in s3://{bucket}" in shown
    assert "nothing else with its tag is left" in shown
    assert user.client("s3").get_object(Bucket=bucket, Key="mine/ledger.jsonl")["Body"].read() == b"measured"
    assert [key["KeyState"] for key in keys(user)] == ["Enabled"]

    assert "nothing with its tag is left" in user.types("down", "--delete-results")
    assert user.client("s3").list_buckets()["Buckets"] == []
    assert [key["KeyState"] for key in keys(user)] == ["PendingDeletion"]
    assert user.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert [arn for arn in tagged if not is_gone(asked, arn)] == [], "AWS's list of tags may have them for hours"


def keys(user: User) -> list[dict[str, Any]]:
    """The fleet's own KMS keys."""
    kms = user.client("kms")
    found = [kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"] for key in kms.list_keys()["Keys"]]
    return [key for key in found if key["KeyManager"] == "CUSTOMER" and "specsweep" in key["Description"]]
