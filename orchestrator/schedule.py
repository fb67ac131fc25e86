"""Ray Tune runs the visits: one trial is one server start, alone on its node."""

import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from ray import tune
from ray.tune import Callback, CheckpointConfig, PlacementGroupFactory, RunConfig, TuneConfig, Tuner
from ray.tune.execution import class_cache
from ray.tune.experiment import Trial

from orchestrator.board import Board
from orchestrator.cluster import LiveNodes
from orchestrator.config import Hardware, SweepConfig
from orchestrator.plan import Plan, PromptSet
from orchestrator.records import FinishedVisit, MeasuredBlock, Prompt, Visit, VisitEvent, VisitTask
from orchestrator.search import Drive, VisitSearch
from orchestrator.secret_values import is_secret_name
from tasks.visit import run_visit

_EVENTS: TypeAdapter[VisitEvent] = TypeAdapter(MeasuredBlock | FinishedVisit)


class VisitTrial(tune.Trainable):
    """On the node: every step hands over one finished block, the last one the visit's own record.

    Results cross as JSON text, because Tune flattens and scans any nested dict it is given.
    """

    def setup(
        self,
        config: dict[str, str],
        sweeps: Mapping[str, tuple[SweepConfig, Plan, Mapping[str, str]]],
        prompts: Mapping[str, tuple[Prompt, ...]],
    ) -> None:
        self._sweeps, self._prompts = sweeps, prompts
        self._events = self._start(config)

    def reset_config(self, new_config: dict[str, str]) -> bool:
        """The next visit in the same process: a new one would import everything again."""
        self._events = self._start(new_config)
        return True

    def step(self) -> dict[str, Any]:
        event = next(self._events)
        return {"event": event.model_dump_json(), "done": isinstance(event, FinishedVisit)}

    def cleanup(self) -> None:
        self._events.close()

    def _start(self, config: dict[str, str]) -> Any:
        visit = Visit.model_validate_json(config["visit"])
        sweep, plan, revisions = self._sweeps[config["sweep"]]
        by_id = {block.id: block for block in plan.blocks}
        task = VisitTask(
            visit=visit,
            hardware=sweep.hardware,
            server=sweep.server,
            workloads={cell.id: cell for cell in plan.workloads},
            blocks=tuple(by_id[block_id] for block_id in visit.block_ids),
            model_revisions=dict(revisions),
            model_mirror=sweep.cluster.model_mirror,
        )
        return run_visit(task, self._prompts)


class _ToBoards(Callback):
    def __init__(self, boards: Mapping[str, Board]) -> None:
        self._boards = boards

    def __getstate__(self) -> dict[str, Any]:
        """As for VisitSearch: Tune pickles it for a restore that never happens."""
        return {}

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self._boards[trial.config["sweep"]].take(_EVENTS.validate_json(result["event"]))


def run_visits(drives: Sequence[Drive], prompts: Mapping[str, PromptSet], nodes: LiveNodes) -> None:
    """Run visits until no sweep has one left. Needs a connected Ray, and its `nodes` (see `cluster.ray_cluster`).

    The sweeps measure the same `prompts`: they go to each node once.
    """
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # Ctrl-C must end the sweep at once: the ledger has it all
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new output prints a banner even where verbose=0
    # Tune hands the driver's AWS keys to the nodes, by a message that Ray logs. A node has credentials of its own.
    names = class_cache.ENV_VARS_TO_PROPAGATE
    names.difference_update([name for name in names if is_secret_name(name)])
    # A worker that died is the board's to report; Tune would add a traceback of its own insides.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    trainable = tune.with_parameters(
        VisitTrial,
        sweeps={drive.config.name: (drive.config, drive.board.plan, drive.revisions) for drive in drives},
        prompts={name: found.prompts for name, found in prompts.items()},
    )
    hardware = {drive.config.name: drive.config.hardware for drive in drives}
    with tempfile.TemporaryDirectory(prefix="specsweep-tune-") as storage:
        Tuner(
            tune.with_resources(trainable, lambda trial: _whole_slot(hardware[trial["sweep"]], trial["ray_node_id"])),
            tune_config=TuneConfig(
                search_alg=VisitSearch(drives, nodes),
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=RunConfig(
                name=drives[0].config.name,
                storage_path=storage,
                verbose=0,
                callbacks=[_ToBoards({drive.config.name: drive.board for drive in drives})],
                checkpoint_config=CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()


def _whole_slot(hardware: Hardware, ray_node_id: str) -> PlacementGroupFactory:
    """One visit takes a unit of the hardware resource, of which the node has as many as servers may run on it."""
    return PlacementGroupFactory(
        [{"CPU": 1, hardware.node_resource: 1}], bundle_label_selector=[{"ray.io/node-id": ray_node_id}]
    )
