"""The parameters, tags and inputs that MLflow gets of a sweep: a pure function of its folder, without MLflow."""

import json
import re
from collections.abc import Iterable

from orchestrator.record_metrics import Cell, Evidence
from orchestrator.records import SessionRecord
from orchestrator.selection import Selection

MAX_TEXT_LEN = 6000
"""MLflow's limit for a parameter."""
MAX_DIGEST_LEN = 36


def cell_params(evidence: Evidence, cell: Cell) -> dict[str, str]:
    """What does not change for a run; a setting that is not there is left out. Never `env`: it may hold secrets."""
    server, workload = cell.arm.server, cell.workload
    speculative_config = server.speculative_config or {}
    params: dict[str, object] = {
        "method": cell.arm.method,
        "num_speculative_tokens": cell.arm.num_speculative_tokens,
        "speculative_config": json.dumps(speculative_config) if speculative_config else None,
        "drafter": speculative_config.get("model"),
        "drafter_revision": speculative_config.get("revision"),
        **workload.model_dump(
            include={"dataset", "max_concurrency", "output_len", "temperature", "top_p", "ignore_eos", "seed"}
        ),
        **workload.model_dump(include={"arrival", "request_rate", "log_speed"}, exclude_defaults=True),
        "model": evidence.config.model.name,
        "target": server.target,
        "target_revision": server.revision,
        "hardware": cell.arm.hardware,
        **server.model_dump(
            include={"dtype", "max_model_len", "max_num_seqs", "kv_cache_gib", "enforce_eager"}
            | {"enable_prefix_caching", "preload_openmp", "omp_threads_bind"}
            | {"tensor_parallel_size", "server_per", "reserved_cores"}
        ),
        "extra_args": " ".join(server.extra_args) or None,
        "num_blocks_planned": cell.num_planned_blocks,
        "usd_per_hour": cell.usd_per_hour,
    }
    return _texts(params)


def sweep_params(evidence: Evidence) -> dict[str, str]:
    config, plan = evidence.config, evidence.plan
    return _texts(
        {
            "plan_id": plan.id,
            "sweep_name": config.name,
            "seed": config.seed,
            "hardware": config.hardware.name,
            "model": config.model.name,
            "target": config.model.target,
            "dtype": config.model.dtype,
            "method": ", ".join(config.methods) or "none",
            "arms": ", ".join(arm.name for arm in plan.arms),
            "datasets": ", ".join(config.datasets),
            config.workload.axis: ", ".join(map(str, config.workload.levels)),
            "output_len": config.workload.output_len,
            "temperature": config.workload.temperature,
            "num_blocks_planned": len(plan.blocks) * len(plan.arms),
            "usd_per_hour": config.hardware.usd_per_hour,
        }
    )


def dataset_input(evidence: Evidence, cell: Cell) -> dict[str, str]:
    """The prompts that a run was measured on, as the fields of MLflow's Dataset; equal prompts have equal digests."""
    name = cell.workload.dataset
    dataset = evidence.config.datasets[name.partition(":")[0]]
    count = evidence.plan.prompts[name]
    if dataset.path is not None:
        source_type, source = "hugging_face", dataset.model_dump(include={"path", "subset", "split", "revision"})
    else:
        source_type, source = "local", {"uri": dataset.data_files}
    return {
        "name": name,
        "digest": count.content_id[:MAX_DIGEST_LEN],
        "source_type": source_type,
        "source": json.dumps(source),
        "profile": json.dumps({"num_read": count.num_read, "num_usable": count.num_usable}),
    }


def cell_tags(evidence: Evidence, cell: Cell) -> dict[str, str]:
    """As far as they are known by now."""
    blocks = [measured.block for measured in cell.measured]
    errors = [visit.error for visit in cell.visits if visit.error]
    tags: dict[str, object] = {
        "sweep": evidence.sweep_id,
        "workload": cell.workload.name,
        "hardware": cell.arm.hardware,
        "node": _joined(block.node for block in blocks),
        "phase": _joined(block.phase for block in blocks),
        "engine_version": _joined(visit.engine_version for visit in cell.visits),
        "error": None if cell.measured or not errors else errors[-1],
    }
    return _texts(tags | _provenance_tags(evidence.selection))


def sweep_tags(evidence: Evidence) -> dict[str, str]:
    visits, selection = evidence.visits, evidence.selection
    sessions = [record for record in evidence.records if isinstance(record, SessionRecord)]
    command = next((session.command for session in reversed(sessions) if session.command), None)
    tags: dict[str, object] = {
        "sweep": evidence.sweep_id,
        # MLflow's own column "Source".
        "mlflow.source.name": command,
        "mlflow.source.type": "LOCAL" if command else None,
        "hardware": evidence.config.hardware.name,
        "node": _joined(visit.node for visit in visits),
        "cpu_model": _joined(visit.node_info.cpu_model for visit in visits if visit.node_info),
        "engine_version": _joined(visit.engine_version for visit in visits),
        **_provenance_tags(selection),
    }
    if selection is not None:
        # MLflow takes no @ in a tag's name, so not `code@c4`.
        tags |= {f"verdict.{result.dataset}.{result.level_label}": result.verdict for result in selection.workloads}
        tags |= {f"confirmation.{found.setting}": found.verdict for found in selection.confirmations}
        tags["recommended"] = selection.recommendation.arm if selection.recommendation else None
        tags |= {_tag_key(f"version.{package}"): text for package, text in selection.provenance.versions.items()}
    return _texts(tags)


def _provenance_tags(selection: Selection | None) -> dict[str, object]:
    if selection is None:
        return {}
    commit = selection.provenance.git_commit
    # The second is what MLflow's own column "Version" shows.
    tags: dict[str, object] = {"git_commit": commit, "mlflow.source.git.commit": commit}
    return tags | {"simulated": str(selection.simulated).lower()}


def _joined(values: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({value for value in values if value})) or None


def _texts(values: dict[str, object]) -> dict[str, str]:
    return {key: str(value)[:MAX_TEXT_LEN] for key, value in values.items() if value is not None}


def _tag_key(text: str) -> str:
    return re.sub(r"[^\w.\- /:]", "_", text)
