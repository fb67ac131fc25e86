"""Ray Tune runs the visits: one trial is one server start, alone on its node."""

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from pydantic import TypeAdapter
from ray import cloudpickle, tune
from ray.exceptions import ActorUnavailableError, RayError
from ray.tune import Callback, CheckpointConfig, PlacementGroupFactory, RunConfig, TuneConfig, TuneError, Tuner
from ray.tune.execution import class_cache
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from orchestrator.cluster import LiveNodes
from orchestrator.config import Hardware, SweepConfig
from orchestrator.plan import Plan, PromptSet
from orchestrator.records import FinishedVisit, MeasuredBlock, MeasuredWith, Prompt, Visit, VisitEvent, VisitTask
from orchestrator.search import Drive, VisitSearch
from orchestrator.secret_values import is_secret_name
from tasks.lifeline import end_with
from tasks.visit import run_visit

MAX_PENDING = "10000"
"""Trials that may wait for their node; by Tune's own setting one that waits keeps all other nodes idle."""

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
        self._lifeline = end_with(str(ray.get_runtime_context().gcs_address))
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
        self._lifeline.release()

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
            measured_with=MeasuredWith.model_validate_json(config["measured_with"]),
        )
        return run_visit(task, self._prompts)


class _ToBoards(Callback):
    def __init__(self, drives: Mapping[str, Drive]) -> None:
        self._drives = drives
        self.error: OSError | None = None

    def __getstate__(self) -> dict[str, Any]:
        """As for VisitSearch: Tune pickles it for a restore that never happens."""
        return {}

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._drives[trial.config["sweep"]].lookout.hear(trial.trial_id, has_measured=False)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        drive = self._drives[trial.config["sweep"]]
        drive.lookout.hear(trial.trial_id, has_measured=True)
        try:
            drive.board.take(_EVENTS.validate_json(result["event"]))
        except OSError as error:
            self.error = error  # a full disk: Tune would hide it in an error of its own
            raise


class _EndLost(FIFOScheduler):
    """Ends the trials of visits that a lookout gives up, which Tune would wait for."""

    def __init__(self, drives: Mapping[str, Drive], nodes: LiveNodes) -> None:
        super().__init__()
        self._drives, self._nodes = drives, nodes
        self._open: dict[str, Trial] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._open[trial.trial_id] = trial

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Before Tune waits for the next visit, which may be the rest of this one."""
        self._is_over(trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Asked at every turn of Tune's loop, which tells nobody of the end of some trials."""
        for trial in [trial for trial in self._open.values() if trial.is_finished()]:
            self._is_over(trial)
        for drive in self._drives.values():
            for trial_id in drive.lookout.give_up():
                self._end(tune_controller, self._open[trial_id])
        return super().choose_trial_to_run(tune_controller)

    def _is_over(self, trial: Trial) -> None:
        del self._open[trial.trial_id]
        drive = self._drives[trial.config["sweep"]]
        live = self._nodes(drive.config.hardware)
        drive.lookout.end(trial.trial_id, live, unreachable=_is_unreachable(trial))

    def _end(self, tune_controller: Any, trial: Trial) -> None:
        if trial.status == Trial.PENDING:
            tune_controller.stop_trial(trial)
        elif trial.temporary_state.ray_actor is not None:
            # By force: one that hangs, or is cut off, would not hear a request. Tune then sees it die.
            ray.kill(trial.temporary_state.ray_actor)


def run_visits(
    drives: Sequence[Drive], prompts: Mapping[str, PromptSet], nodes: LiveNodes, trial: type[VisitTrial] = VisitTrial
) -> None:
    """Run visits until no sweep has one left. Needs a connected Ray, and its `nodes` (see `cluster.ray_cluster`).

    The sweeps measure the same `prompts`: they go to each node once. `trial` is what runs a visit on its node.
    """
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # Ctrl-C must end the sweep at once: the ledger has it all
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = MAX_PENDING
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new output prints a banner even where verbose=0
    # Tune hands the driver's AWS keys to the nodes, by a message that Ray logs. A node has credentials of its own.
    names = class_cache.ENV_VARS_TO_PROPAGATE
    names.difference_update([name for name in names if is_secret_name(name)])
    # A worker that died is the board's to report; Tune would add a traceback of its own insides.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    trainable = tune.with_parameters(
        trial,
        sweeps={drive.config.name: (drive.config, drive.board.plan, drive.revisions) for drive in drives},
        prompts={name: found.prompts for name, found in prompts.items()},
    )
    by_name = {drive.config.name: drive for drive in drives}
    to_boards = _ToBoards(by_name)
    hardware = {drive.config.name: drive.config.hardware for drive in drives}
    with tempfile.TemporaryDirectory(prefix="specsweep-tune-") as storage, _own_error(to_boards):
        Tuner(
            tune.with_resources(trainable, lambda given: _whole_slot(hardware[given["sweep"]], given["ray_node_id"])),
            tune_config=TuneConfig(
                search_alg=VisitSearch(drives, nodes),
                scheduler=_EndLost(by_name, nodes),
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=lambda started: started.trial_id,
                trial_dirname_creator=lambda started: started.trial_id,
            ),
            run_config=RunConfig(
                name=drives[0].config.name,
                storage_path=storage,
                verbose=0,
                callbacks=[to_boards],
                checkpoint_config=CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()


@contextmanager
def _own_error(to_boards: _ToBoards) -> Iterator[None]:
    try:
        yield
    except (RayError, TuneError, OSError):
        if to_boards.error:
            raise to_boards.error from None
        raise


def _is_unreachable(trial: Trial) -> bool:
    """Whether it ended because its worker does not answer; of a worker that died Ray knows it from the node."""
    error = trial.pickled_error_file  # what get_pickled_error() reads is a copy that comes later
    return error is not None and isinstance(cloudpickle.loads(Path(error).read_bytes()), ActorUnavailableError)


def _whole_slot(hardware: Hardware, ray_node_id: str) -> PlacementGroupFactory:
    """One visit takes a unit of the hardware resource, of which the node has as many as servers may run on it."""
    return PlacementGroupFactory(
        [{"CPU": 1, hardware.node_resource: 1}], bundle_label_selector=[{"ray.io/node-id": ray_node_id}]
    )
