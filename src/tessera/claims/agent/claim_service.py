"""Gives the slices of this node by ResourceClaims, if the node's label says so.

The label :data:`~tessera.api.names.DEVICE_API_LABEL` chooses one way for a node: by claims, or by the device plugin.
A pod of either way never gets a slice of the other, since slices are promised to pods. A change of the label takes
effect without a restart: what is no longer wanted is offered no longer, and stays served until nobody uses it.

- By claims: ResourceSlices are published, kubelet finds the driver, and the device plugins list no device that can be
  allocated. They are served until the last container that got slices from them has gone, since kubelet calls them
  whenever such a container starts again.
- By claims, where another program publishes under the name of NVIDIA's driver: by neither, and the Node has an event
  that says so. Two drivers would give one card twice.
- By the device plugin: our ResourceSlices are removed. Kubelet loses the driver once no claim is prepared, and no pod
  is left that had its promise when the label changed.
"""

import asyncio
from collections.abc import Collection, Iterator

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.wake_ups import Fact
from tessera.agent.inventory.sliceable_gpus import SlicePosition
from tessera.agent.mps.daemons import MpsDaemons
from tessera.agent.slices.further_ways import NodeSlices, SliceGiver
from tessera.api.names import PodUid, gives_by_claims
from tessera.claims.agent.claim_driver import ClaimDriver
from tessera.claims.agent.claim_publisher import ClaimPublisher, PublishedCards, node_card, nvlink_groups
from tessera.claims.agent.prepared_claims import ClaimDaemons, PreparedClaims
from tessera.controller.objects.pod_constraints import read_device_claims
from tessera.dra.node_devices import PublishOptions


class ClaimService(SliceGiver):
    """The claims of this node.

    Args:
        runtime: options, API server, kubelet and change notifier of this agent.
        slices: the slices to give.
        daemons: the node's MPS daemons.
    """

    def __init__(self, runtime: AgentRuntime, slices: NodeSlices, daemons: MpsDaemons) -> None:
        options = runtime.options
        self._kubelet = runtime.kubelet
        self._node, self._pods = runtime.mirror.node, runtime.mirror.live_pods
        self._changes = runtime.changes.about(Fact.DEVICE_API | Fact.SLICES)
        self._node_slices, self._slices = slices, slices.machine.table
        self._events = runtime.object_events
        #: The pods that had a promise when the label last said to give slices by claims.
        self._served: frozenset[PodUid] = frozenset()
        self._registered = False
        self._prepared = PreparedClaims(options.claims_file)
        by_scheduler = options.claim_placement == "scheduler"
        self._driver = ClaimDriver(
            runtime,
            options.claim_driver,
            cards=slices.cards,
            daemons=ClaimDaemons(runtime, daemons, self._prepared),
            machine=slices.machine,
            journal=slices.journal,
            prepared=self._prepared,
            is_withheld=slices.is_withheld,
        )
        self._publisher = ClaimPublisher(
            runtime,
            PublishOptions(
                driver=options.claim_driver,
                placed_by_us=not by_scheduler,
                guarded=not by_scheduler,
            ),
            node=runtime.mirror,
            cards=lambda: self._published_cards() if self.is_wanted else PublishedCards((), ("", 0)),
        )

    @property
    def is_wanted(self) -> bool:
        """See :attr:`.SliceGiver.is_wanted`."""
        node = self._node()
        return node is not None and gives_by_claims(node.metadata.labels)

    @property
    def has_given(self) -> bool:
        """See :attr:`.SliceGiver.has_given`."""
        return self._driver.has_prepared

    @property
    def is_registered(self) -> bool:
        """See :attr:`.SliceGiver.is_registered`."""
        return self._registered or not self._must_serve()

    def users(self) -> Iterator[tuple[PodUid, SlicePosition]]:
        """See :meth:`.SliceGiver.users`: all pods but the first that use a claim."""
        users: dict[str, list[PodUid]] = {}
        for pod in self._pods():
            for key in read_device_claims(pod):
                users.setdefault(key, []).append(PodUid(pod.metadata.uid))
        for uid, claim in self._prepared.items():
            for user in users.get(f"{claim.namespace}/{claim.name}", ()):
                if user != self._prepared.promise(uid):
                    yield from ((user, position) for position in claim.slices().values())

    def adopt(self) -> None:
        """Tells the machine the claims that are prepared; before it decides anything."""
        self._driver.adopt()

    async def run(self) -> None:
        """Serves claims, and publishes the devices, until cancelled."""
        await self._driver.restore()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._driver.run())
            group.create_task(self._publisher.watch())
            group.create_task(self._publisher.run())
            group.create_task(self._follow_label(group))

    def held(self) -> Collection[str]:
        """See :meth:`.SliceGiver.held`."""
        return [f"{claim.namespace}/{claim.name}" for _, claim in self._prepared.items()]

    async def take_back(self) -> None:
        """See :meth:`.SliceGiver.take_back`."""
        self._driver.leaves = True
        await self._kubelet.serve_claims(self._driver)

    def _published_cards(self) -> PublishedCards | None:
        """The cards whose slices claims can get; ``None`` while unknown."""
        inventory, is_withheld = self._node_slices.reader.inventory, self._node_slices.is_withheld
        foreign = [each for each, pod in self._slices.observed_instances() if pod is None]
        cordoned = {each.gpu for each in self._events.cordons() or ()}
        links = nvlink_groups(inventory.gpus)
        cards = [
            node_card(
                card,
                foreign,
                read=inventory.gpu(card.uuid),
                nvlink_group=links.get(card.uuid, ""),
                withheld=is_withheld(card.uuid),
                cordoned=card.uuid in cordoned,
                evicts=self._node_slices.faults_evict(),
            )
            for card in self._node_slices.cards().gpus
        ]
        versions = inventory.driver_version, inventory.cuda_version
        return PublishedCards(tuple(cards), versions) if self._node_slices.is_ready() else None

    async def _follow_label(self, group: asyncio.TaskGroup) -> None:
        serving: asyncio.Task[None] | None = None
        await self._publisher.wait_synced()
        while True:
            count = self._changes.count
            if self._must_serve() and serving is None:
                serving = group.create_task(self._kubelet.serve_claims(self._driver, self._note_registered))
            elif serving is not None and not self._must_serve():
                serving.cancel()
                serving = None
            await self._changes.wait(count)

    def _note_registered(self) -> None:
        self._registered = True
        self._changes.notify(Fact.SLICES)

    def _must_serve(self) -> bool:
        promised, wanted = frozenset(self._slices.promises), self.is_wanted and not self._publisher.rival
        self._served = promised if wanted else self._served & promised
        return wanted or self.has_given or bool(self._served)
