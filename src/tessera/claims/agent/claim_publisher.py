"""Publishes the devices of a node for ResourceClaims: keeps its ResourceSlices as they should be.

Rules:

1.  Objects are written only when they differ from what the watch shows; a quiet node writes nothing. Who removes or
    changes one (kubelet removes all of them 30 s after the driver's last instance has gone) gets it written again.
2.  A server whose gate is off drops fields without an error. Its answer to a write shows which ones; from then on the
    node publishes without them (:func:`tessera.dra.driver_objects.dropped_fields`). The watch does not show it: there,
    somebody else may have removed them.
3.  The objects belong to the Node, so they go with it.
4.  Names of objects are known to all, and the API server lets every node use them. If another node has taken one, ours
    get new names.
5.  No failure here may end the agent: a failed write is tried again, with growing pauses.
6.  Who changes the objects again and again gets an answer after growing pauses, so two writers never fight at full
    speed. The first answer comes at once.
7.  Another program may publish under the name of NVIDIA's driver. Then nothing of ours is published on the node, and
    the Node has an event that says so: two drivers would give one card twice.
8.  After a write the watch has to show it before the objects are compared again. Else the rest of a write would look
    like a loss, and be written anew with the next generation.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tessera.agent.base.node_objects import NodeSource
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.wake_ups import Fact
from tessera.agent.inventory.gpu_inventory import GpuState
from tessera.agent.inventory.sliceable_gpus import SliceableGpu
from tessera.agent.slices.events import ObservedInstance
from tessera.api.names import DEVICE_API_LABEL
from tessera.dra.devices import Pool
from tessera.dra.driver_objects import Json, SlicePlan, dropped_fields, find_rival, find_salt, is_ours, plan_slices
from tessera.dra.node_devices import DRIVER, NodeCard, PublishOptions, node_pools
from tessera.dra.resource_slices import RESOURCE_SLICES, ResourceSlice
from tessera.kube.errors import AlreadyExists, ApiError, NotFound
from tessera.kube.informer import Informer
from tessera.kube.resources import Node
from tessera.kube.retries import Backoff
from tessera.mig.geometry import Placement
from tessera.nvml.interface import CardAttributes, family

_log = logging.getLogger(__name__)

#: Seconds in which changes are collected before the objects are compared.
SETTLE = 0.05
#: Seconds that the watch has to show a write; objects that somebody else has changed by then are compared anyway.
SHOWN_TIMEOUT = 10.0
#: Seconds without a write after which a change of the objects gets its answer at once again.
PEACE = 600.0
_NOT_KEPT = (
    "this API server keeps no consumable capacity of devices, so no claim gets a share of this node's cards: turn on"
    " its feature gate DRAConsumableCapacity, on by default since Kubernetes 1.36, or give the shares by limits,"
    f" without the label {DEVICE_API_LABEL}"
)
#: What the devices depend on.
_FACTS = Fact.DEVICE_API | Fact.OWNERS | Fact.CARDS | Fact.HEALTH | Fact.SLICES


class PublishedCards(msgspec.Struct, frozen=True):
    """The cards that are published, and the versions of driver and CUDA."""

    cards: tuple[NodeCard, ...]
    versions: tuple[str, int]


def node_card(
    card: SliceableGpu,
    foreign: Iterable[ObservedInstance],
    *,
    read: GpuState | None = None,
    nvlink_group: str = "",
    withheld: bool,
    cordoned: bool = False,
    evicts: bool = False,
) -> NodeCard:
    """A card that is cut on demand, or given whole, as it is published.

    Args:
        card: the card.
        foreign: instances on the node that nobody's claim or pod explains.
        read: the card as it was read last.
        nvlink_group: see :func:`.nvlink_groups`.
        withheld: nothing of the card may be given out now.
        cordoned: a person has taken it out of service, which withholds it too.
        evicts: a fault ends the pods of the card.
    """
    info, attributes = card.info, (read and read.attributes) or CardAttributes()
    rows = {row.spelling: row.name for row in card.geometry.profiles}
    return NodeCard(
        uuid=info.uuid,
        minor=info.minor,
        index=info.index,
        product=info.name,
        compute_capability=info.compute_capability,
        memory_mib=info.memory_mib,
        architecture=family(info.compute_capability).replace("undefined", ""),
        brand=attributes.brand,
        addressing_mode=attributes.addressing_mode,
        nvlink_group=nvlink_group,
        pci_bus_id=info.pci_bus_id[-12:].lower(),
        pcie_root=info.pcie_root,
        numa_node=info.numa_node,
        whole=card.is_whole and card.shares is None,
        shares=None if card.shares is None else card.shares.count,
        sharing="" if card.shares is None else card.shares.kind.value,
        geometry=None if card.is_whole else card.geometry,
        foreign=tuple(
            Placement(rows.get(each.position.profile, each.position.profile), each.position.start, each.size)
            for each in foreign
            if each.position.gpu == info.uuid
        ),
        fault="withheld" if withheld and not cordoned else "",
        cordoned=cordoned,
        evicts=evicts,
    )


class ClaimPublisher:
    """Keeps the ResourceSlices of this node.

    Args:
        runtime: options, API server, clock and change notifier of this agent.
        options: the way to publish, as the administrator wants it.
        node: the Node as last seen.
        cards: the cards to publish; none of them removes all objects. ``None`` while unknown, and then the objects
            stay as they are.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        options: PublishOptions,
        *,
        node: NodeSource,
        cards: Callable[[], PublishedCards | None],
    ) -> None:
        self._client = runtime.client
        self._clock = runtime.clock
        self._changes = runtime.changes.about(_FACTS)
        self._rng = runtime.rng
        self._backoff = Backoff(runtime.rng)
        #: Pauses after writes of what was written before.
        self._repeats = Backoff(runtime.rng)
        #: The pools that were written last, and when, monotonic seconds.
        self._written: tuple[Sequence[Pool], float] | None = None
        self._options = options
        self._node = node
        self._cards = cards
        #: The rival of which the Node has an event.
        self._told = ""
        self._events = runtime.object_events
        self._stored: Informer[ResourceSlice] = Informer(
            runtime.client,
            RESOURCE_SLICES,
            clock=runtime.clock,
            rng=runtime.rng,
            field_selector=f"spec.nodeName={node.node_name},spec.driver={options.driver}",
        )
        #: End of the names of all objects; ``None`` until the stored ones were looked at.
        self._salt: str | None = None
        #: The cards and objects that were compared last, and found equal.
        self._settled: tuple[PublishedCards, Sequence[ResourceSlice]] | None = None

    @property
    def rival(self) -> str:
        """Why another program's objects keep this one from publishing (rule 7); empty if none do.

        Nobody else has our own name, so there all objects are ours.
        """
        driver = self._options.driver
        return "" if driver == DRIVER else find_rival(driver, self._node.node_name, self._stored.cache.values())

    async def wait_synced(self) -> None:
        """Waits until the objects have been listed."""
        await self._stored.wait_synced()

    async def watch(self) -> None:
        """Follows the objects until cancelled."""
        self._stored.add_handler(lambda _event: self._changes.notify(Fact.SLICES))
        await self._stored.run()

    async def run(self) -> None:
        """Publishes until cancelled; :meth:`watch` runs beside it."""
        await self.wait_synced()
        while True:
            count = self._changes.count
            try:
                await self._publish()
            except (ApiError, ConnectionError, TimeoutError, ValueError) as error:
                pause = self._backoff.next()
                _log.warning("ResourceSlices of the node: next attempt in %.1f s: %s", pause, error)
                await self._clock.sleep(pause)
            else:
                self._backoff.reset()
                await self._changes.wait(count)
                await self._clock.sleep(SETTLE)

    async def _publish(self) -> None:
        node, cards, stored = self._node.node(), self._cards(), list(self._stored.cache.values())
        if node is None or cards is None or self._settled == (cards, stored):
            return
        self._tell_of_rival()
        may_publish = cards.cards and not self.rival
        pools = node_pools(node.metadata.name, cards.cards, cards.versions, self._options) if may_publish else ()
        ours = [each for each in stored if self._options.driver == DRIVER or is_ours(each)]
        if self._salt is None:
            self._salt = find_salt(ours)
        plan = plan_slices(pools, ours, self._salt)
        if plan == SlicePlan():
            self._settled = cards, stored
            return
        self._settled = None
        dropped = dropped_fields(pools, await self._write(plan, node))
        if dropped:
            names = " and ".join(sorted(dropped))
            _log.warning("this API server keeps no %s of devices: published without", names)
            self._options = msgspec.structs.replace(self._options, **dict.fromkeys(dropped, False))
            if "shares" in dropped:
                self._events.record_on_node("SharesNotKept", _NOT_KEPT, "Warning")
        await self._changes.wait_until(lambda: self._shows(plan), SHOWN_TIMEOUT)
        await self._pause_after_repeat(pools)

    def _tell_of_rival(self) -> None:
        if self.rival != self._told:
            self._told = self.rival
            if self._told:
                _log.warning("%s", self._told)
                self._events.record_on_node("ClaimDriverConflict", self._told, "Warning")

    async def _write(self, plan: SlicePlan, node: Node) -> list[ResourceSlice]:
        """Writes a plan; returns the objects as the server has stored them."""
        answers = [await self._create(_owned(item, node), node.metadata.name) for item in plan.create]
        for item in plan.replace:
            patch = _owned(_replacing(item), node)
            answers.append(await self._client.merge_patch(RESOURCE_SLICES, item["metadata"]["name"], patch))
        for name in plan.delete:
            await self._delete(name)
        return answers

    async def _create(self, item: Json, node: str) -> ResourceSlice:
        try:
            return await self._client.create(RESOURCE_SLICES, item)
        except AlreadyExists:
            found = await self._client.get(RESOURCE_SLICES, item["metadata"]["name"])
            if found.spec.node_name != node:
                self._salt = f"{self._rng.getrandbits(32):08x}"
                _log.warning("node %s has the name of our ResourceSlice %s", found.spec.node_name, found.metadata.name)
            raise

    def _shows(self, plan: SlicePlan) -> bool:
        """True if the watch shows what was written, or what came after it."""
        cache = self._stored.cache
        written = [each["metadata"] for each in (*plan.create, *plan.replace)]
        shown = ((cache.get(each["name"]), each.get("resourceVersion")) for each in written)
        return not any(name in cache for name in plan.delete) and all(
            found is not None and found.metadata.resource_version != old for found, old in shown
        )

    async def _pause_after_repeat(self, pools: Sequence[Pool]) -> None:
        now = self._clock.monotonic()
        is_repeat = self._written is not None and self._written[0] == pools and now - self._written[1] < PEACE
        self._written = pools, now
        if is_repeat:
            await self._clock.sleep(self._repeats.next())
        else:
            self._repeats.reset()

    async def _delete(self, name: str) -> None:
        try:
            await self._client.delete(RESOURCE_SLICES, name)
        except NotFound:
            return


def _replacing(item: Json) -> Json:
    """The patch that makes a stored object this one: the number of an object of devices may become one of counters."""
    return {**item, "spec": {"devices": None, "sharedCounters": None, **item["spec"]}}


def _owned(item: Json, node: Node) -> Json:
    """An object that belongs to the node (rule 3)."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid}
    return {**item, "metadata": {**item["metadata"], "ownerReferences": [{**owner, "controller": True}]}}


def nvlink_groups(cards: Sequence[GpuState]) -> dict[str, str]:
    """Returns for each card that NVLinks join to others a text that those cards share; by the card's UUID.

    Of a fabric over several machines it is cluster and clique, as the label ``nvidia.com/gpu.clique``; else the UUID of
    the group's first card. Cards are joined by a link to each other, or by links to one switch.
    """
    group = {card.uuid: card.uuid for card in cards}
    ends: dict[str, str] = {card.info.pci_bus_id: card.uuid for card in cards}
    for card in cards:
        for link in card.links:
            other = ends.setdefault(link.remote_pci, card.uuid) if link.remote_pci else card.uuid
            old, new = group[card.uuid], group[other]
            group = {uuid: new if root == old else root for uuid, root in group.items()}
    found: dict[str, str] = {}
    for card in cards:
        fabric = None if card.attributes is None else card.attributes.fabric
        members = [each.uuid for each in cards if group[each.uuid] == group[card.uuid]]
        if fabric is not None and not card.info.mig_enabled:
            found[card.uuid] = ".".join(fabric)
        elif len(members) > 1:
            found[card.uuid] = members[0]
    return found
