"""Whether the Node still counts devices that are not given out any more. Pure.

Kubelet tells the scheduler of a changed list only with its next node status, up to 10 s later. A pod that its owner
replaces in the meantime is sent to the node once more and refused there for good, and so is every next one: a
ReplicaSet made 21 such pods in 3 s. Whoever is about to end pods therefore waits until the Node shows the new count.
"""

from collections.abc import Collection, Mapping

from tessera.agent.sharing.refusals import WithholdingReasons, withheld_entries
from tessera.api.sharing.devices import Advertisement
from tessera.kube.quantity import parse_quantity


def overcounted_resources(
    allocatable: Mapping[str, str], offer: Advertisement, grounds: WithholdingReasons, former: Collection[str] = ()
) -> tuple[str, ...]:
    """The resources of which the Node counts more than can be given out, in order of name.

    Args:
        allocatable: of the Node's status.
        offer: what is offered.
        grounds: what speaks against giving out entries now.
        former: resources that were offered once; nothing can be given of those that are not offered any more.
    """
    fit = dict.fromkeys(former, 0)
    fit |= {name: len(each.devices) - len(withheld_entries(each, grounds)) for name, each in offer.resources.items()}
    return tuple(sorted(name for name, count in fit.items() if parse_quantity(allocatable.get(name, "0")) > count))
