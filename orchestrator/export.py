"""`orchestrator export`: a sweep's recommended arm, or any other, as files that platforms take."""

from pathlib import Path

from orchestrator.decide import decide
from orchestrator.deploy import bindings_of
from orchestrator.deployment import deployment_files
from orchestrator.errors import ConfigError
from orchestrator.records import Arm
from orchestrator.suggest import hint
from orchestrator.sweep_dir import SweepDir, writing
from tasks.cpu_binding import bound


def export_files(sweep_dir: SweepDir, arm_name: str | None, output: Path | None) -> list[Path]:
    """Write the arm's deployment files; existing ones are replaced.

    Raises:
        ConfigError: no such arm, or none is recommended.
    """
    arm = _named(sweep_dir, arm_name) if arm_name else _recommended(sweep_dir)
    visits = sweep_dir.ledger().visits()
    engines = [visit.engine_version for visit in visits if visit.engine_version]
    for binding in bindings_of(arm.server, visits)[:1]:  # of the first server where a node has several
        arm = arm.model_copy(update={"server": bound(arm.server, binding)})
    folder = output or sweep_dir.path / "deploy"
    files = deployment_files(arm, sweep_dir.config().hardware, engines[-1] if engines else None)
    with writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def _recommended(sweep_dir: SweepDir) -> Arm:
    arm = decide(sweep_dir.config(), sweep_dir.plan(), sweep_dir.ledger().valid_blocks()).recommended
    if arm is None:
        raise ConfigError(f"{sweep_dir.path}: no setting is recommended yet; name one with --arm")
    return arm


def _named(sweep_dir: SweepDir, name: str) -> Arm:
    named = {arm.name: arm for arm in sweep_dir.plan().arms}
    if name not in named:
        raise ConfigError(f"--arm: no arm named {name}; known: {', '.join(named)}{hint(name, list(named))}")
    return named[name]
