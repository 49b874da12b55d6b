"""The API objects of a node whose cards are cut on demand: its Instaslice object and its memory quota.

The agent creates both when the slice manager gets its first card, and removes them when it has released its last one.
Released cards stay in MIG mode: their next owner turns it off.
"""

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from tessera.api.instaslice import INSTASLICE_FORMAT, INSTASLICES, Instaslice
from tessera.api.names import QUOTA_RESOURCE
from tessera.kube.client.client import Client
from tessera.kube.client.errors import AlreadyExists, Conflict, NotFound
from tessera.kube.quantity import parse_quantity
from tessera.kube.resources import NODES, Node
from tessera.kube.resources.meta import FORMAT_ANNOTATION

_log = logging.getLogger(__name__)


def quota_patch(node: Node, gib: int | None) -> dict[str, Any]:
    """Returns the status patch that makes a node offer this much memory quota; empty if the node does so.

    The patch sets allocatable beside capacity: kubelet derives it only at its next status update, up to 10 s later.

    Args:
        node: the Node as last seen.
        gib: GiB; ``None`` for no quota at all.
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
    """Creates, patches and removes the API objects of this node.

    Args:
        client: the API server.
        node_name: name of the node and of its Instaslice object.
        namespace: namespace of the Instaslice object.
    """

    def __init__(self, client: Client, *, node_name: str, namespace: str) -> None:
        self._client = client
        self._name = node_name
        self._namespace = namespace
        #: The Node's version and the GiB of the last write of the quota; ``None`` before the first.
        self._quota: tuple[str, int | None] | None = None
        #: True from the creation of the object until the watch shows its deletion.
        self._created = False

    async def ensure_object(self, item: Instaslice | None) -> None:
        """Creates the Instaslice object, unless it exists or was created and the watch has not shown it yet."""
        if item is None and not self._created:
            with contextlib.suppress(AlreadyExists):
                metadata = {"name": self._name, "annotations": {FORMAT_ANNOTATION: str(INSTASLICE_FORMAT)}}
                await self._client.create(INSTASLICES, {"metadata": metadata, "spec": {}}, self._namespace)
                _log.info("node %s joined on-demand slicing", self._name)
            self._created = True

    def forget_object(self) -> None:
        """Takes in that the watch showed the deletion of the object."""
        self._created = False

    async def remove_object(self, item: Instaslice | None) -> None:
        """Removes the Instaslice object unless the controller promised something after ``item`` was read."""
        if item is not None and not item.spec.pod_allocation_requests:
            try:
                await self._client.delete(
                    INSTASLICES, self._name, self._namespace, resource_version=item.metadata.resource_version
                )
                _log.info("node %s left on-demand slicing", self._name)
            except (NotFound, Conflict):
                return

    async def ensure_quota(self, node: Node, gib: int | None) -> None:
        """Sets the memory quota once per change; the watch shows later if another writer undid it."""
        patch = quota_patch(node, gib)
        written = (node.metadata.resource_version, gib)
        if patch and self._quota != written:
            await self._client.merge_patch(NODES, self._name, patch, subresource="status")
            self._quota = written
