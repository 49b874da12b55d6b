"""Watches ClusterPolicy and NVIDIADriver objects, and keeps the last valid version of each.

A cluster without the CRDs counts as one without such objects; the CRDs may be installed at any time.

The controller ignores an object with a mistake and uses its last valid version
(:mod:`tessera.driver.policies.policy_selection`). The ConfigMap ``driver-policies`` holds these versions, so that a
controller that starts after the mistake does the same. Content that cannot be decoded counts as missing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from tessera.driver.limits import DRIVER_MEMORY
from tessera.driver.manifests.names import NAMESPACE
from tessera.driver.policies.policy_selection import Labels, PolicyObjects, PolicySelection, select_policy
from tessera.gpu_operator.policies.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.gpu_operator.policies.driver_policy import DriverPolicy
from tessera.kube.client.errors import NotFound
from tessera.kube.persistent_config_map import PersistentConfigMap
from tessera.kube.resources.meta import Resource
from tessera.kube.runtime import KubeRuntime
from tessera.kube.watch.cache import WatchEvent
from tessera.kube.watch.informer import Informer

_log = logging.getLogger(__name__)

CONFIG_MAP = "driver-policies"
KEY = "policies.json"


class ValidPolicies:
    """The last valid version of each policy, by ``kind/name``.

    Args:
        runtime: see :class:`~tessera.kube.runtime.KubeRuntime`.
        namespace: namespace of the ConfigMap.
    """

    def __init__(self, runtime: KubeRuntime, *, namespace: str) -> None:
        self.last_valid: Mapping[str, DriverPolicy] = {}
        self._map = PersistentConfigMap(
            runtime.client,
            runtime.clock,
            namespace=namespace,
            name=CONFIG_MAP,
            data=self._data,
            rng=runtime.rng,
            may_act=runtime.may_act,
        )

    async def load(self) -> None:
        """Reads the versions that an earlier controller stored; retries until the server answers."""
        self.last_valid = decode_policies((await self._map.load()).get(KEY, "{}"))

    async def run(self) -> None:
        """Writes the versions to the ConfigMap, until cancelled."""
        await self._map.run()

    def update(self, policies: Mapping[str, DriverPolicy]) -> None:
        """Replaces the versions to store."""
        if policies != self.last_valid:
            self.last_valid = dict(policies)
            self._map.mark_changed()

    def _data(self) -> Mapping[str, str]:
        return {KEY: msgspec.json.encode(self.last_valid, order="sorted").decode()}


def decode_policies(text: str) -> Mapping[str, DriverPolicy]:
    """The versions in the ConfigMap's text; none if it cannot be decoded."""
    try:
        return msgspec.json.decode(text[:DRIVER_MEMORY], type=dict[str, DriverPolicy])
    except (msgspec.DecodeError, RecursionError) as error:
        _log.warning("the policies in ConfigMap %s cannot be decoded, it is replaced: %s", CONFIG_MAP, error)
        return {}


Obj = dict[str, Any]


class PolicyWatcher:
    """Watches ClusterPolicy and NVIDIADriver objects.

    Args:
        runtime: see :class:`~tessera.kube.runtime.KubeRuntime`.
        changed: called when an object changed, with the keys of writes that may be decided again.
    """

    def __init__(self, runtime: KubeRuntime, *, changed: Callable[[Iterable[str]], None]) -> None:
        client, clock, rng = runtime.client, runtime.clock, runtime.rng
        self._cluster_policies: Informer[Obj] = Informer(client, CLUSTER_POLICIES, clock=clock, rng=rng)
        self._drivers: Informer[Obj] = Informer(client, NVIDIA_DRIVERS, clock=clock, rng=rng)
        self._valid = ValidPolicies(runtime, namespace=NAMESPACE)
        self._changed = changed
        #: The last selection, and what it was made from.
        self._selection = PolicySelection()
        self._selected_from: tuple[PolicyObjects, Labels] | None = None
        self._cluster_policies.add_handler(partial(self._on_object, CLUSTER_POLICIES))
        self._drivers.add_handler(partial(self._on_object, NVIDIA_DRIVERS))

    async def run(self) -> None:
        """Watches the objects and stores valid versions, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in (self._cluster_policies.run(), self._drivers.run(), self._valid.run()):
                group.create_task(part)

    async def wait_read(self) -> None:
        """Returns once all objects were listed, or their kind does not exist, and the stored versions were read."""
        for mirror in (self._cluster_policies, self._drivers):
            while not mirror.synced and not _is_absent(mirror):
                mirror.reflector.attempted.clear()
                await mirror.reflector.attempted.wait()
        await self._valid.load()

    def select_policy(self, nodes: Labels) -> PolicySelection:
        """Selects the policy of each node, and remembers the valid versions; reads no object again that is as it was.

        Args:
            nodes: labels of the nodes with GPUs, by name.
        """
        objects = PolicyObjects(
            cluster_policies=_objects(self._cluster_policies),
            nvidia_drivers=_objects(self._drivers),
            last_valid=self._valid.last_valid,
        )
        if self._selected_from != (objects, nodes):
            self._selected_from = objects, nodes
            self._selection = select_policy(objects, nodes)
            self._valid.update(self._selection.last_valid)
        return self._selection

    def _on_object(self, kind: Resource[Obj], event: WatchEvent[Obj]) -> None:
        self._changed((f"policy/{kind.kind}/{event.object['metadata']['name']}",))


def _objects(mirror: Informer[Obj]) -> list[Obj] | None:
    """All objects of a kind; None if the API server does not serve the kind."""
    return list(mirror.cache.values()) if mirror.synced else None


def _is_absent(mirror: Informer[Obj]) -> bool:
    """True if the API server said that it does not serve the kind."""
    return isinstance(mirror.reflector.error, NotFound)
