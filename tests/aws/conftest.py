from collections.abc import Iterator

import pytest

from tests.aws import emulated


@pytest.fixture(scope="module")
def aws_endpoint() -> Iterator[str]:
    """A fresh emulation of AWS for each test file."""
    if reason := emulated.why_not():
        pytest.skip(reason)
    with emulated.moto_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> emulated.Terraform:
    """The initialised module, with its state in a folder of the test file's own."""
    if reason := emulated.why_not():
        pytest.skip(reason)
    terraform = emulated.Terraform(tmp_path_factory.mktemp("fleet"))
    terraform.init()
    return terraform
