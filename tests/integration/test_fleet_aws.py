"""A fleet's machines, lease, prices and end, by real boto3 against a moto server; its groups are made by boto3, too."""

import io
import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber
from rich.console import Console

from orchestrator import fleet_sweep
from orchestrator.compose import compose
from orchestrator.config import Fleet, Hardware, SweepConfig
from orchestrator.errors import ConfigError, FleetFailed
from orchestrator.fleet import Context, context, known_nodes, preflight, renew, resize, status, zones_of
from orchestrator.fleet_aws import TAG, Aws, groups_of, nodes_of
from orchestrator.fleet_down import down
from orchestrator.fleet_head import on_head, session_command
from orchestrator.fleet_keeper import LeaseKeeper
from orchestrator.fleet_lease import ACTION, lease_of, release, set_lease
from orchestrator.fleet_left import left_by_tag
from orchestrator.fleet_nodes import NODES, remember
from orchestrator.fleet_prices import priced
from orchestrator.fleet_sweep import BEGUN, fetched_sweep, for_head, start_sweep
from orchestrator.fleet_terraform import Terraform
from orchestrator.fleet_text import print_status
from orchestrator.forecast import Forecast
from orchestrator.token_time import Range
from tests.integration import aws
from tests.integration.sweeping import sandbox, small
from tests.standin import free_port

GROUP = "specsweep-r8i_16xlarge"
TYPE = "r8i.16xlarge"
TYPED = "orchestrator fleet sweep"
OVERRIDES = [
    "sweep=xeon_dflash",
    "cluster=aws",
    "cluster.aws.head_image=own/head:1",
    "cluster.aws.worker_image=own/worker:1",
]


@pytest.fixture(scope="module")
def region() -> Iterator[Aws]:
    with aws.s3():
        yield Aws("us-east-1")


@pytest.fixture(scope="module")
def image(region: Aws) -> str:
    return str(region.client("ec2").describe_images(Owners=["amazon"])["Images"][0]["ImageId"])


@pytest.fixture
def cloud(region: Aws, image: str) -> Iterator[Aws]:
    """With one group of three workers and a head."""
    ec2, scaling = region.client("ec2"), region.client("autoscaling")
    tags = [{"Key": TAG, "Value": "specsweep"}]
    ec2.create_launch_template(LaunchTemplateName=GROUP, LaunchTemplateData={"ImageId": image, "InstanceType": TYPE})
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=GROUP,
        LaunchTemplate={"LaunchTemplateName": GROUP},
        MinSize=0,
        MaxSize=4,
        DesiredCapacity=3,
        AvailabilityZones=["us-east-1a"],
        Tags=[tag | {"PropagateAtLaunch": True} for tag in tags],
    )
    ec2.run_instances(
        ImageId=image,
        InstanceType="m7i.large",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )
    yield region
    ids = [node.id for node in nodes_of(region, "specsweep")]
    for action in scaling.describe_scheduled_actions()["ScheduledUpdateGroupActions"]:
        # moto keeps it beyond the group's end
        scaling.delete_scheduled_action(AutoScalingGroupName=GROUP, ScheduledActionName=action["ScheduledActionName"])
    if groups_of(region, "specsweep"):
        scaling.delete_auto_scaling_group(AutoScalingGroupName=GROUP, ForceDelete=True)
    ec2.terminate_instances(InstanceIds=ids)
    ec2.delete_tags(Resources=ids, Tags=tags)
    ec2.delete_launch_template(LaunchTemplateName=GROUP)
    aws.empty()


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def ctx(cloud: Aws, tmp_path: Path, said: io.StringIO) -> Context:
    return made(tmp_path, said)


def made(folder: Path, said: io.StringIO, *overrides: str) -> Context:
    return context(compose([*OVERRIDES, *overrides]), Console(file=said, width=200), folder / "fleets")


def fleet_of(config: SweepConfig) -> Fleet:
    assert config.cluster.aws is not None
    return config.cluster.aws


def give_state(ctx: Context, head_id: str, *zones: str) -> None:
    """As Terraform leaves it, as far as a sweep and `fleet up` read it."""
    outputs = {
        "availability_zones": zones,
        "head_instance_id": head_id,
        "ray_address": "10.42.0.10:6379",
        "mlflow_uri": "http://10.42.0.10:5000",
        "results_bucket": aws.BUCKET,
        "asg_names": {"r8i_16xlarge": GROUP},
        "secret_parameters": {"mlflow_password": "/specsweep/specsweep/mlflow_password"},
    }
    state = {"outputs": {name: {"value": value} for name, value in outputs.items()}, "resources": []}
    ctx.folder.mkdir(parents=True, exist_ok=True)
    (ctx.folder / "terraform.tfstate").write_text(json.dumps(state))


def head_id(cloud: Aws) -> str:
    return next(node.id for node in nodes_of(cloud, "specsweep") if node.role == "head")


def fire_lease(cloud: Aws) -> None:
    """What AWS does at StartTime, and moto does not: apply the scheduled action as it says."""
    scaling = cloud.client("autoscaling")
    (action,) = scaling.describe_scheduled_actions(AutoScalingGroupName=GROUP)["ScheduledUpdateGroupActions"]
    scaling.update_auto_scaling_group(
        AutoScalingGroupName=GROUP, MinSize=action["MinSize"], DesiredCapacity=action["DesiredCapacity"]
    )


def running(cloud: Aws) -> list[str]:
    return [node.id for node in nodes_of(cloud, "specsweep") if node.role == "worker" and node.ended_utc is None]


def test_status_tells_nodes_cost_and_end(ctx: Context, said: io.StringIO) -> None:
    renew(ctx)

    found = status(ctx)
    print_status(found, ctx.console)

    assert [node.role for node in found.nodes] == ["head", "worker", "worker", "worker"]
    assert found.usd_per_hour == pytest.approx(3 * 4.44544 + 0.1508)
    assert found.usd_so_far is not None
    assert found.workers_end_utc is not None
    assert found.workers_end_utc - found.asked_utc == pytest.approx(timedelta(hours=4), abs=timedelta(seconds=5))
    assert found.head_ends_utc is not None
    assert found.nodes[0].id in said.getvalue()
    assert f"to zero at {found.workers_end_utc:%Y-%m-%d %H:%M} UTC" in said.getvalue()
    assert "$13.49 an hour" in said.getvalue()


def test_network_without_a_head_is_told_and_counted(cloud: Aws, ctx: Context, said: io.StringIO) -> None:
    ec2 = cloud.client("ec2")
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    tags = [{"ResourceType": "natgateway", "Tags": [{"Key": TAG, "Value": "specsweep"}]}]
    gateway = ec2.create_nat_gateway(SubnetId=subnet, TagSpecifications=tags)["NatGateway"]["NatGatewayId"]
    release(cloud, "specsweep")
    ec2.terminate_instances(InstanceIds=[head_id(cloud)])

    found = status(ctx)
    print_status(found, ctx.console)
    ec2.delete_nat_gateway(NatGatewayId=gateway)

    assert found.usd_per_hour == pytest.approx(0.05)
    assert "NAT gateway costs $0.05 an hour until `orchestrator fleet down`" in said.getvalue()
    assert status(ctx).usd_per_hour == 0


def test_group_without_a_lease_is_told_loudly(ctx: Context, said: io.StringIO) -> None:
    found = status(ctx)
    print_status(found, ctx.console)

    assert found.workers_end_utc is None
    assert "NO LEASE" in said.getvalue()


def test_lease_lets_every_worker_go_at_its_time(cloud: Aws, ctx: Context) -> None:
    end = renew(ctx)

    (action,) = cloud.client("autoscaling").describe_scheduled_actions()["ScheduledUpdateGroupActions"]
    assert (action["ScheduledActionName"], action["MinSize"], action["DesiredCapacity"]) == (ACTION, 0, 0)
    assert action["StartTime"] == end
    assert len(running(cloud)) == 3
    fire_lease(cloud)
    assert running(cloud) == []
    assert status(ctx).usd_per_hour == pytest.approx(0.1508)


def test_lease_set_again_moves_the_one_there_is(cloud: Aws) -> None:
    groups = groups_of(cloud, "specsweep")
    set_lease(cloud, groups, datetime.now(UTC) + timedelta(hours=1))
    later = set_lease(cloud, groups, datetime.now(UTC) + timedelta(hours=2))

    assert lease_of(cloud, groups[0]) == later
    assert len(cloud.client("autoscaling").describe_scheduled_actions()["ScheduledUpdateGroupActions"]) == 1


def test_lease_in_the_past_is_set_to_the_soonest_time_that_aws_takes(cloud: Aws) -> None:
    end = set_lease(cloud, groups_of(cloud, "specsweep"), datetime.now(UTC) - timedelta(hours=1))

    assert timedelta(seconds=50) < end - datetime.now(UTC) <= timedelta(minutes=1)


def test_running_sweep_moves_the_lease_on_and_leaves_it_when_killed(
    cloud: Aws, tmp_path: Path, said: io.StringIO
) -> None:
    config = compose([*OVERRIDES, "cluster.aws.ttl_hours=0.001", f"results_dir={tmp_path}"])
    with LeaseKeeper(config, fleet_of(config), Console(file=said)):
        groups = groups_of(cloud, "specsweep")
        first = lease_of(cloud, groups[0])
        deadline = time.monotonic() + 20
        while (later := lease_of(cloud, groups[0])) == first and time.monotonic() < deadline:
            time.sleep(0.1)

    assert first is not None
    assert later is not None
    assert later > first


def test_running_sweep_says_when_the_budget_ends_the_fleet(cloud: Aws, tmp_path: Path, said: io.StringIO) -> None:
    config = compose([*OVERRIDES, "cluster.budget_usd=10", f"results_dir={tmp_path}"])
    keeper = LeaseKeeper(config, fleet_of(config), Console(file=said, width=300))

    end = keeper.renew()

    # 10 dollars at 3 x 4.44544 + 0.1508 an hour
    assert end - datetime.now(UTC) == pytest.approx(timedelta(hours=0.7415), abs=timedelta(seconds=20))
    assert f"The workers end at {end:%Y-%m-%d %H:%M} UTC" in said.getvalue()


def test_running_sweep_counts_the_network_from_its_beginning(cloud: Aws, tmp_path: Path, said: io.StringIO) -> None:
    """It may be older than the head: a gateway of 40 h at $0.25 an hour has taken all of $10."""
    config = compose(
        [*OVERRIDES, "cluster.budget_usd=10", "cluster.aws.network_usd_per_hour=0.25", f"results_dir={tmp_path}"]
    )
    keeper = LeaseKeeper(config, fleet_of(config), Console(file=said, width=300))
    made_utc = datetime.now(UTC) - timedelta(hours=40)

    with Stubber(keeper.aws.client("ec2")) as ec2:
        ec2.add_response("describe_instances", cloud.client("ec2").describe_instances())
        ec2.add_response("describe_nat_gateways", {"NatGateways": [{"State": "available", "CreateTime": made_utc}]})
        end = keeper.renew()

    assert end - datetime.now(UTC) <= timedelta(minutes=1)


def test_sweep_on_a_fleet_that_is_gone_is_refused(cloud: Aws, tmp_path: Path, said: io.StringIO) -> None:
    config = compose([*OVERRIDES, "cluster.aws.name=other", f"results_dir={tmp_path}"])

    with pytest.raises(FleetFailed, match="no group of workers carries the tag of fleet other"):
        LeaseKeeper(config, fleet_of(config), Console(file=said)).renew()


def test_release_ends_the_workers_at_once(cloud: Aws) -> None:
    assert release(cloud, "specsweep") == [GROUP]
    assert running(cloud) == []
    assert release(cloud, "specsweep") == []


def test_scale_in_ends_nodes_and_keeps_their_cost(cloud: Aws, ctx: Context) -> None:
    give_state(ctx, head_id(cloud))
    status(ctx)

    found = resize(ctx, 1)

    assert len(running(cloud)) == 1
    assert found.groups[0].desired_size == 1
    assert sum(node.state == "terminated" for node in found.nodes) == 2
    cloud.client("ec2").delete_tags(
        Resources=[node.id for node in found.nodes if node.ended_utc], Tags=[{"Key": TAG}]
    )  # as if EC2 had forgotten them
    assert len(status(ctx).nodes) == 4


def test_scale_beyond_the_maximum_is_refused_before_aws_takes_it(cloud: Aws, ctx: Context) -> None:
    give_state(ctx, head_id(cloud))

    with pytest.raises(ConfigError, match="at most 4 nodes, but got 5"):
        resize(ctx, 5)
    assert len(running(cloud)) == 3


def test_scale_out_gives_a_lease(cloud: Aws, ctx: Context) -> None:
    give_state(ctx, head_id(cloud))

    assert resize(ctx, 4).workers_end_utc is not None


def test_scale_to_as_many_as_there_are_moves_the_lease_on(cloud: Aws, ctx: Context) -> None:
    give_state(ctx, head_id(cloud))
    soon = set_lease(cloud, groups_of(cloud, "specsweep"), datetime.now(UTC) + timedelta(minutes=5))

    end = resize(ctx, 3).workers_end_utc

    assert end is not None
    assert end > soon + timedelta(hours=3)


def test_scale_out_is_refused_where_the_budget_leaves_no_time_to_measure(cloud: Aws, tmp_path: Path) -> None:
    ctx = made(tmp_path, io.StringIO(), "cluster.budget_usd=5")
    give_state(ctx, head_id(cloud))
    resize(ctx, 1)

    with pytest.raises(ConfigError, match=r"4 workers could run for 1\d min only: \$0\.0\d of cluster.budget_usd=5"):
        resize(ctx, 4)
    assert len(running(cloud)) == 1


def test_scale_out_has_the_lease_that_its_own_cost_leaves(cloud: Aws, tmp_path: Path) -> None:
    ctx = made(tmp_path, io.StringIO(), "cluster.budget_usd=18")
    give_state(ctx, head_id(cloud))
    resize(ctx, 1)

    found = resize(ctx, 4)

    assert found.workers_end_utc is not None
    assert timedelta(minutes=55) < found.workers_end_utc - found.asked_utc < timedelta(minutes=65)


def test_idle_alarm_of_before_does_not_end_what_is_scaled_out(cloud: Aws, ctx: Context) -> None:
    give_state(ctx, head_id(cloud))
    watch = cloud.client("cloudwatch")
    watch.put_metric_alarm(
        AlarmName=f"{GROUP}-idle", ComparisonOperator="LessThanThreshold", EvaluationPeriods=12, Threshold=5
    )
    watch.set_alarm_state(AlarmName=f"{GROUP}-idle", StateValue="ALARM", StateReason="idle for an hour")

    resize(ctx, 4)

    [alarm] = watch.describe_alarms(AlarmNames=[f"{GROUP}-idle"])["MetricAlarms"]
    assert alarm["StateValue"] == "OK"


def test_prices_of_today_come_with_date_and_source(cloud: Aws) -> None:
    profile = Hardware(name="x", instance_type=TYPE, usd_per_hour=4, usd_per_hour_date="2020-01-01")
    today = datetime.now(UTC).date().isoformat()

    with Stubber(cloud.client("pricing", "us-east-1")) as prices, Stubber(cloud.client("ec2")) as spot:
        prices.add_response("get_products", {"PriceList": [json.dumps(product("4.44544"))]})
        entries = [("us-east-1a", "1.20", 1), ("us-east-1a", "9.99", 0), ("us-east-1b", "1.50", 1)]
        spot.add_response("describe_spot_price_history", {"SpotPriceHistory": [entry(*found) for found in entries]})
        found = priced(profile, cloud)

    assert (found.usd_per_hour, found.usd_per_hour_date) == (4.44544, today)
    assert found.usd_per_hour_source == f"AWS price list on {today}: on demand, us-east-1, Linux"
    assert (found.spot_usd_per_hour, found.spot_usd_per_hour_date) == (1.5, today)


def test_profiles_price_counts_where_aws_does_not_answer(cloud: Aws, caplog: pytest.LogCaptureFixture) -> None:
    profile = Hardware(name="x", instance_type=TYPE, usd_per_hour=4, usd_per_hour_date="2020-01-01")

    with Stubber(cloud.client("pricing", "us-east-1")) as prices, Stubber(cloud.client("ec2")) as spot:
        prices.add_client_error("get_products", "AccessDeniedException", "not authorized")
        spot.add_response("describe_spot_price_history", {"SpotPriceHistory": []})
        found = priced(profile, cloud)

    assert found == profile
    assert "not authorized" in caplog.text


def product(usd: str) -> dict[str, Any]:
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": usd}}
    return {"terms": {"OnDemand": {"t": {"priceDimensions": {"d": dimension}}}}}


def entry(zone: str, usd: str, minute: int) -> dict[str, Any]:
    return {"AvailabilityZone": zone, "SpotPrice": usd, "Timestamp": datetime(2026, 8, 1, 12, minute, tzinfo=UTC)}


HOSTILE = ["$(touch owned)", "`touch owned`", "; touch owned", "a'b\"c", "--flag", "line\nbreak", "*", "ä b"]


def test_command_on_the_head_gets_its_arguments_as_they_are(cloud: Aws, tmp_path: Path) -> None:
    on_head(cloud, head_id(cloud), ["echo", *HOSTILE])

    commands = cloud.client("ssm").list_commands()["Commands"]
    script = max(commands, key=lambda command: command["RequestedDateTime"])["Parameters"]["commands"][0]
    assert run_with_stub_docker(script, tmp_path) == ["exec", "specsweep-head", "echo", *HOSTILE]
    assert not (tmp_path / "owned").exists()


def test_command_to_type_gets_its_arguments_as_they_are(tmp_path: Path) -> None:
    typed = shlex.split(session_command("us-east-1", "i-1", ["echo", *HOSTILE]))

    (script,) = json.loads(typed[-1])["command"]
    assert shlex.split(script) == ["sudo", "docker", "exec", "specsweep-head", "echo", *HOSTILE]


def run_with_stub_docker(script: str, folder: Path) -> list[str]:
    """The arguments that a shell gives to docker."""
    stub = folder / "docker"
    stub.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    stub.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(["sh", "-c", script], cwd=folder, env={"PATH": path}, capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def test_sweep_goes_to_the_head_with_its_prompts_and_comes_back_the_same(
    cloud: Aws, tmp_path: Path, said: io.StringIO
) -> None:
    prompts = tmp_path / "my $(prompts).jsonl"
    prompts.write_text('{"prompt": "one"}\n')
    own = ["dataset@datasets=[jsonl]", f"datasets.custom.data_files='{prompts}'", "name=mine"]
    ctx = made(tmp_path, said, *own)
    give_state(ctx, head_id(cloud))

    start_sweep(ctx, compose([*OVERRIDES, *own]), None, TYPED)

    (run,) = [c for c in cloud.client("ssm").list_commands()["Commands"] if "submit" in str(c["Parameters"])]
    words = run_with_stub_docker(run["Parameters"]["commands"][0], tmp_path)
    job, uri = words[words.index("--submission-id") + 1], words[-1]
    assert words[:5] == ["exec", "specsweep-head", "ray", "job", "submit"]
    assert words[words.index("--") + 1 : -1] == ["orchestrator", "fleet", "run"]
    assert job in said.getvalue()
    sent, command = fetched_sweep(uri, tmp_path / "head")
    assert command == TYPED
    data_files = sent.datasets["custom"].data_files
    assert data_files is not None
    assert Path(data_files).read_text() == prompts.read_text()
    assert Path(data_files).is_relative_to(tmp_path / "head")
    assert (sent.cluster.address, sent.cluster.auth_mode) == ("10.42.0.10:6379", "token")
    assert sent.tracking.uri == "http://10.42.0.10:5000"
    assert fleet_of(sent).results_bucket == aws.BUCKET
    assert sent.speculation == compose([*OVERRIDES, *own]).speculation
    lease = lease_of(cloud, groups_of(cloud, "specsweep")[0])
    assert lease is not None
    assert lease > datetime.now(UTC)


def test_budget_counts_what_ended_before_the_sweep_was_sent_to_the_head(
    cloud: Aws, tmp_path: Path, said: io.StringIO
) -> None:
    own = ["cluster.budget_usd=60"]
    ctx = made(tmp_path, said, *own)
    give_state(ctx, head_id(cloud))
    [first, *_] = [node for node in known_nodes(ctx) if node.role == "worker"]
    ended = datetime.now(UTC) - timedelta(hours=2)
    forgotten = first.model_copy(
        update={"id": "i-before", "launched_utc": ended - timedelta(hours=10.5), "ended_utc": ended}
    )
    remember(ctx.folder / NODES, [forgotten], ended)

    start_sweep(ctx, compose([*OVERRIDES, *own]), None, TYPED)
    *_, command = [c for c in cloud.client("ssm").list_commands()["Commands"] if "submit" in str(c["Parameters"])]
    uri = run_with_stub_docker(command["Parameters"]["commands"][0], tmp_path)[-1]
    sent, _ = fetched_sweep(uri, tmp_path / "head")
    sent = sent.model_copy(update={"results_dir": str(tmp_path / "head")})
    now = datetime.now(UTC)
    left = LeaseKeeper(sent, fleet_of(sent), Console(file=said)).renew() - now

    # $46.68 are spent; three workers and the rest take $13.49 an hour.
    assert timedelta(minutes=57) < left < timedelta(minutes=61)
    assert LeaseKeeper(sent, fleet_of(sent), Console(file=said)).renew() - now == pytest.approx(
        left, abs=timedelta(seconds=30)
    )


def test_job_that_fails_at_once_is_told_with_its_log(
    cloud: Aws, ctx: Context, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Ray 2.60's command line prints of a job that waits, then fails."""
    give_state(ctx, head_id(cloud))
    states = iter(
        ["INFO cli.py:92 -- Status for job '{}': PENDING\n", "ERR cli.py:75 -- \x1b[31mJob '{}' failed\x1b[39m\n"]
    )

    def answer(aws: Aws, head: str, command: Sequence[str]) -> str:
        if command[2] == "status":
            return next(states).format(command[-1])
        return "Traceback ...\nNo module named 'boto3'\n" if command[2] == "logs" else ""

    monkeypatch.setattr(fleet_sweep, "on_head", answer)
    monkeypatch.setattr(fleet_sweep, "LOOK_EVERY_S", 0.0)

    with pytest.raises(FleetFailed, match=r"failed on the head i-.* at once: No module named 'boto3'"):
        start_sweep(ctx, compose(OVERRIDES), None, TYPED)
    assert "Traceback ...\nNo module named" in said.getvalue()
    assert "Started" not in said.getvalue()


def test_same_sweep_sent_twice_lies_once_in_the_bucket(cloud: Aws, ctx: Context) -> None:
    give_state(ctx, head_id(cloud))
    config = compose(OVERRIDES)

    start_sweep(ctx, config, None, TYPED)
    before = aws.keys()
    start_sweep(ctx, config, None, TYPED)

    assert aws.keys() == before


def test_own_mlflow_stays_when_a_sweep_goes_to_the_head(cloud: Aws) -> None:
    outputs = {"ray_address": "10.42.0.10:6379", "mlflow_uri": "http://10.42.0.10:5000", "results_bucket": "b"}

    for choice, uri in (
        (["tracking=none"], None),
        (["tracking=server", "tracking.uri=http://own:5000"], "http://own:5000"),
    ):
        assert for_head(compose([*OVERRIDES, *choice]), cloud, outputs).tracking.uri == uri


def test_missing_prompt_file_is_said_before_anything_is_sent(cloud: Aws, tmp_path: Path, said: io.StringIO) -> None:
    own = ["dataset@datasets=[jsonl]", "datasets.custom.data_files=nowhere.jsonl"]
    ctx = made(tmp_path, said, *own)
    give_state(ctx, head_id(cloud))

    with pytest.raises(ConfigError, match=r"datasets\.custom\.data_files=nowhere\.jsonl: no such file"):
        start_sweep(ctx, compose([*OVERRIDES, *own]), None, TYPED)
    assert aws.keys() == []


def test_sweep_on_released_workers_says_how_to_get_some(cloud: Aws, ctx: Context) -> None:
    give_state(ctx, head_id(cloud))
    release(cloud, "specsweep")

    with pytest.raises(ConfigError, match="fleet scale 1"):
        start_sweep(ctx, compose(OVERRIDES), None, TYPED)


def of_hours(hours: float) -> Forecast:
    """A sweep of that many hours, however many nodes there are."""
    none = Range(0, 0)
    half = Range(hours * 1800, 10 * hours * 1800)
    return Forecast(
        baseline_s=half,  # at the start and at the end
        arm_s=none,
        confirmation_s=none,
        num_arms=0,
        typical_arms=0,
        num_confirmations=0,
        hardware=Hardware(name="x"),
        fleet=None,
        max_node_hours=None,
        basis=(),
    )


def test_sweep_that_the_head_cannot_see_the_end_of_is_refused(cloud: Aws, tmp_path: Path, said: io.StringIO) -> None:
    own = ["cluster.aws.max_hours=5"]
    ctx = made(tmp_path, said, *own)
    give_state(ctx, head_id(cloud))

    with pytest.raises(
        ConfigError,
        match=r"xeon_dflash takes at least 6\.0 h here, but the head i-\w+ ends in 5\.0 h, at .* UTC "
        r"\(cluster\.aws\.max_hours=5\); make a new one by .* with cluster\.aws\.max_hours above 6\.0",
    ):
        start_sweep(ctx, compose([*OVERRIDES, *own]), of_hours(6), TYPED)
    assert aws.keys() == []

    start_sweep(ctx, compose([*OVERRIDES, *own]), of_hours(4), TYPED)
    assert "on the next head the same command continues" in said.getvalue()


def test_begun_sweep_uses_what_time_the_head_has_left(cloud: Aws, tmp_path: Path, said: io.StringIO) -> None:
    own = ["cluster.aws.max_hours=5"]
    ctx = made(tmp_path, said, *own)
    give_state(ctx, head_id(cloud))
    folder = "rescued/i-old/results/xeon_dflash/2026-11-29T04-00-00.000000Z"
    aws.put(f"{folder}/plan.json", b"{}")
    aws.put(f"{folder}/ledger.jsonl", b"{}\n")

    start_sweep(ctx, compose([*OVERRIDES, *own]), of_hours(6), TYPED)
    aws.put(f"{folder}/selection.json", b"{}")
    with pytest.raises(ConfigError, match="takes at least"):
        start_sweep(ctx, compose([*OVERRIDES, *own]), of_hours(6), TYPED)


def test_head_tells_whether_a_sweep_was_begun_on_it(tmp_path: Path) -> None:
    def told() -> str:
        asked = ["sh", "-c", BEGUN, "sh", str(tmp_path / "my $(name)")]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout

    assert told() == ""
    folder = tmp_path / "my $(name)" / "2026"
    folder.mkdir(parents=True)
    (folder / "plan.json").touch()
    assert told() == "begun\n"
    (folder / "selection.json").touch()
    assert told() == ""


def test_sweep_on_a_head_that_has_ended_says_how_to_get_another(cloud: Aws, ctx: Context) -> None:
    give_state(ctx, head_id(cloud))
    cloud.client("ec2").terminate_instances(InstanceIds=[head_id(cloud)])

    with pytest.raises(ConfigError, match="the head of fleet specsweep has ended; `orchestrator fleet up`"):
        start_sweep(ctx, compose(OVERRIDES), None, TYPED)


@pytest.mark.parametrize("uri", ["s3://b/other/0", "s3://b/inputs/../x", "file:///etc", f"s3://b/inputs/{'0' * 64}/x"])
def test_head_fetches_nothing_but_inputs(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected s3://BUCKET/inputs/SHA256"):
        fetched_sweep(uri, tmp_path)


def test_fleet_of_somebody_else_with_the_same_name_is_not_taken_over(ctx: Context) -> None:
    with pytest.raises(ConfigError, match="has a fleet named specsweep already"):
        preflight(ctx)


def test_instance_type_that_the_region_lacks_is_said_at_once(cloud: Aws, tmp_path: Path, said: io.StringIO) -> None:
    ctx = made(tmp_path, said, "hardware.instance_type=r8i.99xlarge", "cluster.aws.name=other")

    with pytest.raises(ConfigError, match=r"r8i\.99xlarge: not offered .* zone of us-east-1 \(us-east-1a: m7i\.large"):
        preflight(ctx)


@pytest.mark.parametrize(
    ("override", "refusal"),
    [
        ("cluster.aws.max_hours=20", None),
        ("cluster.aws.availability_zones=[us-east-1a]", "lies in us-east-1b, .* another choice takes"),
        ("hardware.instance_type=r8i.99xlarge", r"r8i\.99xlarge: not offered .* \(us-east-1b: m7i\.large\)"),
    ],
)
def test_fleet_stays_in_its_zones_which_must_have_what_it_is_to_get(
    cloud: Aws, tmp_path: Path, said: io.StringIO, override: str, refusal: str | None
) -> None:
    ctx = made(tmp_path, said, override)
    give_state(ctx, head_id(cloud), "us-east-1b")

    with pytest.raises(ConfigError, match=refusal) if refusal else nullcontext():
        assert zones_of(ctx) == ("us-east-1b",)


def test_image_that_is_not_in_its_registry_is_said_at_once(cloud: Aws, tmp_path: Path, said: io.StringIO) -> None:
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/head:1"
    ctx = made(tmp_path, said, f"cluster.aws.head_image='{image}'", "cluster.aws.name=other")

    with pytest.raises(ConfigError, match=r"looking for the image .*/head:1: .*RepositoryNotFound.*build and push it"):
        preflight(ctx)


def test_down_without_state_ends_what_is_billed_and_says_what_is_left(cloud: Aws, ctx: Context) -> None:
    tags = [{"ResourceType": "vpc", "Tags": [{"Key": TAG, "Value": "specsweep"}]}]
    vpc = cloud.client("ec2").create_vpc(CidrBlock="10.42.0.0/16", TagSpecifications=tags)["Vpc"]["VpcId"]
    try:
        with pytest.raises(FleetFailed, match=f"still there .*vpc/{vpc}.* has no state of it, so remove that by hand"):
            down(ctx, listed_timeout_s=0)
    finally:
        cloud.client("ec2").delete_vpc(VpcId=vpc)
    assert all(node.ended_utc for node in nodes_of(cloud, "specsweep"))
    assert groups_of(cloud, "specsweep") == []


class Destroyed(Terraform):
    """Its destroy succeeds; what AWS lists all the same is its list's lateness."""

    has_state = True

    def results_bucket(self) -> str | None:
        return None

    def destroy(self, keep: Sequence[str] = ()) -> None:
        pass


@pytest.mark.parametrize(("kind", "is_refused"), [("vpc", False), ("volume", True)])
def test_what_aws_lists_late_is_told_and_only_what_costs_fails_the_end(
    cloud: Aws, ctx: Context, said: io.StringIO, kind: str, is_refused: bool
) -> None:
    ec2 = cloud.client("ec2")
    tags = [{"ResourceType": kind, "Tags": [{"Key": TAG, "Value": "specsweep"}]}]
    if kind == "vpc":
        left = ec2.create_vpc(CidrBlock="10.43.0.0/16", TagSpecifications=tags)["Vpc"]["VpcId"]
    else:
        left = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=tags)["VolumeId"]
    cloud.client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=GROUP, ForceDelete=True)
    late = replace(ctx, terraform=Destroyed(ctx.folder, ctx.console))
    try:
        with pytest.raises(FleetFailed, match=left) if is_refused else nullcontext():
            down(late, listed_timeout_s=0)
    finally:
        ec2.delete_vpc(VpcId=left) if kind == "vpc" else ec2.delete_volume(VolumeId=left)

    assert (f"{left}: it costs nothing" in said.getvalue()) != is_refused


def test_down_can_be_repeated(cloud: Aws, ctx: Context, said: io.StringIO) -> None:
    down(ctx, listed_timeout_s=0)
    down(ctx, listed_timeout_s=0)

    assert left_by_tag(cloud, "specsweep") == []
    assert said.getvalue().count("nothing with its tag is left") == 2
    assert "4 machines in all" in said.getvalue()
    assert not (ctx.folder / NODES).exists()


def test_sweep_on_a_fleet_keeps_its_lease_hands_in_its_results_and_releases_the_workers(
    cloud: Aws, tmp_path: Path
) -> None:
    port = free_port()
    with sandbox(tmp_path) as box:
        box.start_ray(
            *("--head", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=1"),
            *("--include-dashboard=false", f"--temp-dir={box.temporary}/r", "--object-store-memory=100000000"),
            *("--resources", '{"xeon_node": 1}'),
        )
        ended = box.run(
            *small(*OVERRIDES[1:], f"cluster.address=127.0.0.1:{port}", "cluster.auth_mode=disabled"),
            f"cluster.aws.results_bucket={aws.BUCKET}",
        )

        assert ended.exit_code == 0, ended
        assert running(cloud) == []
        lease = lease_of(cloud, groups_of(cloud, "specsweep")[0])
        assert lease is not None
        assert lease - datetime.now(UTC) == pytest.approx(timedelta(hours=4), abs=timedelta(minutes=2))
        prefix = f"{box.sweep.sweep_id}/"
        found = aws.keys()
        names = {key.removeprefix(prefix).partition("/")[2] for key in found if key.startswith(prefix)}
        assert names >= {"SHA256SUMS", "config.yaml", "plan.json", "ledger.jsonl", "selection.json", "report.html"}
        assert f"Released the workers of {GROUP}" in ended.stdout
        assert f"Uploaded {len(names) - 1} files with checksums to s3://{aws.BUCKET}/{prefix}" in ended.stdout
