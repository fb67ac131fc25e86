"""Errors that a user can act on: each message says what, where, and what to do.

`exit_code` is what the command line returns: 2 when the configuration is at fault and nothing was started,
3 when a run failed (what was measured is kept).
"""


class OrchestratorError(Exception):
    """Root of every error raised on purpose."""

    exit_code = 3


class ConfigError(OrchestratorError):
    """The configuration or the command line is wrong; nothing was started."""

    exit_code = 2


class EngineNotFound(ConfigError):
    """No usable vLLM where the configuration says it should be."""


class NodeUnavailable(ConfigError):
    """No node of the cluster offers what the hardware profile asks for."""


class PromptsUnavailable(ConfigError):
    """A dataset cannot be read, or has too few usable prompts."""


class HubUnavailable(PromptsUnavailable):
    """The Hugging Face hub cannot be reached, or does not have (or give) what was asked for."""


class ModelFilesUnavailable(ConfigError):
    """A model's files cannot be had, from the hub, its cache or a mirror."""


class LedgerError(OrchestratorError):
    """The ledger on disk is damaged other than by a torn last line, or belongs to another plan."""


class SweepLocked(ConfigError):
    """Another process is running the same sweep."""


class ServerError(OrchestratorError):
    """The engine did not do what the arm asks for."""


class PortTaken(ServerError):
    """The configured port is in use on the node."""


class ServerCrashed(ServerError):
    """The engine process ended on its own."""


class ServerNotReady(ServerError):
    """The engine did not answer within the time allowed."""


class ArmMismatch(ServerError):
    """The running engine is not the configuration that was asked for."""


class NodeInterrupted(OrchestratorError):
    """The node is about to be taken away; what it did not measure is measured elsewhere."""


class LoadFailed(OrchestratorError):
    """Requests failed, so the block says nothing about throughput."""


class TrackingFailed(OrchestratorError):
    """MLflow could not be brought in line with a sweep's folder; what was measured is not touched by that."""


class ArtifactsFailed(OrchestratorError):
    """Files could not be brought to S3 or fetched from there whole."""


class UnsafeName(OrchestratorError):
    """Data from elsewhere names a file that this tool would not."""


class ClusterLost(OrchestratorError):
    """The Ray cluster died under the sweep, or its head went out of reach."""


class SweepFailed(OrchestratorError):
    """The sweep ended without a figure for every workload."""


class FleetFailed(OrchestratorError):
    """AWS or Terraform did not do what the fleet needs; the lease ends its workers all the same."""
