"""A sweep on a fleet: its configuration and prompts go to S3, and the head measures as a Ray job, whether or not the
machine that asked stays on."""

import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from orchestrator.artifacts import download_folder, upload_folder
from orchestrator.compose import load_yaml, to_yaml
from orchestrator.config import Dataset, SweepConfig, Tracking
from orchestrator.errors import ConfigError, FleetFailed
from orchestrator.fleet import Context, known_nodes, renew
from orchestrator.fleet_aws import Aws, groups_of, head_of
from orchestrator.fleet_copies import copies_of
from orchestrator.fleet_head import forward_command, on_head, session_command
from orchestrator.fleet_money import FleetNode
from orchestrator.fleet_nodes import NODES, remember, remembered
from orchestrator.fleet_prices import priced
from orchestrator.forecast import Forecast

CONFIG = "config.yaml"
COMMAND = "command.txt"
"""What was typed to send the sweep."""
HEAD_FOLDER = Path("/srv/specsweep/results")
"""On the head's volume, as its container sees it: results and fetched inputs outlive the container."""
MLFLOW_PORT = 5000
NUM_LOOKS, LOOK_EVERY_S = 8, 3.0
NUM_LOG_LINES = 20
BEGUN = 'for f in "$1"/*/plan.json; do test ! -e "$f" || test -e "${f%/*}/selection.json" || echo begun; done'
"""Shell: whether a sweep's folder $1 holds one that was not decided."""
_INPUTS = re.compile(r"s3://[a-z0-9.-]+/inputs/([0-9a-f]{64})")


def start_sweep(ctx: Context, config: SweepConfig, expected: Forecast | None, command: str) -> None:
    """Start `config` on the fleet's head and say how to follow it.

    Args:
        expected: what it takes; None where there is nothing to estimate from.
        command: what was typed, for the report.

    Raises:
        ConfigError: the fleet is not up, has no worker, ends before the sweep can, or a prompt file is missing;
            nothing was started.
        FleetFailed: the head does not take it.
    """
    outputs = ctx.terraform.outputs()
    if not outputs:
        raise ConfigError(
            f"{ctx.folder} has no state of fleet {ctx.fleet.name}; run `orchestrator fleet up` first, here"
        )
    num_nodes = sum(group.desired_size for group in groups_of(ctx.aws, ctx.fleet.name))
    if not num_nodes:
        raise ConfigError(
            f"fleet {ctx.fleet.name} has no workers (released, or its lease has ended); `orchestrator fleet scale 1`"
        )
    head = head_of(known_nodes(ctx))
    if head is None:
        raise ConfigError(f"the head of fleet {ctx.fleet.name} has ended; `orchestrator fleet up` makes a new one")
    if expected is not None:
        _require_time(ctx, config.name, expected.typical(num_nodes).wall_h.low, head, outputs["results_bucket"])
    renew(ctx)
    uri = _send_inputs(for_head(config, ctx.aws, outputs), outputs["results_bucket"], ctx.folder / NODES, command)
    head_id = outputs["head_instance_id"]
    job = f"{config.name}-{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}"
    submit = ["ray", "job", "submit", "--no-wait", "--submission-id", job, "--", "orchestrator", "fleet", "run", uri]
    on_head(ctx.aws, head_id, submit)
    _require_begun(ctx, head_id, job)
    ctx.console.print(f"Started {job} on the head {head_id}; this machine may be switched off.", highlight=False)
    _say_how_to_follow(ctx, config.name, job, head, outputs)


def _say_how_to_follow(ctx: Context, name: str, job: str, head: FleetNode, outputs: Mapping[str, Any]) -> None:
    ray_job, region, head_id = ["ray", "job"], ctx.fleet.region, head.id
    follow = {
        "Follow it": session_command(region, head_id, [*ray_job, "logs", "--follow", job]),
        "Stop it": session_command(region, head_id, [*ray_job, "stop", job]),
        f"MLflow on http://127.0.0.1:{MLFLOW_PORT}": forward_command(region, head_id, MLFLOW_PORT),
        "MLflow's password (user admin)": _password_command(region, outputs["secret_parameters"]["mlflow_password"]),
    }
    ctx.console.print(
        f"The head ends at {_end_of(ctx, head):%Y-%m-%d %H:%M} UTC (cluster.aws.max_hours), and the sweep with it; "
        "on the next head the same command continues.",
        highlight=False,
        soft_wrap=True,
    )
    for what, command in follow.items():
        ctx.console.print(f"{what}:\n  {command}", highlight=False, markup=False, soft_wrap=True)
    ctx.console.print(f"Results: s3://{outputs['results_bucket']}/{name}/ at the end", highlight=False, soft_wrap=True)


def _require_time(ctx: Context, name: str, least_h: float, head: FleetNode, bucket: str) -> None:
    """ConfigError where the head ends before the sweep can; one that was begun may use what time there is."""
    end = _end_of(ctx, head)
    left_h = (end - datetime.now(UTC)).total_seconds() / 3600
    if least_h <= left_h or _is_begun(ctx.aws, name, head.id, bucket):
        return
    longer = f" with cluster.aws.max_hours above {least_h:.1f}" if least_h > ctx.fleet.max_hours else ""
    raise ConfigError(
        f"{name} takes at least {least_h:.1f} h here, but the head {head.id} ends in {max(0.0, left_h):.1f} h, at "
        f"{end:%Y-%m-%d %H:%M} UTC (cluster.aws.max_hours={ctx.fleet.max_hours:g}); make a new one by `orchestrator "
        f"fleet down` and `fleet up`{longer}, have more workers, or measure less"
    )


def _is_begun(aws: Aws, name: str, head_id: str, bucket: str) -> bool:
    """Whether there is a sweep of that name to continue: its forecast is of all of it."""
    if any(not copy.is_finished for copy in copies_of(aws, bucket, name)):
        return True
    return "begun" in on_head(aws, head_id, ["sh", "-c", BEGUN, "sh", str(HEAD_FOLDER / name)])


def _end_of(ctx: Context, head: FleetNode) -> datetime:
    return head.launched_utc + timedelta(hours=ctx.fleet.max_hours)


def _require_begun(ctx: Context, head_id: str, job: str) -> None:
    """Watch the job's first seconds, in which a wrong image or configuration shows.

    Raises:
        FleetFailed: with the last line of its log, whose end is shown.
    """
    for _ in range(NUM_LOOKS):
        status = on_head(ctx.aws, head_id, ["ray", "job", "status", job])
        if f"Job '{job}' failed" in status:  # Ray names the other states in capitals
            lines = on_head(ctx.aws, head_id, ["ray", "job", "logs", job]).strip().splitlines()
            shown = "\n".join(lines[-NUM_LOG_LINES:])
            ctx.console.print(shown, highlight=False, markup=False, soft_wrap=True)
            raise FleetFailed(f"{job} failed on the head {head_id} at once: {lines[-1] if lines else 'no log'}")
        if "PENDING" not in status and "RUNNING" not in status:
            return
        time.sleep(LOOK_EVERY_S)


def for_head(config: SweepConfig, aws: Aws, outputs: Mapping[str, Any]) -> SweepConfig:
    """The same sweep, as the head runs it: Ray and MLflow where they are there, AWS's prices of today."""
    fleet = config.cluster.aws
    assert fleet is not None
    tracking = config.tracking
    if tracking.uri == Tracking().uri:  # a database of this machine
        tracking = tracking.model_copy(update={"uri": outputs["mlflow_uri"]})
    cluster = config.cluster.model_copy(
        update={
            "address": outputs["ray_address"],
            "auth_mode": "token",
            "aws": fleet.model_copy(update={"results_bucket": outputs["results_bucket"]}),
        }
    )
    return config.model_copy(
        update={
            "hardware": priced(config.hardware, aws),
            "cluster": cluster,
            "tracking": tracking,
            "results_dir": str(HEAD_FOLDER),
        }
    )


def fetched_sweep(uri: str, folder: Path = HEAD_FOLDER) -> tuple[SweepConfig, str]:
    """On the head: the configuration that `start_sweep` sent to `uri`, its prompt files beside it, and its command.

    Raises:
        ArtifactsFailed, ConfigError: it is not there, damaged, or of another version of this tool.
    """
    match = _INPUTS.fullmatch(uri)
    if match is None:
        raise ConfigError(f"expected s3://BUCKET/inputs/SHA256 as `orchestrator fleet sweep` makes it, but got {uri!r}")
    inputs = folder / "inputs" / match[1]
    download_folder(uri, inputs)
    config = load_yaml(inputs / CONFIG)
    if config.cluster.aws is not None:
        remember(folder / f"{config.cluster.aws.name}-{NODES}", remembered(inputs / NODES), datetime.now(UTC))
    command = (inputs / COMMAND).read_text(encoding="utf-8")
    return _with_data_files(config, lambda name, file: str(inputs / file)), command


def _send_inputs(config: SweepConfig, bucket: str, nodes: Path, command: str) -> str:
    """Where the head finds configuration, prompts and the fleet's machines of before, which count towards the budget:
    named after their content, so that nothing is overwritten."""
    with tempfile.TemporaryDirectory(prefix="specsweep-") as temporary:
        folder = Path(temporary)

        def copied(name: str, file: str) -> str:
            source = Path(file).expanduser()
            if not source.is_file():
                raise ConfigError(f"datasets.{name}.data_files={file}: no such file")
            kept = f"{name}.jsonl"
            shutil.copyfile(source, folder / kept)
            return kept

        text = to_yaml(_with_data_files(config, copied))
        (folder / CONFIG).write_text(text, encoding="utf-8")
        (folder / COMMAND).write_text(command, encoding="utf-8")
        if nodes.exists():
            shutil.copyfile(nodes, folder / NODES)
        digest = hashlib.sha256()
        for path in sorted(folder.iterdir()):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        uri = f"s3://{bucket}/inputs/{digest.hexdigest()}"
        upload_folder(folder, uri)
        return uri


def _with_data_files(config: SweepConfig, moved: Any) -> SweepConfig:
    """`moved(dataset's name, file)` for every prompt file that is not shipped."""

    def one(name: str, dataset: Dataset) -> Dataset:
        if dataset.data_files is None or dataset.data_files.startswith("demo://"):
            return dataset
        return dataset.model_copy(update={"data_files": moved(name, dataset.data_files)})

    return config.model_copy(update={"datasets": {name: one(name, found) for name, found in config.datasets.items()}})


def _password_command(region: str, parameter: str) -> str:
    return (
        f"aws ssm get-parameter --region {region} --with-decryption --name {parameter} "
        "--query Parameter.Value --output text"
    )
