"""The partitions of cards, whole and shared cards that nodes publish in ResourceSlices, by the place of their slice.

Planning places profiles. So two views are kept: the device at a place, for allocations; and the *sorts* of devices in
the cluster, for the question which profile a claim asks for. Devices of one sort differ by card and place alone, so a
cluster of a thousand alike nodes has a dozen.

The shares of a card are one device, which stands at its first place.

A node with a pool that is being written counts as it was before.

A node writes its own devices, so it may invent some, and the claims of the cluster must not all follow. A device that
has more memory than its profile's name says is given to nobody, nor is a card with no shares or more than a node's
object lists. A profile that the card's model does not have, or of a model that is not known, is asked for only if no
other serves the claim. A node with more sorts than any has publishes nothing, and one that changes them again and again
counts as it was before.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec

from tessera.api.instaslice import Slice
from tessera.api.names import CLAIMED_CARD, NodeName
from tessera.dra.devices import Device, DeviceId, HeldDevice, qualify
from tessera.dra.limits import NODE_SORTS, SORT_CHANGE_SECONDS, SORT_CHANGES
from tessera.dra.node_devices import is_divided, pool_names, share_id
from tessera.dra.resource_slices import Attribute, ResourceSlice, SliceDevice, SliceRefused, read_slice, read_value
from tessera.dra.selectors import is_other
from tessera.mig.models import model_by_product
from tessera.mig.names import CLAIMED_SHARE, is_device_profile, parse_profile_name, resource_spelling

#: Attributes in which alike cards, and places of one profile, differ.
OWN_ATTRIBUTES = frozenset({"uuid", "parentUUID", "index", "minor", "start", "nvlinkGroup"}) | {
    f"resource.kubernetes.io/{name}" for name in ("pciBusID", "pcieRoot", "numaNode")
}

#: Attributes whose value differs on each card of a node.
UNIQUE = frozenset({"uuid", "parentUUID", "index", "minor", "pciBusID"})
#: Attributes with the same value on all cards of a node.
NODE_WIDE = frozenset({"driverVersion", "cudaDriverVersion"})
#: Attributes of a slice's profile or place, not of its card.
OF_PROFILE = frozenset({"type", "profile", "size", "start"})

#: The value of a card that says how it is given: the profile if whole or in shares, else an empty text.
ROLE = "role"

#: Card, profile in the resource's spelling, and first memory slice.
Place = tuple[str, str, int]
#: What alike devices have in common: the profile in the resource's spelling, and their values as JSON.
Sort = tuple[str, str]
#: A device and the object that has it.
_Part = tuple[ResourceSlice, SliceDevice]


class NodeDevices(msgspec.Struct, frozen=True):
    """The devices of one node.

    Attributes:
        parts: by place.
        sorts: one of each sort.
        places: by sort, those of its devices.
    """

    parts: Mapping[Place, _Part]
    sorts: Mapping[Sort, _Part]
    places: Mapping[Sort, Sequence[Place]]


_NOTHING = NodeDevices({}, {}, {})


class PublishedDevices:
    """The partitions of all nodes.

    Args:
        driver: the driver whose devices count.
    """

    #: A record of the state does not have them, and a state that was read makes them anew.
    TRANSIENT: ClassVar[tuple[str, ...]] = ("_nodes", "_counts", "_sorts", "_whole", "_values")
    _nodes: dict[NodeName, NodeDevices] | None = None
    _counts: Counter[Sort] | None = None
    #: A device of each sort that was asked for, without its own values; None if those of the sort cannot be read.
    _sorts: dict[Sort, Device | None] | None = None
    #: By node that was asked for, its whole cards by UUID.
    _whole: dict[NodeName, Mapping[str, Device]] | None = None
    #: By node that was asked for, what :meth:`card_values` says.
    _values: dict[NodeName, dict[str, Mapping[str, str]]] | None = None

    def __init__(self, driver: str) -> None:
        self.driver = driver
        #: By node and name the ResourceSlices of its pool; no inner dict is empty.
        self._slices: dict[NodeName, dict[str, ResourceSlice]] = {}
        #: By node its changes of sorts that count, and when the last was, monotonic seconds.
        self._changes: dict[NodeName, tuple[float, float]] = {}
        #: The changes of nodes that were observed, and by node the number of its last one.
        self.version = 0
        self._versions: dict[NodeName, int] = {}
        #: Nodes that are to be read again, since they have changed too often.
        self.late: set[NodeName] = set()

    def put(self, item: ResourceSlice, now: float, *, deleted: bool) -> NodeName | None:
        """Takes in a ResourceSlice at a time, monotonic seconds; returns the node if it is to be read again."""
        spec, node = item.spec, NodeName(item.spec.node_name)
        if spec.driver != self.driver or not node or spec.pool.name not in pool_names(node):
            return None
        parts = self._slices.setdefault(node, {})
        if deleted:
            parts.pop(item.metadata.name, None)
        else:
            parts[item.metadata.name] = item
        if not parts:
            del self._slices[node]
        return self.read_again(node, now)

    def read_again(self, node: NodeName, now: float) -> NodeName | None:
        """Reads the objects of a node; returns it if its partitions have changed."""
        self.late.discard(node)
        nodes, counts = self._read()
        found = _read_node(self._slices.get(node, {}).values(), self.driver)
        before = nodes.get(node, _NOTHING)
        if found is None or found == before or not self._may_change(node, before.sorts, found.sorts, now):
            return None
        counts.subtract(before.sorts.keys())
        counts.update(found.sorts.keys())
        nodes[node] = found
        self.version += 1
        self._versions[node] = self.version
        if self._whole is not None:
            self._whole.pop(node, None)
        if self._values is not None:
            self._values.pop(node, None)
        if not found.parts:
            del nodes[node], self._versions[node]
        return node

    def changed_since(self, version: int) -> Sequence[NodeName]:
        """Returns the nodes that have devices, and others than after so many changes."""
        return [node for node, each in self._versions.items() if each > version] if version < self.version else ()

    def _may_change(self, node: NodeName, before: Iterable[Sort], found: Iterable[Sort], now: float) -> bool:
        """True unless a node has changed its sorts too often: each time, all claims of the cluster are read again."""
        if set(before) == set(found):
            return True
        spent, since = self._changes.get(node, (0.0, now))
        spent = max(0.0, spent - (now - since) / SORT_CHANGE_SECONDS)
        if spent >= SORT_CHANGES:
            self.late.add(node)
            return False
        self._changes[node] = (spent + 1, now)
        return True

    def _read(self) -> tuple[dict[NodeName, NodeDevices], Counter[Sort]]:
        if self._nodes is None or self._counts is None:
            read = {node: _read_node(parts.values(), self.driver) for node, parts in self._slices.items()}
            self._nodes = {node: found for node, found in read.items() if found}
            self._counts = Counter(sort for found in self._nodes.values() for sort in found.sorts)
        return self._nodes, self._counts

    @property
    def nodes(self) -> Mapping[NodeName, NodeDevices]:
        """The nodes that publish partitions."""
        return self._read()[0]

    @property
    def sorts(self) -> Mapping[Sort, Device | None]:
        """A device of each sort, without the values that are its own; None for devices that cannot be read."""
        nodes, counts = self._read()
        if self._sorts is None:
            self._sorts = {}
        for gone in [sort for sort in self._sorts if counts[sort] < 1]:
            del self._sorts[gone]
        if len(self._sorts) < len(+counts):
            for found in nodes.values():
                for sort, (part, device) in found.sorts.items():
                    if sort not in self._sorts:
                        common = msgspec.structs.replace(device, attributes=_common(device, self.driver))
                        self._sorts[sort] = _read_sort(sort, part, common)
        return self._sorts

    def undivided_cards(self, node: NodeName) -> Mapping[str, Device]:
        """Returns the whole and the shared cards of a node, by UUID, with all of their values."""
        if self._whole is None:
            self._whole = {}
        if node not in self._whole:
            parts = self.nodes.get(node, _NOTHING).parts
            read = {place[0]: _read_device(*part) for place, part in parts.items() if is_device_profile(place[1])}
            self._whole[node] = {uuid: card for uuid, card in read.items() if card is not None}
        return self._whole[node]

    def has_other(self, node: NodeName, place: Place, wanted: Iterable[tuple[str, str | int]]) -> bool:
        """True if the device at a place has another value of an attribute than the one that is wanted."""
        _, device = self.nodes[node].parts[place]
        for name, value in wanted:
            found = device.attributes.get(name.removeprefix(f"{self.driver}/")) or device.attributes.get(name)
            if found is not None and is_other(found.integer if found.string is None else found.string, value):
                return True
        return False

    def partition(self, node: NodeName, place: Place, common: Device) -> Device | None:
        """Returns the device at a place with all of its values; None if it cannot be read.

        Args:
            node: the node.
            place: one of its places.
            common: the device of its sort.
        """
        part, device = self.nodes[node].parts[place]
        try:
            own = {
                qualify(key, self.driver): read_value(value, key)
                for key, value in device.attributes.items()
                if key.removeprefix(f"{self.driver}/") in OWN_ATTRIBUTES
            }
        except SliceRefused:
            return None
        identity = DeviceId(self.driver, part.spec.pool.name, device.name)
        return msgspec.structs.replace(common, id=identity, attributes={**common.attributes, **own})

    def card_values(self, node: NodeName) -> Mapping[str, Mapping[str, str]]:
        """Returns by UUID of a node's cards the values that constraints compare and cards may have in common.

        :data:`ROLE` is one: the profile of a card that is given whole or in shares, or an empty text.
        """
        if self._values is None:
            self._values = {}
        if node not in self._values:
            found = self._values[node] = {}
            for (uuid, profile, _), (_, device) in self.nodes.get(node, _NOTHING).parts.items():
                if uuid not in found:
                    named = {qualify(key, self.driver): value for key, value in device.attributes.items()}
                    texts = {key: str(msgspec.to_builtins(each)) for key, each in named.items() if _is_of_card(key)}
                    found[uuid] = {**texts, ROLE: profile if is_device_profile(profile) else ""}
        return self._values[node]

    def at(self, node: NodeName, item: Slice) -> Device | None:
        """Returns the device of a slice on a node; None if the node publishes none."""
        part = self._part(node, item)
        return None if part is None else _read_device(*part)

    def id_at(self, node: NodeName, item: Slice) -> HeldDevice | None:
        """Returns the same device's identity, and the id of a share."""
        part = self._part(node, item)
        if part is None:
            return None
        share = share_id(item.gpu_uuid, item.start) if item.profile == CLAIMED_SHARE else ""
        return HeldDevice(DeviceId(self.driver, part[0].spec.pool.name, part[1].name), share)

    def place_of(self, node: NodeName, name: str) -> Place | None:
        """Returns the place of a device of a node's pool; None if the node publishes none of that name."""
        parts = self.nodes.get(node, _NOTHING).parts.items()
        return next((place for place, (_, device) in parts if device.name == name), None)

    def ids_on(self, node: NodeName) -> frozenset[DeviceId]:
        """Returns the identities of all devices of a node."""
        parts = self.nodes.get(node, _NOTHING).parts.values()
        return frozenset(DeviceId(self.driver, part.spec.pool.name, device.name) for part, device in parts)

    def _part(self, node: NodeName, item: Slice) -> _Part | None:
        start = 0 if item.profile == CLAIMED_SHARE else item.start
        place = (item.gpu_uuid, resource_spelling(item.profile), start)
        return self.nodes.get(node, _NOTHING).parts.get(place)


def _read_node(parts: Iterable[ResourceSlice], driver: str) -> NodeDevices | None:
    """Reads the newest pools of a node; None if one is being written."""
    pools: dict[str, list[ResourceSlice]] = {}
    for each in parts:
        pools.setdefault(each.spec.pool.name, []).append(each)
    current: list[ResourceSlice] = []
    for objects in pools.values():
        newest = max(each.spec.pool.generation for each in objects)
        found_now = [each for each in objects if each.spec.pool.generation == newest]
        if len(found_now) != found_now[0].spec.pool.resource_slice_count:
            return None
        current += found_now
    found: dict[Place, _Part] = {}
    sorts: dict[Sort, _Part] = {}
    places: dict[Sort, list[Place]] = {}
    known: dict[tuple[str, str], tuple[object, Sort]] = {}
    for part in current:
        for device in part.spec.devices:
            place = _place_of(device, driver)
            if place is not None and place not in found:
                found[place] = (part, device)
                values = (_common(device, driver), device.capacity)
                if place[:2] not in known or known[place[:2]][0] != values:
                    known[place[:2]] = values, _sort_of(place[1], device, driver)
                sort = known[place[:2]][1]
                sorts.setdefault(sort, (part, device))
                places.setdefault(sort, []).append(place)
    return NodeDevices(found, sorts, places) if len(sorts) <= NODE_SORTS else _NOTHING


def _is_of_card(attribute: str) -> bool:
    return attribute.rpartition("/")[2] not in UNIQUE | NODE_WIDE | OF_PROFILE


def is_known(sort: Sort, device: Device) -> bool:
    """True if the model of a sort's cards is known, and has its profile."""
    model = model_by_product(str(device.attributes.get(f"{device.id.driver}/productName", "")))
    if model is None or is_device_profile(sort[0]):
        return model is not None
    return any(row.spelling == sort[0] for row in model.geometry.profiles)


def _read_sort(sort: Sort, part: ResourceSlice, common: SliceDevice) -> Device | None:
    """Returns a device of a sort; None of one that cannot be read, or has more memory than its profile."""
    device = _read_device(part, common)
    if device is None or is_device_profile(sort[0]):
        return device
    memory = device.capacity.get(f"{device.id.driver}/memory")
    most = parse_profile_name(sort[0]).memory_gb * 2**30
    return device if memory is None or memory.value <= most else None


def _place_of(device: SliceDevice, driver: str) -> Place | None:
    def value(name: str) -> Attribute:
        return device.attributes.get(name) or device.attributes.get(f"{driver}/{name}") or Attribute()

    if any(f"{driver}/{name}" in device.attributes for name in device.attributes):
        return None  # readers would differ on which of two values an attribute has
    if value("type").string == "gpu":
        profile_of_all = CLAIMED_SHARE if device.allow_multiple_allocations else CLAIMED_CARD
        return (uuid, profile_of_all, 0) if (uuid := value("uuid").string) else None
    gpu, profile, start = value("parentUUID").string, value("profile").string, value("start").integer
    try:
        parse_profile_name(profile or "")
    except ValueError:
        return None
    return None if not gpu or not profile or start is None else (gpu, resource_spelling(profile), start)


def _common(device: SliceDevice, driver: str) -> dict[str, Attribute]:
    return {
        key: value for key, value in device.attributes.items() if key.removeprefix(f"{driver}/") not in OWN_ATTRIBUTES
    }


def _sort_of(profile: str, device: SliceDevice, driver: str) -> Sort:
    values = [sorted(_common(device, driver).items(), key=_name), sorted(device.capacity.items(), key=_name)]
    return profile, msgspec.json.encode(values).decode()


def _name(item: tuple[str, object]) -> str:
    return item[0]


def _read_device(part: ResourceSlice, device: SliceDevice) -> Device | None:
    """Returns a device without counters and taints, since the engine knows what is free and well; None of a bad one."""
    bare = msgspec.structs.replace(device, consumes_counters=(), taints=())
    spec = msgspec.structs.replace(part.spec, devices=(bare,), shared_counters=())
    try:
        (found,), _ = read_slice(msgspec.structs.replace(part, spec=spec))
    except SliceRefused:
        return None
    return None if found.shared and not is_divided(found) else found
