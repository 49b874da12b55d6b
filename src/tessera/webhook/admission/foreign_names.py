"""Slices under the names that other slicers give them: refused with the name that counts here.

Where some node has the resource, another slicer runs in the cluster and the pod is meant for it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tessera.api.names import meant_resource
from tessera.text import one_line
from tessera.webhook.base.refusal import Refused
from tessera.webhook.nodes.capabilities import Capabilities

Json = Mapping[str, Any]


def refuse_foreign(spec: Json, capabilities: Capabilities) -> None:
    """Refuses a pod that asks for another slicer's resource, which no node has.

    Raises:
        Refused: the text names container, resource and the right name.
    """
    for container, resource in _asked(spec):
        meant = meant_resource(resource)
        if meant and resource not in capabilities.foreign:
            raise Refused(
                f'container "{one_line(container)}": {one_line(resource)} is a name of another slicer, and no node has '
                f"it; here it is {one_line(meant)}: write that in limits"
            )


def _asked(spec: Json) -> Iterator[tuple[str, str]]:
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        for field in ("limits", "requests"):
            for resource in resources.get(field) or ():
                yield container.get("name") or "", resource
