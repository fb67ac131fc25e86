"""A name out of data never leads out of the sweep's folder."""

from pathlib import Path

import pytest

from orchestrator.errors import UnsafeName
from orchestrator.records import RequestRecord
from orchestrator.safe_names import below, file_name
from orchestrator.sweep_dir import SweepDir

BAD = ["../stolen", "/etc/stolen", "a/b", "..", ".hidden", "", "a\\b", "a\nb", "x" * 300]


@pytest.mark.parametrize("name", BAD)
def test_file_is_never_named_after_bad_data(name: str, tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path / "sweep")
    sweep.path.mkdir()
    request = RequestRecord(prompt_index=0, sent_s=0.0, end_s=1.0)

    with pytest.raises(UnsafeName):
        sweep.write_server_log(name, "text")
    with pytest.raises(UnsafeName):
        sweep.write_raw(name, "b10c", [request])
    with pytest.raises(UnsafeName):
        sweep.write_raw("visit", name, [request])
    with pytest.raises(UnsafeName):
        list(sweep.read_raw(name))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_names_that_this_tool_makes_pass() -> None:
    for name in ("dflash-k7-seqs32-bind0-31-arm-3fa1b2-9c0d", "none-opening-1a.log", "0123abcd"):
        assert file_name(name) == name


def test_link_that_leads_out_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path)

    assert below(tmp_path / "in", "a/b.txt") == tmp_path / "in" / "a" / "b.txt"
    with pytest.raises(UnsafeName, match="by a link"):
        below(tmp_path / "in", "link/stolen")
