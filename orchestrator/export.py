"""`orchestrator export`: a sweep's recommended arm, or any other, as files that platforms take."""

import getpass
import os
from dataclasses import dataclass
from pathlib import Path

from orchestrator.decide import Decided, decide
from orchestrator.deployment import deployment_files
from orchestrator.display import arm_name, interval
from orchestrator.errors import ConfigError
from orchestrator.measured_server import measured_servers
from orchestrator.plan import Plan
from orchestrator.records import Arm
from orchestrator.suggest import hint
from orchestrator.sweep_dir import SweepDir, writing


@dataclass(frozen=True)
class Exported:
    arm: Arm
    why: str
    """With the verdict and the figure that it rests on."""
    paths: tuple[Path, ...]


def export_files(sweep_dir: SweepDir, name: str | None, output: Path | None) -> Exported:
    """Write the arm's deployment files; existing ones are replaced.

    Raises:
        ConfigError: no such arm, or none is recommended.
    """
    plan, visits = sweep_dir.plan(), sweep_dir.ledger().visits()
    decided = decide(sweep_dir.config(), plan, sweep_dir.ledger().valid_blocks())
    arm = _named(plan, name) if name else _recommended(sweep_dir, decided)
    folder = output or sweep_dir.path / "deploy"
    server = measured_servers(arm, plan.arms, visits)[0]
    files = deployment_files(server, sweep_dir.config().hardware, _user())
    with writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for file_name, text in files.items():
            (folder / file_name).write_text(text, encoding="utf-8")
    return Exported(arm, _why(decided, arm), tuple(folder / file_name for file_name in files))


def _recommended(sweep_dir: SweepDir, decided: Decided) -> Arm:
    if decided.recommended is None:
        raise ConfigError(f"{sweep_dir.path}: no setting is recommended yet ({decided.reason}); name one with --arm")
    return decided.recommended


def _named(plan: Plan, name: str) -> Arm:
    named = {arm.name: arm for arm in plan.arms}
    if name not in named:
        raise ConfigError(f"--arm: no arm named {name}; known: {', '.join(named)}{hint(name, list(named))}")
    return named[name]


def _why(decided: Decided, arm: Arm) -> str:
    """Recommended or not, and what it gains over the traffic mix."""
    mix = decided.mixes[-1]
    gain = next((found.gain for found in mix.arms if found.arm == arm.name), None)
    figure = f"; over the traffic mix (verdict: {mix.verdict}) {interval(gain)} times the baseline" if gain else ""
    if decided.recommended is not None and arm.id == decided.recommended.id:
        return f"recommended: {decided.reason}{figure}"
    others = arm_name(decided.recommended) if decided.recommended else "nothing yet"
    return f"asked for by name, not recommended (that is {others}){figure or '; it has no figure over the traffic mix'}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container whose user has no name
        return str(os.getuid())
