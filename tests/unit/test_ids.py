"""Equal content, equal id; what JSON cannot hold is refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import Drafter
from orchestrator.ids import canonical_json, content_id, text_sha256

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(JSON_VALUES)
def test_canonical_json_reads_back_as_the_same_value(value: object) -> None:
    assert json.loads(canonical_json(value)) == value


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    assert content_id(dict(reversed(value.items()))) == content_id(value)


def test_order_of_a_list_matters() -> None:
    assert content_id([1, 2]) != content_id([2, 1])


def test_id_is_twelve_hex_digits_that_never_change() -> None:
    # A changed value here means that every ledger on disk loses its measurements.
    assert content_id({"b": [1, "ü"], "a": None}) == "6bafd57c7869"


def test_model_has_the_id_of_its_plain_data() -> None:
    drafter = Drafter(model="d", block_size=16)

    assert content_id(drafter) == content_id({"model": "d", "revision": None, "block_size": 16, "weight_gb": None})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]])
def test_not_a_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)


@pytest.mark.parametrize("value", [Path("x"), {1, 2}, b"x"])
def test_what_json_has_no_form_for_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        canonical_json(value)


def test_text_hash_is_sha256_of_utf8() -> None:
    assert text_sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
