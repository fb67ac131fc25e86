"""The folder of a sweep: continued, begun anew or taken over, by one process at a time."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.config import SelectionRules, SweepConfig
from orchestrator.errors import ConfigError, LedgerError, SweepLocked
from orchestrator.ledger import Ledger
from orchestrator.records import RawRequest, RequestRecord, Visit
from orchestrator.sweep_dir import SweepDir, find_measured, find_sweep, newest_sweep, open_sweep
from tests.unit.builders import block_record, finished, make_config, plan_of, write_all
from tests.unit.report_fixture import make_plan as make_report_plan
from tests.unit.report_fixture import make_selection


@pytest.fixture
def config(tmp_path: Path) -> SweepConfig:
    return make_config(results_dir=tmp_path / "results")


def run(config: SweepConfig, *, num_blocks: int | None = None) -> tuple[SweepDir, bool]:
    """Open, measure all (or the baseline's first blocks only), close."""
    plan = plan_of(config)
    with open_sweep(config, plan) as (sweep, continues):
        ledger = Ledger(sweep.ledger_path)
        if num_blocks is None:
            write_all(ledger, plan)
        for block in plan.blocks[: num_blocks or 0]:
            ledger.append(block_record(plan, plan.baseline, block))
    return sweep, continues


def changed(config: SweepConfig, grid: tuple[int, ...] = (1, 3, 15)) -> SweepConfig:
    return config.model_copy(
        update={"speculation": (config.speculation[0].model_copy(update={"num_speculative_tokens": grid}),)}
    )


# --- which folder


def test_first_sweep_begins_with_its_config_and_plan(config: SweepConfig) -> None:
    sweep, continues = run(config, num_blocks=0)

    assert not continues
    assert sweep.config() == config
    assert sweep.plan() == plan_of(config)
    assert sweep.sweep_id == f"small/{sweep.path.name}"


def test_unfinished_sweep_continues(config: SweepConfig) -> None:
    first, _ = run(config, num_blocks=2)
    second, continues = run(config, num_blocks=3)

    assert continues
    assert second.path == first.path
    assert len(Ledger(second.ledger_path).blocks()) == 3


def test_finished_sweep_begins_anew_and_empty(config: SweepConfig) -> None:
    first, _ = run(config)
    second, continues = run(config, num_blocks=0)

    assert not continues
    assert second.path > first.path
    assert Ledger(second.ledger_path).blocks() == []


def test_sweep_that_continues_goes_by_the_rules_and_prices_given_now(config: SweepConfig) -> None:
    run(config, num_blocks=2)
    now = config.model_copy(update={"selection": SelectionRules(tie_tolerance=0.05)})

    sweep, continues = run(now, num_blocks=0)

    assert continues
    assert sweep.config().selection.tie_tolerance == 0.05


def test_unfinished_sweep_of_the_plan_continues_though_another_plan_came_between(config: SweepConfig) -> None:
    first, _ = run(config, num_blocks=2)
    run(changed(config, (15,)), num_blocks=0)

    again, continues = run(config, num_blocks=0)

    assert continues
    assert again.path == first.path


def test_changed_plan_takes_over_what_is_unchanged_but_no_closing_baseline(config: SweepConfig) -> None:
    first, _ = run(config)
    second, continues = run(changed(config), num_blocks=0)

    assert not continues
    assert second.path != first.path
    plan, ledger = plan_of(changed(config)), Ledger(second.ledger_path)
    kept = {(plan.arm(block.arm_id).name, block.phase) for block in ledger.blocks()}
    assert kept == {("none", "opening"), ("dflash-k1", "arm"), ("dflash-k3", "arm")}
    assert len(ledger.blocks()) == 3 * len(plan.blocks)


def test_void_blocks_and_blocks_of_other_prompts_are_not_taken_over(config: SweepConfig) -> None:
    plan = plan_of(config)
    with open_sweep(config, plan) as (sweep, _):
        ledger = Ledger(sweep.ledger_path)
        ledger.append(block_record(plan, plan.arms[1], plan.blocks[0], void_reason="a request failed"))
        ledger.append(block_record(plan, plan.arms[1], plan.blocks[1]))

    other_grid, _ = run(changed(config), num_blocks=0)
    assert [block.block_id for block in Ledger(other_grid.ledger_path).blocks()] == [plan.blocks[1].id]

    other_seed, _ = run(config.model_copy(update={"seed": 1}), num_blocks=0)
    assert Ledger(other_seed.ledger_path).blocks() == []


def test_taken_over_blocks_bring_their_visits_along(config: SweepConfig) -> None:
    plan = plan_of(config)
    with open_sweep(config, plan) as (sweep, _):
        ledger = Ledger(sweep.ledger_path)
        for arm in plan.arms:
            ids = tuple(block.id for block in plan.blocks)
            ledger.append(finished(Visit(id=arm.name, arm=arm, phase="arm", node="a", attempt=1, block_ids=ids)).record)
            ledger.append(block_record(plan, arm, plan.blocks[0], visit_id=arm.name))

    second, _ = run(changed(config), num_blocks=0)

    assert {visit.visit_id for visit in Ledger(second.ledger_path).visits()} == {"none", "dflash-k1", "dflash-k3"}


def test_folder_without_a_plan_is_ignored(config: SweepConfig) -> None:
    first, _ = run(config, num_blocks=2)
    (first.path.parent / "9999-never-began").mkdir()

    again, continues = run(config, num_blocks=0)

    assert continues
    assert again.path == first.path
    assert newest_sweep(Path(config.results_dir), "small") is not None


def test_plan_of_another_version_is_one_clear_error(config: SweepConfig) -> None:
    sweep, _ = run(config, num_blocks=0)
    (sweep.path / "plan.json").write_text('{"schema_version": 9}')

    with pytest.raises(ConfigError, match=r"plan\.json: not a plan of this version .*move the sweep's folder away"):
        run(config, num_blocks=0)


# --- lock and link


def test_sweep_that_another_process_runs_is_refused_and_free_when_it_dies(config: SweepConfig) -> None:
    root = Path(config.results_dir) / "small"
    root.mkdir(parents=True)
    hold = "import sys, filelock\nlock = filelock.FileLock(sys.argv[1])\nlock.acquire()\nprint('held', flush=True)\n"
    hold += "sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(root / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(SweepLocked, match="another process is running the sweep 'small'"):
            run(config, num_blocks=0)
        other.kill()

    assert run(config, num_blocks=0)[1] is False


def test_other_names_are_not_locked(config: SweepConfig) -> None:
    other = config.model_copy(update={"name": "other"})
    with open_sweep(config, plan_of(config)) as (first, _), open_sweep(other, plan_of(other)) as (second, _):
        assert first.path != second.path


def test_latest_leads_to_the_newest_run_also_after_the_results_moved(config: SweepConfig, tmp_path: Path) -> None:
    run(config)
    second, _ = run(config, num_blocks=0)
    results = Path(config.results_dir)
    assert (results / "latest").resolve() == second.path

    moved = results.rename(tmp_path / "moved")

    assert (moved / "latest" / "plan.json").exists()
    assert not (moved / "latest").readlink().is_absolute()


# --- finding one


def test_sweep_is_found_by_nothing_name_id_or_folder(config: SweepConfig) -> None:
    run(config)
    newest, _ = run(config, num_blocks=0)
    results = Path(config.results_dir)

    for where in (None, "small", newest.sweep_id, str(newest.path), str(results / "latest"), str(results / "small")):
        assert find_sweep(results, where).path == newest.path


def test_copy_of_the_results_without_its_link_still_has_a_latest_sweep(config: SweepConfig) -> None:
    run(config.model_copy(update={"name": "zz-older"}))
    newest, _ = run(config, num_blocks=1)
    results = Path(config.results_dir)
    (results / "latest").unlink()

    assert find_sweep(results, None).path == newest.path


def test_sweep_without_its_configuration_or_its_ledger_is_one_clear_error(config: SweepConfig) -> None:
    sweep, _ = run(config)
    sweep.ledger_path.unlink()
    with pytest.raises(ConfigError, match=r"has no ledger\.jsonl: nothing was measured there yet"):
        find_measured(Path(config.results_dir), None)

    (sweep.path / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"has no config\.yaml"):
        find_sweep(Path(config.results_dir), None)


@pytest.mark.parametrize(("where", "what"), [(None, "no sweep yet"), ("other", "no sweep 'other'")])
def test_sweep_that_is_not_there_is_a_clear_error(tmp_path: Path, where: str | None, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        find_sweep(tmp_path, where)


# --- files


def test_raw_file_has_one_gzip_member_a_block_and_every_request_with_its_block(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path)
    request = RequestRecord(prompt_index=3, sent_s=0.5, end_s=1.5, output_sha256="é")
    sweep.write_raw("visit", "b1", [request, request])
    one_member = (tmp_path / "raw" / "visit.jsonl.gz").read_bytes()
    sweep.write_raw("visit", "b2", [request])

    data = (tmp_path / "raw" / "visit.jsonl.gz").read_bytes()
    with gzip.open(tmp_path / "raw" / "visit.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()

    assert len(lines) == 3
    assert all('"output_sha256":"é"' in line for line in lines)
    assert [line[: len('{"block_id":"b1"')] for line in lines] == ['{"block_id":"b1"'] * 2 + ['{"block_id":"b2"']
    assert RequestRecord.model_validate_json("{" + lines[0].partition(",")[2]) == request
    assert data.startswith(one_member)
    assert gzip.decompress(data[len(one_member) :]).count(b"\n") == 1


def test_torn_last_member_leaves_the_earlier_blocks_readable(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path)
    request = RequestRecord(prompt_index=0, sent_s=0.0, end_s=1.0)
    sweep.write_raw("visit", "b1", [request])
    whole = (tmp_path / "raw" / "visit.jsonl.gz").read_bytes()
    sweep.write_raw("visit", "b2", [request])
    path = tmp_path / "raw" / "visit.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-5])

    with gzip.open(path, "rt", encoding="utf-8") as file:
        assert file.readline().startswith('{"block_id":"b1"')
    assert path.read_bytes().startswith(whole)
    torn = path.read_bytes()
    for length in range(len(whole), len(torn)):
        path.write_bytes(torn[:length])
        assert next(sweep.read_raw("visit")).block_id == "b1"
        assert {request.block_id for request in sweep.read_raw("visit")} <= {"b1", "b2"}


def test_raw_requests_are_read_back_as_written(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path)
    request = RequestRecord(prompt_index=3, sent_s=0.5, end_s=1.5, output_token_ids=(7, 8))
    sweep.write_raw("visit", "b1", [request])

    assert list(sweep.read_raw("visit")) == [RawRequest(block_id="b1", **request.model_dump())]
    assert list(sweep.read_raw("another")) == []


def test_damaged_raw_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    with gzip.open(tmp_path / "raw" / "visit.jsonl.gz", "wt") as file:
        file.write('{"prompt_index": 1}\n')

    with pytest.raises(LedgerError, match=r"visit\.jsonl\.gz:1: not a request of this version"):
        list(SweepDir(tmp_path).read_raw("visit"))


def test_selection_is_read_back_as_written(tmp_path: Path) -> None:
    sweep, selection = SweepDir(tmp_path), make_selection(make_report_plan())
    assert sweep.selection() is None

    sweep.write_selection(selection)

    assert sweep.selection() == selection
    assert [path.name for path in tmp_path.iterdir()] == ["selection.json"]


def test_damaged_selection_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "selection.json").write_text("{}")

    with pytest.raises(ConfigError, match=r"selection\.json: not a selection of this .*orchestrator select` makes it"):
        SweepDir(tmp_path).selection()


def test_clock_that_goes_back_does_not_bring_an_older_sweep_to_the_front(config: SweepConfig) -> None:
    """As a jump of the clock leaves it: the first sweep carries a time that is still to come."""
    first, _ = run(config)
    ahead = first.path.with_name("2099-01-01T00-00-00.000000Z")
    first.path.rename(ahead)

    second, continues = run(changed(config), num_blocks=2)
    assert not continues
    assert second.path.name == "2099-01-01T00-00-00.000001Z"
    newest = newest_sweep(Path(config.results_dir), config.name)
    assert newest is not None
    assert newest.path == second.path
    assert second.ledger().valid_blocks()  # taken over from the first

    again, continues = run(changed(config))
    assert (again.path, continues) == (second.path, True)
