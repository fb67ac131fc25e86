"""What `orchestrator break-even` takes and refuses."""

import pytest

from orchestrator.break_even_text import parse_profile
from orchestrator.errors import ConfigError


def test_a_survival_profile_is_read() -> None:
    assert parse_profile("0.86, 0.7,0.7", None) == (0.86, 0.7, 0.7)


def test_no_option_prices_nothing() -> None:
    assert parse_profile(None, None) == ()


@pytest.mark.parametrize(
    ("survival", "acceptance_length", "message"),
    [
        ("0.8,high", None, "numbers with commas between"),
        ("0.8,0.9", None, "each at most the one before"),
        ("1.2", None, "shares from 0 to 1"),
        (None, "6.93", "at some num_speculative_tokens.*write both as LENGTH@K, such as 6.93@15"),
        (None, "6.93@", "write both as LENGTH@K, such as 6.93@15"),
        (None, "six@15", "a number and a whole one, such as 6.93@15, but got 'six@15'"),
        (None, "6.93@1.5", "a number and a whole one"),
        (None, "20@3", "lies from 1 to 4, but got '20@3'"),
        ("0.8", "6.93@15", "not both"),
    ],
)
def test_what_is_no_profile_is_refused(survival: str | None, acceptance_length: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_profile(survival, acceptance_length)
