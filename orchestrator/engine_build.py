"""What is known of an engine before it is started."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class EngineBuild:
    version: str
    """Of vLLM, as its distribution states it: `0.32.0+cpu`."""
    triton_backends: frozenset[str] = frozenset()
    packages: Mapping[str, str] = field(default_factory=dict)
    """Distributions beside vLLM that a method may need -> their version."""
    plugins: frozenset[str] = frozenset()
    """Entry points in vLLM's group `vllm.general_plugins`."""

    def is_in(self, versions: SpecifierSet) -> bool:
        """False for a version that is no PEP 440 one (a build of one's own)."""
        try:
            return versions.contains(Version(self.version), prereleases=True)
        except InvalidVersion:
            return False
