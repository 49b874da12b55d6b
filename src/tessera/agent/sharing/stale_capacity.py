"""Finds resources of which the Node still counts devices that are no longer given out. Pure.

Kubelet reports a changed list to the scheduler only with its next node status, up to 10 s later. If a pod's owner
replaces the pod in the meantime, the new pod is scheduled to the node and refused there for good, and so is every
further one: a ReplicaSet made 21 such pods in 3 s. So a part that wants to end pods first waits until the Node shows
the new count.
"""

from collections.abc import Collection, Mapping

from tessera.agent.sharing.refusals import WithholdingReasons, withheld_entries
from tessera.api.sharing.devices import Advertisement
from tessera.kube.quantity import parse_quantity


def overcounted_resources(
    allocatable: Mapping[str, str], offer: Advertisement, grounds: WithholdingReasons, former: Collection[str] = ()
) -> tuple[str, ...]:
    """Returns the resources of which the Node counts more than can be given out, in order of name.

    Args:
        allocatable: allocatable resources from the Node's status.
        offer: the advertised entries.
        grounds: the reasons to withhold entries now.
        former: resources that were offered once; those that are no longer offered have no device to give.
    """
    fit = dict.fromkeys(former, 0)
    fit |= {name: len(each.devices) - len(withheld_entries(each, grounds)) for name, each in offer.resources.items()}
    return tuple(sorted(name for name, count in fit.items() if parse_quantity(allocatable.get(name, "0")) > count))
