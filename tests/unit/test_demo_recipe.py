"""The training recipe, run for a few steps, and the pieces of it that make the drafter work."""


import pytest

torch = pytest.importorskip("torch")

