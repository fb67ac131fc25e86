"""Commands on the fleet's head, by SSM Run Command: no port is open for that, and no key is needed."""

import json
import shlex
import time
from collections.abc import Sequence
from typing import Any

from orchestrator.errors import FleetFailed
from orchestrator.fleet_aws import Aws, aws_errors

CONTAINER = "specsweep-head"
_ENDED = {"Success", "Cancelled", "TimedOut", "Failed"}
_POLL_S = 1.0


def on_head(aws: Aws, head_id: str, command: Sequence[str], timeout_s: float = 120) -> str:
    """Run `command` in the head's container; what it wrote to stdout (the first 24,000 characters).

    Raises:
        FleetFailed: it failed, or the head does not answer.
    """
    script = shlex.join(["docker", "exec", CONTAINER, *command])
    ssm = aws.client("ssm")
    with aws_errors(f"asking the head {head_id} to run {command[0]}"):
        sent = ssm.send_command(
            InstanceIds=[head_id],
            DocumentName="AWS-RunShellScript",
            Parameters={"commands": [script], "executionTimeout": [f"{timeout_s:.0f}"]},
        )["Command"]["CommandId"]
        deadline = time.monotonic() + timeout_s
        while (result := _result(ssm, sent, head_id)).get("Status") not in _ENDED and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    if result.get("Status") == "Success":
        return str(result["StandardOutputContent"])
    reason = result.get("StandardErrorContent", "").strip() or "no reason given"
    raise FleetFailed(f"the head {head_id} could not run {command[0]} ({result.get('Status', 'no answer')}): {reason}")


def _result(ssm: Any, command_id: str, head_id: str) -> dict[str, Any]:
    """Of a sent command; empty for the moment in which SSM does not know it yet."""
    try:
        found: dict[str, Any] = ssm.get_command_invocation(CommandId=command_id, InstanceId=head_id)
    except ssm.exceptions.InvocationDoesNotExist:
        return {}
    return found


def nodes_alive_in_ray(aws: Aws, head_id: str, ray_address: str) -> set[str]:
    """Names of Ray's live nodes; a worker's is its instance id.

    Raises:
        FleetFailed: Ray cannot be asked, as while the head boots.
    """
    code = (
        "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='error'); "
        "print('alive:', *[node['NodeName'] for node in ray.nodes() if node['Alive']])"
    )
    printed = on_head(aws, head_id, ["python", "-c", code, ray_address])
    lines = [line.removeprefix("alive:").split() for line in printed.splitlines() if line.startswith("alive:")]
    return set(lines[-1]) if lines else set()


def session_command(region: str, head_id: str, command: Sequence[str]) -> str:
    """What a user types to run something on the head and see it (AWS CLI with its Session Manager plugin)."""
    script = shlex.join(["sudo", "docker", "exec", CONTAINER, *command])
    base = ["aws", "ssm", "start-session", "--region", region, "--target", head_id]
    return shlex.join(
        [*base, "--document-name", "AWS-StartInteractiveCommand", "--parameters", json.dumps({"command": [script]})]
    )


def forward_command(region: str, head_id: str, port: int) -> str:
    """The same, to reach a port of the head as one of this machine."""
    base = ["aws", "ssm", "start-session", "--region", region, "--target", head_id]
    ports = {"portNumber": [str(port)], "localPortNumber": [str(port)]}
    return shlex.join([*base, "--document-name", "AWS-StartPortForwardingSession", "--parameters", json.dumps(ports)])
