"""The copy that probes memory bandwidth."""

from types import SimpleNamespace

import psutil
import pytest

from tasks.bandwidth import memory_bandwidth_gb_per_s


def test_this_machine_copies_at_a_plausible_rate() -> None:
    found = memory_bandwidth_gb_per_s()

    assert found is not None
    assert 0.1 < found < 5000


def test_nothing_is_probed_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=200_000_000))

    assert memory_bandwidth_gb_per_s() is None
