"""The cloud: makes and removes machines of node groups, and keeps their Machine objects up to date.

An autoscaler or a test decides about the number and calls :meth:`Cloud.increase` and :meth:`Cloud.delete`.
Rules:

* a machine takes its group's time until it exists, then until its node registers, drawn anew for each;
* if somebody else deletes a Machine, its node goes too and a new one replaces it, as in a MachineSet: the target stays;
* a machine costs money from the moment when it exists until it is gone.
"""

import asyncio
import contextlib
import random
import string
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tessera.kube.errors import AlreadyExists, NotFound
from tessera.kube.informer import EventKind, Informer, WatchEvent
from tessera.kube.resources import CAPI_MACHINES, CRDS, NAMESPACES
from tessera.kube.resources import Machine as MachineObject
from tessera_lab.cloud.node_groups import (
    NAMESPACE,
    CloudInstance,
    InstanceState,
    NodeGroup,
    build_machine,
    machine_definition,
    node_annotations,
    provider_patch,
    status_patch,
)
from tessera_lab.cluster.cluster import SimulatedCluster


class Cloud:
    """Machines of a running cluster.

    Args:
        cluster: the cluster in which their nodes register.
        groups: the node groups.
        rng: random numbers; from the cluster's seed if None.

    Attributes:
        groups: the groups by name.
    """

    def __init__(
        self, cluster: SimulatedCluster, groups: Iterable[NodeGroup], *, rng: random.Random | None = None
    ) -> None:
        self.groups: Mapping[str, NodeGroup] = {group.name: group for group in groups}
        self._cluster = cluster
        self._client = cluster.client("capi-controller")
        self._clock = cluster.clock
        self._waits = cluster.hardware_clock
        self._rng = rng or cluster.rng("cloud")
        self._instances: dict[str, CloudInstance] = {}
        self._targets = dict.fromkeys(self.groups, 0)
        self._ways: dict[str, asyncio.Task[None]] = {}
        self._paid = dict.fromkeys(self.groups, 0.0)
        self._group: asyncio.TaskGroup | None = None
        self._listeners: list[Callable[[], None]] = []

    # State

    def target(self, group: str) -> int:
        """The target size of a group."""
        return self._targets[self._is_known(group).name]

    def instances(self, group: str | None = None) -> list[CloudInstance]:
        """The machines of a group or of all, the oldest first."""
        return [each for each in self._instances.values() if group in (None, each.group)]

    def instance(self, node: str) -> CloudInstance | None:
        """Returns the machine of a node; None if it is not the cloud's."""
        return self._instances.get(node)

    def machine_seconds(self, group: str | None = None) -> float:
        """Returns the paid time: the sum of all machines' lifetimes, seconds."""
        now = self._clock.now()
        running = sum(now - each.vm for each in self.instances(group) if each.vm is not None)
        return running + sum(paid for name, paid in self._paid.items() if group in (None, name))

    def listen(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` after an instance is added, is removed or changes its state."""
        self._listeners.append(changed)

    # Requests

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Makes machines inside the block, each group's minimum at once. The cluster must be running."""
        await self._install()
        machines = Informer(
            self._client, CAPI_MACHINES, clock=self._clock, rng=self._cluster.rng("machines"), namespace=NAMESPACE
        )
        machines.add_handler(self._on_machine)
        async with asyncio.TaskGroup() as group:
            self._group = group
            watch = group.create_task(machines.run())
            await machines.wait_synced()
            for each in self.groups.values():
                if each.minimum:
                    self.increase(each.name, each.minimum)
            try:
                yield
            finally:
                self._group = None
                watch.cancel()
                for way in self._ways.values():
                    way.cancel()

    def increase(self, group: str, count: int) -> list[CloudInstance]:
        """Asks for more machines of a group.

        Raises:
            ValueError: no such group, more than its maximum, or the cloud does not run.
        """
        found = self._is_known(group)
        if count < 1:
            raise ValueError(f"node group {group}: {count} more machines; ask for at least 1")
        if self._targets[group] + count > found.maximum:
            raise ValueError(f"node group {group}: {self._targets[group]} + {count} machines, {found.maximum} at most")
        self._targets[group] += count
        return [self._request(found) for _ in range(count)]

    async def delete(self, node: str) -> None:
        """Removes a machine and lowers its group's target; returns when machine and node are gone.

        Raises:
            ValueError: no such machine, or the group has its minimum.
        """
        instance = self._instances.get(node)
        if instance is None or instance.state is InstanceState.DELETING:
            raise ValueError(f"machine {node}: there is none, or it is being deleted")
        minimum = self.groups[instance.group].minimum
        if self._targets[instance.group] <= minimum:
            raise ValueError(f"machine {node}: node group {instance.group} has its minimum of {minimum} machines")
        self._targets[instance.group] -= 1
        await self._remove_machine(instance)

    # New machines

    def _request(self, group: NodeGroup) -> CloudInstance:
        if self._group is None:
            raise ValueError(f"node group {group.name}: the cloud does not run; use `async with cloud.running()`")
        name = self._new_name(group.name)
        instance = CloudInstance(
            name=name, group=group.name, provider_id=f"lab:///{group.name}/{name}", requested=self._clock.now()
        )
        self._put(instance)
        way = self._ways[name] = self._group.create_task(self._create_machine(instance, group), name=f"machine {name}")
        way.add_done_callback(lambda _: self._ways.pop(name, None))
        return instance

    async def _create_machine(self, instance: CloudInstance, group: NodeGroup) -> None:
        await self._client.create(CAPI_MACHINES.as_dicts(), build_machine(instance), NAMESPACE)
        await self._waits.sleep(group.vm.draw(self._rng))
        instance = await self._advance(instance, state=InstanceState.BOOTING, vm=self._clock.now())
        await self._waits.sleep(group.join.draw(self._rng))
        self._cluster.add_node(
            msgspec.structs.replace(group.template, name=instance.name),
            labels=group.labels,
            taints=group.taints,
            provider_id=instance.provider_id,
            annotations=node_annotations(instance),
        )
        await self._advance(instance, state=InstanceState.JOINED, joined=self._clock.now())

    async def _advance(self, instance: CloudInstance, **facts: Any) -> CloudInstance:
        instance = msgspec.structs.replace(instance, **facts)
        self._put(instance)
        with contextlib.suppress(NotFound):  # somebody has deleted it
            if instance.state is InstanceState.BOOTING:
                await self._client.merge_patch(CAPI_MACHINES, instance.name, provider_patch(instance), NAMESPACE)
            await self._client.merge_patch(
                CAPI_MACHINES, instance.name, status_patch(instance), NAMESPACE, subresource="status"
            )
        return instance

    # Removed machines

    async def _remove_machine(self, instance: CloudInstance) -> None:
        way = self._ways.get(instance.name)
        if way is not None:
            way.cancel()
            await asyncio.wait([way])
        instance = self._instances[instance.name]
        self._put(msgspec.structs.replace(instance, state=InstanceState.DELETING))
        if instance.name in self._cluster.nodes:
            await self._cluster.remove_node(instance.name)
        if instance.vm is not None:
            self._paid[instance.group] += self._clock.now() - instance.vm
        del self._instances[instance.name]
        self._notify()
        with contextlib.suppress(NotFound):
            await self._client.delete(CAPI_MACHINES, instance.name, NAMESPACE)

    def _on_machine(self, event: WatchEvent[MachineObject]) -> None:
        """Replaces a Machine that somebody else deleted."""
        instance = self._instances.get(event.object.metadata.name)
        removed = event.kind is EventKind.DELETED
        if not removed or instance is None or instance.state is InstanceState.DELETING or self._group is None:
            return
        self._group.create_task(self._replace(instance), name=f"replace {instance.name}")

    async def _replace(self, instance: CloudInstance) -> None:
        await self._remove_machine(instance)
        if self._group is not None:
            self._request(self.groups[instance.group])

    # Small parts

    async def _install(self) -> None:
        with contextlib.suppress(AlreadyExists):
            await self._client.create(CRDS.as_dicts(), machine_definition())
        with contextlib.suppress(AlreadyExists):
            await self._client.create(NAMESPACES.as_dicts(), {"metadata": {"name": NAMESPACE}})

    def _put(self, instance: CloudInstance) -> None:
        self._instances[instance.name] = instance
        self._notify()

    def _notify(self) -> None:
        for changed in self._listeners:
            changed()

    def _is_known(self, group: str) -> NodeGroup:
        if group not in self.groups:
            raise ValueError(f"no node group {group!r}; there are {', '.join(self.groups)}")
        return self.groups[group]

    def _new_name(self, group: str) -> str:
        letters = string.ascii_lowercase + string.digits
        while (name := f"{group}-{''.join(self._rng.choices(letters, k=5))}") in self._instances:
            pass
        return name
