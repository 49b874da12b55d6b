"""What the cluster's cards can do, for one pod or for any.

Two kinds of nodes serve ``nvidia.com/mig-*``: those whose cards are cut on demand, and those with a fixed layout; a
node with cards of both kinds serves each profile in one way. A pod that only a fixed layout can serve is left to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec

from tessera.mig.geometry import closest_profile
from tessera.mig.models import MODELS
from tessera.mig.names import resource_spelling
from tessera.webhook.gpu_nodes import GpuNode
from tessera.webhook.restriction import restriction_of


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Profiles in the resource's spelling, and the nodes behind them.

    Attributes:
        dynamic: what some on-demand card can be cut into; empty if no such card is known yet.
        static: what some node with a fixed layout has.
        nodes: the nodes with GPUs.
    """

    dynamic: frozenset[str] = frozenset()
    static: frozenset[str] = frozenset()
    nodes: tuple[GpuNode, ...] = ()

    @classmethod
    def of(cls, nodes: Iterable[GpuNode]) -> Self:
        """All that these nodes can do."""
        known = tuple(sorted(nodes, key=lambda node: node.name))
        return cls(
            dynamic=frozenset().union(*(node.dynamic for node in known)),
            static=frozenset().union(*(node.fixed for node in known)),
            nodes=known,
        )

    @property
    def possible(self) -> frozenset[str]:
        """What a gated pod may hope for: what the cards can do, or before any is known, any model's profiles."""
        return self.dynamic or MODEL_PROFILES

    def left_by(self, spec: Mapping[str, Any]) -> Sequence[GpuNode]:
        """The nodes that a pod's node selector and required node affinity leave."""
        restriction = restriction_of(spec)
        return (
            [node for node in self.nodes if restriction.admits(node.name, node.labels)] if restriction else self.nodes
        )

    def closest(self, profile: str) -> str | None:
        """The possible profile whose spelling is closest, if any is close."""
        return closest_profile(profile, sorted(self.possible | self.static))


def _model_profiles() -> frozenset[str]:
    names = {name for model in MODELS for name in model.profile_names}
    tables = [model.table for model in MODELS if model.table is not None]
    names |= {alias for table in tables for row in table.profiles for alias in row.aliases}
    return frozenset(map(resource_spelling, names))


#: Every profile of every model that NVIDIA cuts, in the resource's spelling.
MODEL_PROFILES = _model_profiles()
