"""The fleet's Terraform module: its rules on a mocked provider, then made, looked at and removed on an emulated AWS."""

import base64
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from tests.aws import emulated

PROFILE = {
    "instance_type": "m7i.4xlarge",
    "max_size": 4,
    # moto starts the nodes on demand only.
    "on_demand_base": 2,
    "spot_percentage": 50,
    "volume_gb": 200,
    "ray_resources": {"m7i": 1},
    "ray_labels": {"profile": "m7i"},
}
SETTINGS = {
    "name": "tested",
    "region": emulated.REGION,
    "availability_zones": ["us-east-1a", "us-east-1b"],
    "head_image": "own/head:1",
    "worker_image": "own/worker:1",
    "ttl_hours": 4,
    "head_volume_gb": 50,
    "workers": {"m7i": PROFILE, "other": PROFILE | {"instance_type": "m7i.2xlarge"}},
}
Client = Callable[[str], Any]


def test_module_is_formatted_and_keeps_its_rules_on_a_mocked_provider(terraform: emulated.Terraform) -> None:
    terraform.run("fmt", "-check", "-diff", "-recursive")
    # Validates as well.
    assert "0 failed" in terraform.run("test", "-no-color")


def test_checkov_finds_nothing_that_is_not_justified_where_it_stands() -> None:
    own = emulated.ROOT / ".venv-checkov" / "bin" / "checkov"
    checkov = str(own) if own.exists() else shutil.which("checkov")
    if checkov is None:
        pytest.skip("checkov is not installed: make check-infra installs it in an environment of its own")
    command = [checkov, "--directory", "infra", "--framework", "terraform", "dockerfile", "--skip-download"]
    done = subprocess.run(
        [*command, "--output", "json"], cwd=emulated.ROOT, capture_output=True, text=True, timeout=120, check=False
    )

    results = {result["check_type"]: result for result in json.loads(done.stdout)}
    for result in results.values():
        assert result["results"]["failed_checks"] == []
        assert result["summary"]["parsing_errors"] == 0
        assert all(check["check_result"]["suppress_comment"] for check in result["results"]["skipped_checks"])
    assert results["terraform"]["summary"]["passed"] > 100
    assert results["dockerfile"]["summary"]["resource_count"] == 2


@pytest.fixture(scope="module")
def fleet(terraform: emulated.Terraform, aws_endpoint: str) -> dict[str, Any]:
    """The outputs of a fleet that was made on the emulated AWS."""
    terraform.tfvars.write_text(json.dumps(SETTINGS | {"aws_endpoint": aws_endpoint}), encoding="utf-8")
    terraform.change("plan", f"-out={terraform.folder / 'plan'}")
    terraform.run("apply", "-input=false", "-no-color", "-parallelism=20", str(terraform.folder / "plan"))
    return {name: output["value"] for name, output in json.loads(terraform.run("output", "-json")).items()}


@pytest.fixture(scope="module")
def client(aws_endpoint: str) -> Client:
    def make(service: str) -> Any:
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        return boto3.client(service, region_name=emulated.REGION, endpoint_url=aws_endpoint, **keys)

    return make


def test_groups_are_made_without_nodes(fleet: dict[str, Any], client: Client) -> None:
    groups = client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]

    assert {group["AutoScalingGroupName"]: (group["DesiredCapacity"], group["MaxSize"]) for group in groups} == {
        "tested-m7i": (0, 4),
        "tested-other": (0, 4),
    }
    client("autoscaling").set_desired_capacity(AutoScalingGroupName="tested-m7i", DesiredCapacity=2)


def test_head_and_workers_run_where_nothing_outside_reaches_them(fleet: dict[str, Any], client: Client) -> None:
    ec2 = client("ec2")
    nodes = [
        instance
        for reservation in ec2.describe_instances(
            Filters=[
                {"Name": "tag:specsweep:fleet", "Values": ["tested"]},
                {"Name": "vpc-id", "Values": [fleet["vpc_id"]]},
            ]
        )["Reservations"]
        for instance in reservation["Instances"]
    ]
    groups = ec2.describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [fleet["vpc_id"]]}])["SecurityGroups"]
    permissions = [permission for group in groups for permission in group["IpPermissions"]]
    [own] = [group["GroupId"] for group in groups if group["GroupName"] == "tested-nodes"]

    assert sorted(node["InstanceType"] for node in nodes) == ["m7i.4xlarge", "m7i.4xlarge", "m7i.large"]
    assert all("PublicIpAddress" not in node for node in nodes)
    assert [node["PrivateIpAddress"] for node in nodes if node["InstanceId"] == fleet["head_instance_id"]] == [
        fleet["head_private_ip"]
    ]
    assert [pair["GroupId"] for permission in permissions for pair in permission["UserIdGroupPairs"]] == [own]
    assert not any(permission["IpRanges"] or permission["Ipv6Ranges"] for permission in permissions)


def test_groups_have_their_share_of_spot(fleet: dict[str, Any], client: Client) -> None:
    groups = {
        group["AutoScalingGroupName"]: group
        for group in client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    }

    assert fleet["asg_names"] == {"m7i": "tested-m7i", "other": "tested-other"}
    distribution = groups["tested-m7i"]["MixedInstancesPolicy"]["InstancesDistribution"]
    assert (distribution["OnDemandBaseCapacity"], distribution["OnDemandPercentageAboveBaseCapacity"]) == (2, 50)


def test_secrets_are_in_ssm_and_in_nothing_that_terraform_writes_or_nodes_are_given(
    fleet: dict[str, Any], client: Client, terraform: emulated.Terraform
) -> None:
    with zipfile.ZipFile(terraform.folder / "plan") as plan:
        planned = [plan.read(member) for member in plan.namelist()]
    everything = b"\n".join(
        [
            *planned,
            *(path.read_bytes() for path in terraform.folder.iterdir() if path.is_file()),
            json.dumps(fleet).encode(),
            *(data.encode() for data in _user_data(fleet, client).values()),
        ]
    )

    assert b"m7i.4xlarge" in everything
    for name, secret in emulated.SECRETS.items():
        stored = client("ssm").get_parameter(Name=fleet["secret_parameters"][name], WithDecryption=True)["Parameter"]
        assert (stored["Value"], stored["Type"]) == (secret, "SecureString")
        assert secret.encode() not in everything


def test_node_is_given_the_boot_files_and_settings_that_a_shell_reads_back(
    fleet: dict[str, Any], client: Client, tmp_path: Path
) -> None:
    for role, user_data in _user_data(fleet, client).items():
        cloud_config = yaml.safe_load(user_data)
        files = {entry["path"]: entry for entry in cloud_config["write_files"]}

        assert user_data.startswith("#cloud-config\n")
        assert cloud_config["runcmd"] == [["/opt/specsweep/boot.sh"]]
        for path, entry in files.items():
            name = path.rpartition("/")[2]
            if name == "node.env":
                continue
            [source] = (emulated.ROOT / "infra" / "boot").rglob(name)
            assert entry["content"] == source.read_text(encoding="utf-8")
            assert entry["permissions"] == ("0755" if name.endswith(".sh") else "0644")
        node_env = tmp_path / f"{role}.env"
        node_env.write_text(files["/etc/specsweep/node.env"]["content"], encoding="utf-8")
        settings = _sourced(node_env)
        assert settings["ROLE"] == ("head" if role == "head" else "worker")
        assert settings["HEAD_ADDRESS"] == fleet["head_private_ip"]
        if role == "m7i":
            assert (settings["RAY_RESOURCES"], settings["RAY_LABELS"]) == ('{"m7i":1}', "profile=m7i")


def test_destroy_leaves_nothing(fleet: dict[str, Any], client: Client, terraform: emulated.Terraform) -> None:
    terraform.change("destroy", "-auto-approve", "-refresh=false")

    ec2 = client("ec2")
    assert terraform.run("state", "list") == ""
    assert [vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"] if not vpc["IsDefault"]] == []
    running = ec2.describe_instances(Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}])
    assert running["Reservations"] == []
    assert ec2.describe_nat_gateways(Filter=[{"Name": "state", "Values": ["available"]}])["NatGateways"] == []
    assert ec2.describe_addresses()["Addresses"] == []
    assert ec2.describe_launch_templates()["LaunchTemplates"] == []
    assert client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert client("cloudwatch").describe_alarms()["MetricAlarms"] == []
    assert client("logs").describe_log_groups(logGroupNamePrefix="/specsweep")["logGroups"] == []
    assert client("s3").list_buckets()["Buckets"] == []
    assert (
        client("ssm").describe_parameters(
            ParameterFilters=[{"Key": "Name", "Values": ["/specsweep/tested"], "Option": "BeginsWith"}]
        )["Parameters"]
        == []
    )
    assert [
        role["RoleName"] for role in client("iam").list_roles()["Roles"] if role["RoleName"].startswith("tested")
    ] == []


def _user_data(fleet: dict[str, Any], client: Client) -> dict[str, str]:
    """head or profile -> what its instances are started with."""
    ec2 = client("ec2")
    head = ec2.describe_instance_attribute(InstanceId=fleet["head_instance_id"], Attribute="userData")["UserData"]
    found = {"head": head["Value"]}
    for profile, name in fleet["asg_names"].items():
        [version] = ec2.describe_launch_template_versions(LaunchTemplateName=name)["LaunchTemplateVersions"]
        found[profile] = version["LaunchTemplateData"]["UserData"]
    return {name: base64.b64decode(value).decode() for name, value in found.items()}


def _sourced(node_env: Path) -> dict[str, str]:
    """The variables that bash has after reading the file."""
    script = 'set -a; . "$1"; env -0'
    done = subprocess.run(
        ["bash", "-c", script, "-", str(node_env)], env={}, capture_output=True, text=True, timeout=30, check=True
    )
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
