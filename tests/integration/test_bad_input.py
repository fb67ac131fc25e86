"""What a user may get wrong: one clear line on stderr, exit code 2, nothing made and nothing started."""

import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator import cli
from tests.integration.sweeping import ORCHESTRATOR, Sandbox, sandbox, small

pytestmark = pytest.mark.timeout(120)

Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Refused]:
    """Runs the command in this process, since importing transformers each time would take minutes in all."""
    (tmp_path / "code.jsonl").write_text("".join(f'{{"prompt": "code {i}"}}\n' for i in range(40)))
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "blank.jsonl").write_text('{"prompt": ""}\n')
    (tmp_path / "broken.jsonl").write_text('{"prompt": "code"}\n{"prompt": \n')
    given = set(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    on_sigterm = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [ORCHESTRATOR, *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        assert ended.value.code == 2, printed
        assert printed.out == ""
        assert set(tmp_path.iterdir()) == given
        assert not [p for p in psutil.Process().children(recursive=True) if p.name() in ("raylet", "gcs_server")]
        assert printed.err.count("\n") == 1, printed.err
        assert printed.err.startswith("error: ")
        return printed.err

    yield run
    signal.signal(signal.SIGTERM, on_sigterm)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model=demoo", "which `orchestrator models` lists; did you mean demo?"),
        ("dataset@datasets=[humanevl]", "did you mean humaneval"),
        ("speculation=eagle9", "no speculation named eagle9"),
        ("speculation.method=eagle9", "speculation.method"),
        ("speculation.num_speculative_token=4", "did you mean num_speculative_tokens"),
        ("+new=1", "new"),
        ("speculation.num_speculative_tokens=[1,16]", "at most block_size - 1 = 15 tokens"),
        ("speculation.num_speculative_tokens=[]", "needs at least one value in num_speculative_tokens"),
        ("workload.max_concurrency=[]", "arrival=closed needs at least one value in max_concurrency"),
        ("workload.max_concurrency=[4,1,4]", "workload.max_concurrency: repeats a value: [4, 1, 4]"),
        ("dataset@datasets=[demo_code,demo_code]", "names demo_code twice"),
        ("results_dir=/proc/nope", "results_dir=/proc/nope cannot be written: "),
        ("results_dir=code.jsonl", "results_dir=code.jsonl cannot be written: "),
        ("cluster.address=auto", "must be HOST:PORT"),
        ("name=../elsewhere", "name"),
        ("space.max_num_seq=[16,32]", "unknown key, did you mean max_num_seqs?"),
        ("space.max_num_seqs=[16,16]", "space.max_num_seqs: repeats a value: [16, 16]"),
        ("space.max_num_batched_tokens=[8,512]", "arm dflash-k1-tokens8: max_num_batched_tokens must be at least 16"),
        ("datasets.code.data_files=missing.jsonl", "no such file"),
        ("datasets.code.prompt_field=promt", "has no field 'promt', but prompt"),
        ("datasets.code.data_files=empty.jsonl", "empty.jsonl"),
        ("datasets.code.data_files=blank.jsonl", "holds no prompt in field 'prompt' of blank.jsonl"),
        ("datasets.code.data_files=broken.jsonl", "broken.jsonl is not JSON lines"),
        ("workload.num_blocks=30", "workload code@c1 needs 60 (30 blocks of 2)"),
        ("model.max_model_len=20", "too long for model.max_model_len=20"),
        ("~model.drafters.dflash", "has no drafter for method 'dflash'"),
        ("hardware=r8i_16xlarge", "hardware profile 'r8i_16xlarge' says 32 physical cores, but node"),
        ("server.command=[/no/such/vllm]", "'/no/such/vllm', which is no executable here"),
    ],
)
def test_is_refused(refused: Refused, override: str, said: str) -> None:
    assert said in refused(*small(override))


def test_space_is_refused_by_the_search_over_k_alone(refused: Refused) -> None:
    said = refused(*small("search=adaptive", "space.max_num_seqs=[16,32]"))
    assert "search=adaptive predicts over num_speculative_tokens alone and cannot search space.max_num_seqs" in said


def test_temperature_is_refused_on_the_engine_that_breaks_it(refused: Refused) -> None:
    said = refused(*small("workload.temperature=0.7", "server.command=null"))
    assert "on vLLM 0.32" in said
    assert "set workload.temperature=0" in said


def test_port_that_is_taken_is_refused(refused: Refused) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"server.port={port} is in use on this machine" in refused(*small(f"server.port={port}"))


def test_engine_that_is_not_installed_is_refused(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_: None)
    assert "no vLLM" in refused(*small("server.command=null"))


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["cluster.address=127.0.0.1:1"], "no Ray cluster answers at cluster.address=127.0.0.1:1: "),
        (["dataset@datasets=[gsm8k]"], "dataset 'gsm8k' cannot be read from Hugging Face dataset 'openai/gsm8k': "),
    ],
)
def test_what_cannot_be_reached_is_reported_soon(box: Sandbox, overrides: list[str], said: str) -> None:
    # A closed port stands for "no network", so that this holds on any machine.
    (box.path / "results").mkdir()
    arguments = [a for a in small() if not a.startswith("datasets.code") or "dataset@datasets=[gsm8k]" not in overrides]
    ended = box.run(*arguments, *overrides, env={"HF_ENDPOINT": "https://127.0.0.1:1"})
    assert ended.exit_code == 2, ended
    assert ended.stderr.startswith(f"error: {said}")
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == ""
    assert ended.wall_s < 60
    assert not list((box.path / "results").iterdir())
    assert box.leftovers() == []


def test_cluster_with_a_token_that_is_not_here_is_refused(box: Sandbox) -> None:
    with socket.socket() as stands_for_ray:
        stands_for_ray.bind(("127.0.0.1", 0))
        stands_for_ray.listen()
        address = f"127.0.0.1:{stands_for_ray.getsockname()[1]}"
        ended = box.run(*small(f"cluster.address={address}", "cluster.auth_mode=token"))
    assert ended.exit_code == 2, ended
    assert ended.stderr.startswith(f"error: no Ray cluster answers at cluster.address={address}: Token authentication")
    assert ended.stderr.count("\n") == 1
    assert "RAY_AUTH_TOKEN_PATH" in ended.stderr
