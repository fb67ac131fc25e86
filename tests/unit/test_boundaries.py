"""Who may import what. The core stays pure, and each heavy library has one home."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("orchestrator", "tasks")
    for path in sorted((ROOT / package).rglob("*.py"))
}

HOMES = {
    "ray.tune": ["orchestrator.schedule", "orchestrator.search"],
    "ray": ["orchestrator.schedule", "orchestrator.search", "orchestrator.cluster"],
    "mlflow": ["orchestrator.record"],
    "boto3": ["orchestrator.fleet_aws", "orchestrator.cost", "orchestrator.artifacts"],
    "botocore": ["orchestrator.fleet_aws", "orchestrator.cost", "orchestrator.artifacts"],
    "optuna": ["orchestrator.optuna_search"],
    "hydra": ["orchestrator.compose"],
    "omegaconf": ["orchestrator.compose"],
    # They belong to the engine's process; only the script that trained the demo pair runs in ours.
    "vllm": [],
    "torch": ["tasks.demo.recipe"],
}
"""Library -> the only modules and packages that may import it."""

# Plan + ledger -> decision: runs without a cluster, a network or a cloud.
PURE_NAMES = [
    "config",
    "errors",
    "ids",
    "ledger",
    "metrics",
    "nodes",
    "outputs",
    "plan",
    "policy",
    "records",
    "select",
    "selection",
]
PURE_NAMES += ["safe_names", "secret_values", "suggest", "time_split", "validity"]
PURE_NAMES += ["adaptive", "evidence", "policies", "predict", "step_time", "worth"]
PURE_NAMES += ["budget", "optuna_search"]
PURE_NAMES += ["defects", "engine_build", "methods", "runnable"]
PURE_NAMES += ["arms", "compare_sweeps", "deployment"]
PURE_NAMES += ["break_even", "roofline", "step_cost", "why"]
PURE_NAMES += ["fleet_money"]
PURE_NAMES += ["caveats", "one_engine", "unfinished"]
PURE_NAMES += ["compare", "confirm", "confirming", "decide", "estimate", "measured", "mix", "recommend", "drift"]
PURE_NAMES += ["memory", "token_time", "past_times", "forecast", "cluster_budget", "pace", "time_left", "to_come"]
PURE = [f"orchestrator.{name}" for name in PURE_NAMES]

IMPURE_LIBRARIES = {"ray", "mlflow", "boto3", "botocore", "aiohttp", "hydra", "omegaconf", "requests", "torch", "vllm"}


def imports_of(module: str) -> Iterator[str]:
    """Every module that `module` imports, anywhere in its source: `from a import b` counts as a and a.b."""
    for node in ast.walk(ast.parse(SOURCES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import; write the full name"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_of(name: str, library: str) -> bool:
    return name == library or name.startswith(f"{library}.")


def reachable(module: str) -> set[str]:
    """All that `module` imports, by way of the project's own modules."""
    seen: set[str] = set()
    todo = [module]
    while todo:
        for name in imports_of(todo.pop()):
            if name in SOURCES and name not in seen:
                todo.append(name)
            seen.add(name)
    return seen


@pytest.mark.parametrize("library", HOMES)
def test_library_is_imported_only_at_home(library: str) -> None:
    users = [module for module in SOURCES if any(is_of(name, library) for name in imports_of(module))]

    assert not [user for user in users if not any(is_of(user, home) for home in HOMES[library])]


@pytest.mark.parametrize("module", [module for module in PURE if module in SOURCES])
def test_pure_module_reaches_no_cluster_network_or_cloud(module: str) -> None:
    used = {library for library in IMPURE_LIBRARIES for name in reachable(module) if is_of(name, library)}

    assert not used


def test_core_of_the_design_is_there_and_pure() -> None:
    for name in ("plan", "metrics", "selection", "records", "config", "ids", "ledger", "decide"):
        assert f"orchestrator.{name}" in SOURCES
        assert f"orchestrator.{name}" in PURE


def test_node_tasks_know_nothing_of_how_they_are_scheduled_or_recorded() -> None:
    driver = {"orchestrator.schedule", "orchestrator.search", "orchestrator.record", "orchestrator.cli"}

    for module in SOURCES:
        if module.startswith("tasks"):
            assert not reachable(module) & driver, module


def test_importing_the_pure_core_loads_no_heavy_library() -> None:
    core = [module for module in PURE if module in SOURCES]
    code = f"import sys, {', '.join(core)}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)

    assert not set(run.stdout.split()) & (IMPURE_LIBRARIES | {"transformers", "datasets", "matplotlib"})
