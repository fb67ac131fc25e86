"""The boot files: checked as they are, and run against stand-ins for the programs of a node."""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOOT = ROOT / "infra" / "boot"
SETTINGS = {
    "AWS_REGION": "us-east-1",
    "HEAD_ADDRESS": "10.42.0.10",
    "LOG_GROUP": "/specsweep/tested/nodes",
    "PARAMETER_PREFIX": "/specsweep/tested",
    "ROLE": "head",
    "IMAGE": "own/head:1",
    "SECRETS": "ray_token mlflow_password hf_token",
    "RESULTS_BUCKET": "results",
    "MLFLOW_ALLOWED_HOSTS": "localhost,localhost:*",
    "RAY_RESOURCES": '{"m7i":1,"it\'s":2}',
    "RAY_LABELS": "profile=m7i",
}
SECRETS = {"ray_token": "planted-ray-%s", "mlflow_password": "pl%nted $mlflow'\"", "hf_token": "none"}

STAND_INS = {
    # Prints the secret whose parameter is asked for; the secrets themselves are in a file beside it.
    "aws": 'import json, sys\nsecrets = json.load(open(__file__ + ".json"))\n'
    'print(secrets[sys.argv[-1].rpartition("/")[2]])\n',
    "docker": 'import json, sys\nopen(__file__ + ".log", "a").write(json.dumps(sys.argv[1:]) + "\\n")\n',
    "curl": 'print("i-0123456789abcdef0")\n',
}


class Node:
    """A copy of the boot files whose fixed folders and user are this test's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir()
        for name, code in STAND_INS.items():
            program = self.programs / name
            program.write_text(f"#!{sys.executable}\n{code}", encoding="utf-8")
            program.chmod(0o755)
        (self.programs / "aws.json").write_text(json.dumps(SECRETS), encoding="utf-8")
        for script in BOOT.glob("*.sh"):
            text = script.read_text(encoding="utf-8")
            text = text.replace("/var/lib/specsweep", f"{folder}/lib").replace("/run/specsweep", f"{folder}/run")
            text = text.replace("10001", str(os.getuid()))
            (folder / script.name).write_text(text, encoding="utf-8")
        quoted = {name: value.replace("'", "'\\''") for name, value in SETTINGS.items()}
        lines = [f"{name}='{value}'\n" for name, value in quoted.items()]
        (folder / "node.env").write_text("".join(lines), encoding="utf-8")

    def run(self, script: str) -> None:
        environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "SPECSWEEP_NODE_ENV": f"{self.folder}/node.env"}
        command = ["bash", str(self.folder / script)]
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)

    def docker_run(self) -> list[str]:
        """Arguments of the last call of docker."""
        calls = (self.programs / "docker.log").read_text(encoding="utf-8").splitlines()
        arguments: list[str] = json.loads(calls[-1])
        return arguments


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def tool(name: str) -> str:
    """A program of the development environment, beside this Python or on PATH."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed; it comes with the dev dependencies")
    return found


def test_scripts_pass_shellcheck() -> None:
    scripts = sorted(str(script) for script in BOOT.glob("*.sh"))
    command = [tool("shellcheck"), "--external-sources", "--source-path=SCRIPTDIR", *scripts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert len(scripts) > 5
    assert (done.stdout, done.returncode) == ("", 0)


def test_container_files_pass_hadolint() -> None:
    files = sorted(str(path) for path in (ROOT / "infra" / "containers").glob("*.Dockerfile"))
    done = subprocess.run([tool("hadolint"), *files], capture_output=True, text=True, timeout=60, check=False)

    assert len(files) == 2
    assert (done.stdout, done.returncode) == ("", 0)


def test_units_wait_longer_than_what_they_stop() -> None:
    """Ray drains, docker waits longer than that, systemd longer still."""
    drain_s = int(re.findall(r"DRAIN_TIMEOUT_S=(\d+)", (BOOT / "node.docker.env").read_text(encoding="utf-8"))[0])
    for role in ("head", "worker"):
        unit = (BOOT / "units" / f"specsweep-{role}.service").read_text(encoding="utf-8")
        docker_s = int(re.findall(r"docker stop -t (\d+)", unit)[0])
        systemd_s = int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0])
        assert drain_s < docker_s < systemd_s
        assert (
            f"After=docker.service specsweep-secrets.service{' specsweep-rescue.service' * (role == 'head')}\n" in unit
        )


def test_secrets_become_files_that_only_the_containers_user_reads(node: Node) -> None:
    node.run("secrets.sh")

    folder = node.folder / "run" / "secrets"
    auth, client = configparser.ConfigParser(), configparser.ConfigParser()
    auth.read(folder / "mlflow_auth.ini")
    client.read(folder / "mlflow_credentials")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(
        ["mlflow.env", "mlflow_auth.ini", "mlflow_credentials", "ray_token"], 0o600
    )
    assert (folder / "ray_token").read_text(encoding="utf-8") == SECRETS["ray_token"]
    assert auth["mlflow"]["admin_password"] == SECRETS["mlflow_password"]
    assert client["mlflow"]["mlflow_tracking_password"] == SECRETS["mlflow_password"]
    assert auth["mlflow"]["default_permission"] == "NO_PERMISSIONS"


@pytest.mark.parametrize("script", ["head.sh", "mlflow.sh", "worker.sh"])
def test_containers_run_unprivileged_and_get_no_secret_as_argument(node: Node, script: str) -> None:
    node.run("secrets.sh")
    node.run(script)

    arguments = node.docker_run()
    assert arguments[:3] == ["run", "--rm", "--init"]
    assert arguments[arguments.index("--user") + 1] == f"{os.getuid()}:{os.getuid()}"
    assert "no-new-privileges" in arguments
    assert "--privileged" not in arguments
    assert not [argument for argument in arguments for secret in SECRETS.values() if secret in argument]


@pytest.mark.parametrize(("role", "is_powered_off"), [("worker", True), ("head", False)])
def test_worker_that_cannot_boot_is_powered_off_for_its_group_to_replace(
    node: Node, role: str, is_powered_off: bool
) -> None:
    for name, code in {"dnf": "exit 1", "sleep": "", "systemctl": f'echo "$@" >>{node.folder}/systemctl.log'}.items():
        (node.programs / name).write_text(f"#!/bin/sh\n{code}\n", encoding="utf-8")
        (node.programs / name).chmod(0o755)
    with (node.folder / "node.env").open("a", encoding="utf-8") as settings:
        settings.write(f"ROLE={role}\nTTL_S=60\n")
    script = (node.folder / "boot.sh").read_text(encoding="utf-8")
    (node.folder / "boot.sh").write_text(script.replace("/etc/systemd/system", str(node.folder)), encoding="utf-8")

    with pytest.raises(subprocess.CalledProcessError):
        node.run("boot.sh")

    log = node.folder / "systemctl.log"
    assert ("poweroff\n" in (log.read_text() if log.exists() else "")) == is_powered_off


def test_worker_offers_its_profile_to_ray_under_its_instance_id(node: Node) -> None:
    node.run("worker.sh")

    arguments = node.docker_run()
    ray = arguments[arguments.index("own/head:1") + 1 :]
    assert ray[:5] == [
        *("ray", "start", "--address=10.42.0.10:6379", "--node-name=i-0123456789abcdef0"),
        f"--resources={SETTINGS['RAY_RESOURCES']}",
    ]
    assert ray[5] == "--labels=profile=m7i"
    assert ray[-1] == "--block"
    assert "--cap-add" not in arguments, "a user other than root has no capability"
    assert "seccomp=unconfined" in arguments
    assert "rtprio=1" in arguments
    assert "RAY_worker_niceness=0" in arguments


def test_head_offers_no_cpu_and_keeps_its_dashboard_on_loopback(node: Node) -> None:
    node.run("head.sh")

    arguments = node.docker_run()
    assert {"--head", "--num-cpus=0", "--dashboard-host=127.0.0.1", "--node-ip-address=10.42.0.10"} <= set(arguments)


def test_mlflow_asks_for_a_password_and_answers_named_hosts_only(node: Node) -> None:
    node.run("mlflow.sh")

    arguments = node.docker_run()
    server = arguments[arguments.index("own/head:1") + 1 :]
    assert server[:4] == ["mlflow", "server", "--app-name", "basic-auth"]
    assert server[server.index("--allowed-hosts") + 1] == SETTINGS["MLFLOW_ALLOWED_HOSTS"]
    assert server[server.index("--artifacts-destination") + 1] == "s3://results/mlflow"


def test_every_node_has_token_authentication_and_notices_a_lost_one_soon() -> None:
    lines = (BOOT / "node.docker.env").read_text(encoding="utf-8").splitlines()
    environment = dict(line.split("=", 1) for line in lines)

    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"].startswith("/run/specsweep/secrets/")
    period_s = int(environment["RAY_health_check_period_ms"]) / 1000
    timeout_s = int(environment["RAY_health_check_timeout_ms"]) / 1000
    assert (period_s + timeout_s) * int(environment["RAY_health_check_failure_threshold"]) <= 20


def test_images_take_no_file_that_is_not_named() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()

    assert ignored[1] == "*"
    for name in ("head", "worker"):
        text = (ROOT / "infra" / "containers" / f"{name}.Dockerfile").read_text(encoding="utf-8")
        copied = [source for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for source in line.split()]
        assert copied
        assert all(f"!{source}" in ignored and (ROOT / source).exists() for source in copied)
        assert "USER 10001:10001" in text
        assert "'.[aws]'" in text  # S3 and the lease are in an extra
        assert 'ARG GIT_COMMIT=""' in text  # no git is in an image
