"""What a configuration makes of a fleet, before AWS is asked anything."""

import json
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.compose import compose
from orchestrator.errors import ConfigError
from orchestrator.fleet import context
from orchestrator.fleet_terraform import Terraform, new_secrets, tfvars
from orchestrator.sweep import check_before_start
from tests.unit.builders import plan_of

IMAGES = ["cluster.aws.head_image=own/head:1", "cluster.aws.worker_image=own/worker:1"]
DOCS = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text(encoding="utf-8")
AWS = ["sweep=xeon_dflash", "cluster=aws", *IMAGES]


def test_variables_of_terraform_say_what_the_configuration_says() -> None:
    config = compose([*AWS, "cluster.aws.spot_percentage=50", "cluster.aws.sizes.default.max_size=7"])
    assert config.cluster.aws is not None
    size = config.cluster.aws.size_of("r8i_16xlarge")
    assert size is not None

    written = tfvars(config.cluster.aws, [(config.hardware, size)], ["us-east-1b"], None)

    assert written["workers"] == {
        "r8i_16xlarge": {
            "instance_type": "r8i.16xlarge",
            "max_size": 7,
            "on_demand_base": 1,
            "spot_percentage": 50,
            "volume_gb": 200,
            "ray_resources": {"xeon_node": 1},
            "ray_labels": {"specsweep.io/hardware": "r8i_16xlarge"},
        }
    }
    assert (written["name"], written["region"], written["head_image"]) == ("specsweep", "us-east-1", "own/head:1")
    assert written["availability_zones"] == ["us-east-1b"]
    assert written["ttl_hours"] == 24, "the head outlives the workers' lease"
    assert not {"ray_token", "mlflow_password", "hf_token"} & written.keys()


def test_secrets_are_new_each_time_and_fit_what_the_module_demands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_own")

    first, second = new_secrets(), new_secrets()

    assert first["TF_VAR_hf_token"] == "hf_own"
    assert first["TF_VAR_ray_token"] != second["TF_VAR_ray_token"]
    assert all(len(first[f"TF_VAR_{name}"]) >= 24 for name in ("ray_token", "mlflow_password"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sweep=xeon_dflash"], "no fleet is described here; choose cluster=aws"),
        ([*AWS, "hardware=local"], "hardware=local names no instance_type"),
        ([*AWS, "hardware.name='a b'"], "hardware.name must be letters"),
        ([*AWS, "cluster.aws.sizes={big:{desired_size:1,max_size:1}}", "~cluster.aws.sizes.default"], "no entry for"),
    ],
)
def test_configuration_that_makes_no_fleet_is_refused(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        context(compose(overrides), Console(), tmp_path)


def test_sweep_on_a_fleet_is_refused_where_its_nodes_cannot_be_reached() -> None:
    config = compose(["sweep=demo", "cluster=aws", *IMAGES])

    with pytest.raises(ConfigError, match="`orchestrator fleet sweep` with the same arguments measures there"):
        check_before_start([config], [plan_of(compose(["sweep=demo"]))])


def test_missing_terraform_is_said_with_where_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match=r"terraform is not installed; get 1\.11 or newer"):
        Terraform(tmp_path, Console()).require()


def test_state_is_read_without_running_terraform(tmp_path: Path) -> None:
    bucket = {"type": "aws_s3_bucket", "mode": "managed", "instances": [{"attributes": {"bucket": "own-results"}}]}
    data = {"type": "aws_partition", "mode": "data", "instances": [{"attributes": {}}]}
    state = tmp_path / "terraform.tfstate"
    terraform = Terraform(tmp_path, Console())
    assert (terraform.has_state, terraform.outputs(), terraform.results_bucket()) == (False, {}, None)

    state.write_text(json.dumps({"outputs": {"region": {"value": "us-east-1"}}, "resources": [bucket, data]}))
    assert (terraform.has_state, terraform.outputs()) == (True, {"region": "us-east-1"})
    assert terraform.results_bucket() == "own-results"

    state.write_text(json.dumps({"outputs": {}, "resources": [data]}))
    assert (terraform.has_state, terraform.results_bucket()) == (False, None)


def test_commands_and_file_of_the_walk_through_describe_a_fleet(tmp_path: Path) -> None:
    (file,) = re.findall(r"^```yaml\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL)
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text(file)
    typed = [shlex.split(arguments) for arguments in re.findall(r'^make [a-z-]+ ARGS="(.*)"$', DOCS, re.MULTILINE)]

    assert len(typed) == 4
    for flag, folder, *overrides in typed:
        assert (flag, folder) == ("--config-dir", "my_conf")
        found = context(compose(overrides, tmp_path), Console(), tmp_path)
        assert (found.workers[0][0].instance_type, found.budget_usd) == ("r8i.16xlarge", 60)
        assert found.fleet.ttl_hours == 4
