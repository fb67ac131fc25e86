"""The typed, frozen configuration. DictConfig ends in `compose.py`; below it are only these objects."""

from orchestrator.config.base import Dtype, Level, PositiveFloat, PositiveInt, Setting, Strict
from orchestrator.config.cluster import IMAGE, Cluster, Fleet, FleetSize, Tracking
from orchestrator.config.hardware import Hardware
from orchestrator.config.model import Drafter, Model
from orchestrator.config.search import Constraints, Search, SelectionRules, Slo
from orchestrator.config.server import Server, Space
from orchestrator.config.speculation import Speculation
from orchestrator.config.sweep import SweepConfig
from orchestrator.config.workload import Dataset, Workload

__all__ = [
    "IMAGE",
    "Cluster",
    "Constraints",
    "Dataset",
    "Drafter",
    "Dtype",
    "Fleet",
    "FleetSize",
    "Hardware",
    "Level",
    "Model",
    "PositiveFloat",
    "PositiveInt",
    "Search",
    "SelectionRules",
    "Server",
    "Setting",
    "Slo",
    "Space",
    "Speculation",
    "Strict",
    "SweepConfig",
    "Tracking",
    "Workload",
]
