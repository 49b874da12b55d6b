"""What a node whose cards are cut on demand has on the API server: its Instaslice object and its memory quota.

Both are made when the slicer gets the first card and go when it has given up the last one. Cards stay in MIG mode when
they are given up: turning it off is for whoever has them next.
"""

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from tessera.api.instaslice import INSTASLICES, Instaslice
from tessera.api.names import QUOTA_RESOURCE
from tessera.kube.client.client import Client
from tessera.kube.client.errors import AlreadyExists, Conflict, NotFound
from tessera.kube.quantity import parse_quantity
from tessera.kube.resources import NODES, Node

_log = logging.getLogger(__name__)


def quota_patch(node: Node, gib: int | None) -> dict[str, Any]:
    """The status patch that makes a node offer so much memory quota; empty if it does.

    Allocatable is set beside capacity: kubelet derives it at its next status update only, up to 10 s later.

    Args:
        node: as last seen.
        gib: GiB, ``None`` for no quota at all.
    """
    fields: dict[str, Mapping[str, str]] = {"capacity": node.status.capacity, "allocatable": node.status.allocatable}
    wrong = {name for name, listed in fields.items() if not _equal(listed.get(QUOTA_RESOURCE), gib)}
    value = None if gib is None else f"{gib}Gi"
    return {"status": {name: {QUOTA_RESOURCE: value} for name in sorted(wrong)}} if wrong else {}


def _equal(text: str | None, gib: int | None) -> bool:
    if text is None or gib is None:
        return text is None and gib is None
    return parse_quantity(text) == gib * 2**30


class NodeCapacity:
    """Makes, patches and removes what this node has on the API server.

    Args:
        client: who writes.
        node_name: the node, and its Instaslice object.
        namespace: of the Instaslice object.
    """

    def __init__(self, client: Client, *, node_name: str, namespace: str) -> None:
        self._client = client
        self._name = node_name
        self._namespace = namespace
        self._quota: tuple[str, int | None] | None = None
        self._made = False

    async def ensure_object(self, seen: Instaslice | None) -> None:
        """Makes the Instaslice object unless it is there, or was made and the watch has not shown it yet."""
        if seen is None and not self._made:
            with contextlib.suppress(AlreadyExists):
                await self._client.create(INSTASLICES, {"metadata": {"name": self._name}, "spec": {}}, self._namespace)
                _log.info("node %s joined on-demand slicing", self._name)
            self._made = True

    def object_gone(self) -> None:
        """The watch showed that the object was deleted."""
        self._made = False

    async def remove_object(self, seen: Instaslice | None) -> None:
        """Removes the Instaslice object if nothing was promised since it was seen."""
        if seen is not None and not seen.spec.pod_allocation_requests:
            try:
                await self._client.delete(
                    INSTASLICES, self._name, self._namespace, resource_version=seen.metadata.resource_version
                )
                _log.info("node %s left on-demand slicing", self._name)
            except (NotFound, Conflict):
                return

    async def ensure_quota(self, node: Node, gib: int | None) -> None:
        """Sets the memory quota once per change; the watch shows later whether somebody undid it."""
        patch = quota_patch(node, gib)
        written = (node.metadata.resource_version, gib)
        if patch and self._quota != written:
            await self._client.merge_patch(NODES, self._name, patch, subresource="status")
            self._quota = written
