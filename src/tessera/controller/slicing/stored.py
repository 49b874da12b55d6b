"""The controller's state for somebody who only looks: made once from objects that were listed, and never acted upon.

``tessera why`` answers from it, so that what it says about a pod is what the controller itself decides.
"""

from collections.abc import Iterable

from tessera.api.instaslice import Instaslice
from tessera.controller.objects.node_info import node_facts
from tessera.controller.objects.pod_info import pod_facts
from tessera.controller.slicing.slicer import Slicer
from tessera.kube.resources import Node, Pod


def state_of(pods: Iterable[Pod], nodes: Iterable[Node], instaslices: Iterable[Instaslice]) -> Slicer:
    """The state as it follows from what is stored, with everything that waits planned once."""
    slicer = Slicer()
    for node in nodes:
        slicer.see_node(node_facts(node))
    for pod in pods:
        slicer.see_pod(pod_facts(pod))
    for item in instaslices:
        slicer.see_object(item)
    slicer.decide()
    while slicer.has_work:
        slicer.decide()
    return slicer
