"""The Python API: what the command line does before and after measuring, as three functions over plain data.

    from orchestrator.api import load_ledger, plan_sweep, select

    plan = plan_sweep(["sweep=xeon_dflash", "workload.max_concurrency=[1,8]"])
    ledger = load_ledger("results/latest")
    decided = select("results/latest", SelectionRules(tie_tolerance=0.02))

Plan, ledger records and decisions are frozen, typed objects; `.model_dump()` makes plain data of any of them.
"""

from collections.abc import Sequence
from pathlib import Path

from orchestrator import plan as planning
from orchestrator.compose import compose
from orchestrator.config import SelectionRules, SweepConfig
from orchestrator.decide import Decided, decide
from orchestrator.errors import ConfigError
from orchestrator.inputs import load_prompts
from orchestrator.ledger import LedgerView
from orchestrator.plan import Plan
from orchestrator.policies import policy_for
from orchestrator.sweep_dir import SweepDir

__all__ = ["Decided", "LedgerView", "Plan", "SelectionRules", "SweepConfig", "load_ledger", "plan_sweep", "select"]


def plan_sweep(overrides: Sequence[str] = (), config_dir: Path | None = None) -> Plan:
    """Arms x workloads x blocks of the configuration that `orchestrator sweep OVERRIDES` would run; starts nothing.

    Args:
        overrides: as on the command line, for example `sweep=demo` or `workload.max_concurrency=[1,8]`.
        config_dir: a folder with groups of your own.

    Raises:
        ConfigError: something is wrong with a name, a key or a value.
        PromptsUnavailable: a dataset or the tokenizer that counts its prompts cannot be had.
    """
    config = compose(overrides, config_dir)
    return planning.plan_sweep(config, load_prompts(config))


def load_ledger(sweep: str | Path) -> LedgerView:
    """What a sweep measured. `valid_blocks()` are the records that count, `visits()` the server starts.

    Args:
        sweep: its folder, for example `results/latest`; it may still be running.

    Raises:
        ConfigError: there is no sweep in that folder.
        LedgerError: the ledger is damaged.
    """
    return _opened(sweep).ledger()


def select(sweep: str | Path, rules: SelectionRules | None = None) -> Decided:
    """Decide from a sweep's ledger; writes nothing. The same folder and rules always give the same decision.

    Args:
        rules: others than the sweep was configured with.

    Raises:
        As `load_ledger`.
    """
    folder = _opened(sweep)
    config, plan, ledger = folder.config(), folder.plan(), folder.ledger()
    if rules is not None:
        config = config.model_copy(update={"selection": rules})
    return decide(config, plan, ledger.valid_blocks(), dropped=policy_for(config).dropped(plan, ledger))


def _opened(sweep: str | Path) -> SweepDir:
    folder = SweepDir(Path(sweep).resolve())
    if not (folder.path / "plan.json").exists():
        raise ConfigError(f"{folder.path} holds no sweep: there is no plan.json in it")
    return folder
