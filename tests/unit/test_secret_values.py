"""What counts as a secret, and how it is blotted out."""

import pytest

from orchestrator.secret_values import has_credentials, is_secret_name, redacted, secret_flags, secrets_of


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "apikey"]
)
def test_name_of_a_secret_is_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS", "VLLM_MAX_TOKENS", "KEYBOARD", "MONKEY"])
def test_ordinary_name_is_none(name: str) -> None:
    assert not is_secret_name(name)


def test_flags_are_found_in_every_spelling_and_named_without_their_value() -> None:
    arguments = ["--api-key", "s3cret", "--hf-token=s3cret", "--api_key=s3cret", "--max-num-seqs", "4"]

    assert secret_flags(arguments) == ["--api-key", "--hf-token", "--api_key"]


def test_credentials_are_seen_in_the_authority_of_a_uri_only() -> None:
    assert has_credentials("http://me:pw@host/x")
    assert has_credentials("postgresql://me@host/x")
    assert not has_credentials("sqlite:////home/me@work/mlflow.db")
    assert not has_credentials("http://host:5000")


def test_values_are_blotted_out_whole_and_paths_and_short_words_left() -> None:
    environment = {
        "A_TOKEN": "abcdefgh",
        "B_TOKEN": "abcdefgh-and-more",
        "RAY_AUTH_TOKEN_PATH": "/run/specsweep/token",
        "AN_API_KEY": "short",
    }

    text = redacted("abcdefgh-and-more abcdefgh /run/specsweep/token short", secrets_of(environment))

    assert text == "[redacted] [redacted] /run/specsweep/token short"


def test_a_server_without_a_key_has_nothing_to_blot_out() -> None:
    assert redacted("all of it", [""]) == "all of it"
