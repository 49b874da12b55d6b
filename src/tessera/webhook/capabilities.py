"""What the cluster's cards can do, by profile name.

Two kinds of nodes serve ``nvidia.com/mig-*``: those whose cards are cut on demand (they have an Instaslice object) and
those with a fixed layout, which advertise their slices in ``status.allocatable``. A pod that only a fixed layout can
serve is none of our business.
"""

from collections.abc import Iterable, Mapping

import msgspec

from tessera.api.instaslice import Instaslice
from tessera.api.names import MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL, profile_of
from tessera.kube.resources import Node
from tessera.mig.geometry import closest_profile
from tessera.mig.models import MODELS
from tessera.mig.names import resource_spelling


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Profiles in the resource's spelling.

    Attributes:
        dynamic: what some on-demand card can be cut into; empty if no such card is known yet.
        static: what some node with a fixed layout advertises.
    """

    dynamic: frozenset[str] = frozenset()
    static: frozenset[str] = frozenset()

    @property
    def possible(self) -> frozenset[str]:
        """What a gated pod may hope for: what the cards can do, or before any is known, any model's profiles."""
        return self.dynamic or MODEL_PROFILES

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


def dynamic_profiles(instaslices: Iterable[Instaslice]) -> frozenset[str]:
    """Profiles of all cards that agents have reported, of a node's model also while none of its cards answers."""
    known = [item.status.node_resources for item in instaslices]
    tables = [node.placements_of(gpu) for node in known for gpu in node.node_gpus] + [
        node.mig_placement for node in known
    ]
    return frozenset(resource_spelling(profile) for table in tables for profile in table)


def static_profiles(nodes: Iterable[Node]) -> frozenset[str]:
    """Profiles that nodes advertise and that are not cut on demand."""
    return frozenset(
        profile
        for node in nodes
        if node.metadata.labels.get(MIG_CONFIG_LABEL) != MIG_CONFIG_DYNAMIC
        for profile in _advertised(node.status.allocatable)
    )


def _advertised(allocatable: Mapping[str, str]) -> Iterable[str]:
    return (profile for name, amount in allocatable.items() if amount != "0" and (profile := profile_of(name)))
