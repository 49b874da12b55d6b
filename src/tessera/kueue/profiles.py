"""The profiles that Kueue must be able to charge: those of the cluster's cards, and those that its nodes offer."""

from collections.abc import Iterable

from tessera.api.instaslice import Instaslice
from tessera.api.names import profile_of
from tessera.kube.resources import Node
from tessera.kueue.configuration import charged_gigabytes
from tessera.mig.names import resource_spelling

#: Ending of the resource of shares of slices; a share is not charged the slice's memory.
_SHARED = ".shared"


def profiles_in_cluster(instaslices: Iterable[Instaslice], nodes: Iterable[Node]) -> list[str]:
    """Returns the profiles in the resource's spelling, smallest first.

    Args:
        instaslices: the objects of nodes with slices on demand.
        nodes: all nodes; those with fixed layouts list MIG resources.
    """
    found = {resource_spelling(profile) for item in instaslices for profile in item.status.node_resources.profiles}
    for node in nodes:
        found |= {profile_of(name) for name in node.status.allocatable if not name.endswith(_SHARED)}
    charged = {profile: charged_gigabytes(profile) for profile in found if profile}
    return sorted((each for each, amount in charged.items() if amount), key=lambda each: (charged[each], each))
