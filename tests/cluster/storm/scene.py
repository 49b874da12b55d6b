"""The cluster of a storm, and the changes of people that must be put right at its end."""

import random
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster.driverlab import Drivers
from tests.cluster.storm.always import Always
from tests.cluster.storm.story import Story
from tests.cluster.storm.world import Machines, Registries, images

from tessera.api.nodes.node_marks import UPGRADE_STATE_LABEL
from tessera.driver.node_facts import parse_upgrade_state
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.resources import NODES
from tessera.kube.resources.meta import Resource


class Scene:
    """A cluster in a storm.

    Args:
        lab: the cluster.
        registries: what its registries hold, and what they said.
        machines: what its nodes are.
        rng: the storm's.
        story: where it is told.

    Attributes:
        images: all driver images that there may be.
        always: looks at every write.
        refused: what registries refuse now.
        workloads: names of ReplicaSets with a pod that uses a card.
        tenants: names of pods of people in the namespace ``default``.
        spoiled: what people left on nodes where a marker would stand.
        governed: the policy in force is one that can be followed.
    """

    def __init__(
        self, lab: Drivers, registries: Registries, machines: Machines, rng: random.Random, story: Story
    ) -> None:
        self.lab, self.registries, self.machines, self.rng, self.story = lab, registries, machines, rng, story
        self.client = lab.client
        self.images = images()
        self.always = Always(lab, registries, story)
        self.refused: list[str] = []
        self.workloads: list[str] = []
        self.tenants: list[str] = []
        self.spoiled: list[Path] = []
        self.governed = True
        self._names = 0

    @property
    def nodes(self) -> list[str]:
        """Names of the machines that there are."""
        return list(self.lab.cluster.nodes)

    def node(self) -> str:
        """Any of them; every other time one that is under way, if there is one."""
        names = self.nodes
        busy = [name for name in names if self._under_way(name)]
        return self.rng.choice(busy if busy and self.rng.random() < 0.5 else names)

    def _under_way(self, name: str) -> bool:
        seen = self.lab.nodes.cache.get(name)
        return seen is not None and parse_upgrade_state(seen.metadata.labels.get(UPGRADE_STATE_LABEL, "")).active

    def name(self, prefix: str) -> str:
        """A name that nobody has had."""
        self._names += 1
        return f"{prefix}{self._names}"

    async def ask(self, what: str, request: Awaitable[Any]) -> bool:
        """Something that a person asks of the API server, who may refuse; returns whether it was done."""
        self.story.note(what)
        try:
            await request
        except ApiError as error:
            self.story.note(f"  refused: {str(error)[:200]}")
            return False
        return True

    async def remove(self, resource: Resource[Any], name: str, namespace: str | None = None, **options: Any) -> None:
        """A person deletes an object, if there is one."""
        with suppress(NotFound):
            await self.client.delete(resource, name, namespace, **options)
            self.story.note(f"{resource.kind} {name} is deleted")

    async def label(self, node: str, **labels: str | None) -> None:
        """A person labels a node."""
        await self.ask(f"{node} is labelled {labels}", self._patch(node, {"metadata": {"labels": labels}}))

    async def annotate(self, node: str, key: str, value: str | None) -> None:
        """A person annotates a node."""
        shown = "nothing" if value is None else f"{value[:80]!r} ({len(value)} characters)"
        request = self._patch(node, {"metadata": {"annotations": {key: value}}})
        await self.ask(f"{node} is annotated {key} = {shown}", request)

    async def cordon(self, node: str) -> None:
        """A person cordons a node that is not cordoned."""
        seen = self.lab.nodes.cache.get(node)
        if seen is None or seen.spec.unschedulable:
            return
        body = {"spec": {"unschedulable": True}}
        version = seen.metadata.resource_version
        request = self.client.merge_patch(NODES, node, body, resource_version=version)
        if await self.ask(f"a person cordons {node}", request):
            self.always.foreign.add(node)

    async def uncordon(self, node: str) -> None:
        """The person takes the cordon back."""
        self.always.foreign.discard(node)
        await self.ask(f"the person uncordons {node}", self._patch(node, {"spec": {"unschedulable": None}}))

    async def _patch(self, node: str, body: dict[str, Any]) -> None:
        await self.client.merge_patch(NODES, node, body)
