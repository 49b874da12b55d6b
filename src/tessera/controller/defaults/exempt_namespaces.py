"""Exempts the add-ons that Tessera finds from the policy for pods: once, by a label on their namespaces.

An add-on that owns its nodes (a network, a storage driver) runs privileged pods. Its namespace has a usual name, but a
name is no right: whoever may create namespaces could take one that does not exist. So the namespaces of these names
that exist when a controller first leads get the label, and the ConfigMap :data:`RECORD` says which. Where it exists,
nothing is labelled: an add-on that comes later is exempted by an administrator, whom ``tessera doctor`` tells.

A controller that dies between the labels and the record writes both again. A label with another value stays.
"""

import logging
from contextlib import suppress

from tessera.api.names import ADD_ONS, DEVICE_ACCESS_ALLOWED, DEVICE_ACCESS_LABEL
from tessera.kube.backoff import Backoff
from tessera.kube.client.errors import AlreadyExists, ApiError, NotFound
from tessera.kube.resources import CONFIGMAPS, NAMESPACES
from tessera.kube.runtime import KubeRuntime

_log = logging.getLogger(__name__)

#: The ConfigMap that says which namespaces were exempted; its key has their names, one a line.
RECORD, RECORD_KEY = "exempt-namespaces", "namespaces"


async def exempt_add_ons(runtime: KubeRuntime, *, namespace: str) -> None:
    """Labels the namespaces, unless a controller has done so; tries again with growing pauses until it succeeds.

    Args:
        runtime: access to the cluster; its identity needs list of namespaces, patch of those of add-ons, and get and
            create of ConfigMaps in ``namespace``.
        namespace: Tessera's own.
    """
    backoff = Backoff(runtime.rng)
    while True:
        try:
            return await _exempt(runtime, namespace)
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("the namespaces of add-ons cannot be exempted from the policy for pods yet: %s", error)
        await runtime.clock.sleep(backoff.next())


async def _exempt(runtime: KubeRuntime, namespace: str) -> None:
    client = runtime.client
    with suppress(NotFound):
        await client.get(CONFIGMAPS, RECORD, namespace)
        return
    found = await client.list(NAMESPACES.metadata_only(), label_selector=f"!{DEVICE_ACCESS_LABEL}")
    present = [each.metadata for each in found.items if each.metadata.name in ADD_ONS]
    label = {"metadata": {"labels": {DEVICE_ACCESS_LABEL: DEVICE_ACCESS_ALLOWED}}}
    for meta in present:
        await client.merge_patch(NAMESPACES, meta.name, label, uid=meta.uid)
    names = [meta.name for meta in present]
    record = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": RECORD, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "tessera"}},
        "data": {RECORD_KEY: "\n".join(names)},
    }
    with suppress(AlreadyExists):  # the answer to an earlier create was lost
        await client.create(CONFIGMAPS, record, namespace)
    _log.info("exempt from the policy for pods: %s", ", ".join(names) or "no namespace of an add-on exists")
