"""ResourceSlices of a node: devices, limits, order, generations, and what is written when something changed."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera.dra.claims import AllocatedDevice
from tessera.dra.devices import Device, Holdings, Pool
from tessera.dra.driver_objects import SlicePlan, dropped_fields, plan_slices
from tessera.dra.node_devices import (
    NVIDIA_DRIVER,
    NodeCard,
    PublishOptions,
    node_pools,
    partition_name,
    preferred_placements,
)
from tessera.dra.resource_slices import ResourceSlice, read_pools
from tessera.mig.geometry import Engines, Placement, occupancy_of
from tessera.mig.models import MODELS, model_by_short_name
from tessera_lab.apiserver.kinds.slice_rules import default_slice, validate_slice, validate_slice_update
from tessera_lab.scheduler.state.claim_cache import read_holdings

VERSIONS = ("580.159.04", 13000)
A100 = model_by_short_name("A100-40GB")


def card(index: int = 0, **more: Any) -> NodeCard:
    values: dict[str, Any] = {
        "uuid": f"GPU-{index}",
        "minor": index,
        "index": index,
        "product": A100.product_name,
        "compute_capability": A100.compute_capability,
        "memory_mib": A100.memory_mib,
        "architecture": "ampere",
        "geometry": A100.geometry,
    }
    return NodeCard(**(values | more))


def pools(cards: Sequence[NodeCard], **options: Any) -> tuple[Pool, ...]:
    return node_pools("n1", cards, VERSIONS, PublishOptions(**options))


class Server:
    """Keeps objects as Kubernetes does, and refuses what it refuses."""

    def __init__(self, *dropped: str) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self.writes = 0
        self._dropped = dropped

    @property
    def stored(self) -> list[ResourceSlice]:
        return [msgspec.convert(each, ResourceSlice) for each in self.items.values()]

    def apply(self, plan: SlicePlan) -> None:
        for each in (*plan.create, *plan.replace):
            item = msgspec.json.decode(msgspec.json.encode(each))
            default_slice(item)
            name = item["metadata"]["name"]
            assert (name in self.items) == (each in plan.replace)
            assert validate_slice(item) == []
            if name in self.items:
                assert item["metadata"]["resourceVersion"] == self.items[name]["metadata"]["resourceVersion"]
                assert validate_slice_update(item, self.items[name]) == []
            if "consumesCounters" in self._dropped:
                item["spec"].pop("sharedCounters", None)
            for device in item["spec"].get("devices", ()):
                for field in self._dropped:
                    device.pop(field, None)
                for taint in device.get("taints", ()):
                    taint.setdefault("timeAdded", f"write {self.writes}")
            self.writes += 1
            item["metadata"]["resourceVersion"] = str(self.writes)
            self.items[name] = item
        for name in plan.delete:
            del self.items[name]
            self.writes += 1

    def publish(self, *wanted: Pool) -> int:
        before = self.writes
        self.apply(plan_slices(wanted, self.stored))
        return self.writes - before


def find(wanted: Sequence[Pool], name: str) -> Device:
    return next(device for pool in wanted for device in pool.devices if device.id.device == name)


#: What NVIDIA's driver publishes (dra-driver-nvidia-gpu 0545e9e5 and 095b7a19: deviceinfo.go, partitions.go, mig.go).
_COMMON = {
    *("type", "productName", "brand", "architecture", "cudaComputeCapability", "driverVersion", "cudaDriverVersion"),
    *(f"resource.kubernetes.io/{name}" for name in ("pciBusID", "pcieRoot", "numaNode")),
}
_ENGINES = {"multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines"}
NVIDIAS: dict[str, tuple[set[str], set[str]]] = {
    "gpu-0": ({*_COMMON, "uuid", "addressingMode"}, {"memory"}),
    "gpu-0-mig-1g5gb-19-6": ({*_COMMON, "parentUUID", "profile"}, {"memory", *_ENGINES}),
}


def known_card() -> NodeCard:
    """A card of which everything is known."""
    engines = dict.fromkeys(("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines"), 1)
    rows = [
        msgspec.structs.replace(row, engines=Engines(multiprocessors=14, **engines)) for row in A100.geometry.profiles
    ]
    return card(
        pci_bus_id="0000:07:00.0",
        pcie_root="pci0000:00",
        numa_node=1,
        brand="Nvidia",
        addressing_mode="HMM",
        nvlink_group="GPU-0",
        geometry=msgspec.structs.replace(A100.geometry, profiles=tuple(rows)),
    )


@pytest.mark.parametrize("name", NVIDIAS)
def test_names_of_values_are_those_of_nvidia_and_more(name: str) -> None:
    found = find(pools([known_card()], driver=NVIDIA_DRIVER), name)
    attributes, capacities = NVIDIAS[name]
    assert attributes <= {each.removeprefix("gpu.nvidia.com/") for each in found.attributes}
    assert capacities <= {each.removeprefix("gpu.nvidia.com/") for each in found.capacity}
    assert found.attributes["gpu.nvidia.com/nvlinkGroup"] == "GPU-0"


def test_values_are_written_as_nvidia_writes_them() -> None:
    found = pools([known_card()], driver=NVIDIA_DRIVER)
    one = find(found, "gpu-0-mig-1g5gb-19-6")
    values = {name.removeprefix("gpu.nvidia.com/"): value for name, value in one.attributes.items()}
    assert {name: str(values.pop(name)) for name in list(values) if name.endswith(("Version", "Capability"))} == {
        "cudaComputeCapability": "8.0.0",
        "cudaDriverVersion": "13.0.0",
        "driverVersion": "580.159.4",
    }
    assert values == {
        "type": "mig",
        "parentUUID": "GPU-0",
        "profile": "1g.5gb",
        "productName": "NVIDIA A100-SXM4-40GB",
        "architecture": "Ampere",
        "brand": "Nvidia",
        "addressingMode": "HMM",
        "nvlinkGroup": "GPU-0",
        "index": 0,
        "minor": 0,
        "start": 6,
        "size": 1,
        "resource.kubernetes.io/pciBusID": "0000:07:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
        "resource.kubernetes.io/numaNode": 1,
    }
    assert one.capacity["gpu.nvidia.com/memory"].value == 4864 * 2**20
    assert find(found, "gpu-0").attributes["gpu.nvidia.com/uuid"] == "GPU-0"
    assert find(found, "gpu-0-mig-1g5gb-me-20-0").attributes["gpu.nvidia.com/profile"] == "1g.5gb+me"
    assert len(pools([card()])[0].devices[0].capacity) == 1  # what the driver does not say is not published


@pytest.mark.parametrize("model", [each for each in MODELS if each.table], ids=lambda each: each.short_name)
def test_counters_admit_exactly_the_legal_sets_of_instances(model: Any) -> None:
    """Two devices fit beside each other if and only if the card's geometry says so."""
    (pool,) = pools([card(product=model.product_name, geometry=model.geometry)])
    partitions = [each for each in pool.devices if each.attributes["gpu.tessera.dev/type"] == "mig"]
    rows = [(row.name, start, row.size) for row in model.geometry.profiles for start in row.starts]
    assert len(partitions) == len(rows)
    for one in partitions:
        holdings = Holdings()
        assert holdings.has_room(one, pool)
        holdings.take(one, {})
        assert not holdings.has_room(find([pool], "gpu-0"), pool)
        for other in partitions:
            if other is not one:
                assert holdings.has_room(other, pool) == _fit(model.geometry, one, other), (one.id, other.id)


def _fit(geometry: Any, *devices: Device) -> bool:
    placements = [
        Placement(
            str(each.attributes["gpu.tessera.dev/profile"]),
            int(each.attributes["gpu.tessera.dev/start"]),  # type: ignore[arg-type]  # it is an integer
            geometry.profile(each.attributes["gpu.tessera.dev/profile"]).size,
        )
        for each in devices
    ]
    try:
        occupancy_of(geometry, placements)
    except ValueError:
        return False
    slices = sum(geometry.profile(each.profile).compute_slices for each in placements)
    return bool(slices <= max(row.compute_slices for row in geometry.profiles))


def test_foreign_instances_take_from_the_counters() -> None:
    (pool,) = pools([card(foreign=(Placement("3g.20gb", 4, 4),))])
    free = {each.id.device for each in pool.devices if Holdings().has_room(each, pool)}
    assert "gpu-0" not in free
    assert partition_name(0, A100.geometry.profile("1g.5gb"), 4) not in free
    assert partition_name(0, A100.geometry.profile("4g.20gb"), 0) in free


def test_order_of_preference() -> None:
    order = [(each.profile, each.start) for each in preferred_placements(A100.geometry)]
    assert next(start for name, start in order if name == "1g.5gb") == 6
    assert [start for name, start in order if name == "3g.20gb"] == [4, 0]
    assert order[0][0] == "1g.5gb"
    assert order[-1] == ("7g.40gb", 0)


def test_sixteen_cards_keep_all_limits_of_the_server() -> None:
    server = Server()
    server.publish(*pools([card(index) for index in range(16)]))
    assert {len(each.spec.shared_counters) for each in server.stored if each.spec.shared_counters} == {8}
    assert max(len(each.spec.devices) for each in server.stored) <= 64
    (read,) = read_pools(server.stored)
    assert (read.problem, read.node) == ("", "n1")
    assert read.devices == pools([card(index) for index in range(16)])[0].devices
    assert server.publish(*pools([card(index) for index in range(16)])) == 0


def test_the_longest_names_are_valid() -> None:
    server = Server()
    node = ".".join(["n" * 62] * 4)
    server.publish(*node_pools(node, [card(shares=4), card(1)], VERSIONS, PublishOptions()))
    assert len(server.items) == 3


def test_a_fault_of_one_card_writes_one_object_and_keeps_the_generation() -> None:
    server, cards = Server(), [card(index) for index in range(8)]
    server.publish(*pools(cards))
    cards[5] = card(5, fault="XID 79: fell off!", cordoned=True, evicts=True)
    assert server.publish(*pools(cards)) == 1
    (pool,) = read_pools(server.stored)
    assert [(each.key, each.value, each.effect) for each in find([pool], "gpu-5").taints] == [
        ("tessera.dev/placed-by", "tessera", "NoSchedule"),
        ("tessera.dev/fault", "XID-79-fell-off", "NoExecute"),
        ("tessera.dev/cordoned", "", "NoSchedule"),
    ]
    assert {each.spec.pool.generation for each in server.stored} == {1}
    times = {
        each["timeAdded"]
        for item in server.items.values()
        for d in item["spec"].get("devices", ())
        for each in d["taints"]
    }
    assert len(times) > 1  # a taint that was there keeps its time, since evictions count from it


def test_a_change_of_several_objects_is_a_new_generation() -> None:
    server, cards = Server(), [card(index) for index in range(8)]
    server.publish(*pools(cards))
    before = len(server.items)
    assert server.publish(*node_pools("n1", cards, ("590.1.2", 13000), PublishOptions())) == before
    assert {each.spec.pool.generation for each in server.stored} == {2}


def test_a_card_less_deletes_objects_and_its_return_makes_them_again() -> None:
    server, cards = Server(), [card(index) for index in range(5)]
    server.publish(*pools(cards))
    server.publish(*pools(cards[:2]))
    (pool,) = read_pools(server.stored)
    assert pool.problem == ""
    assert {each.attributes["gpu.tessera.dev/index"] for each in pool.devices} == {0, 1}
    server.publish(*pools(cards))
    assert read_pools(server.stored)[0].devices == pools(cards)[0].devices


def test_objects_that_were_wiped_are_made_again_at_once() -> None:
    server, cards = Server(), [card(index) for index in range(3)]
    server.publish(*pools(cards))
    del server.items[next(iter(server.items))]
    server.publish(*pools(cards))
    assert read_pools(server.stored)[0].problem == ""
    server.items.clear()
    server.publish(*pools(cards))
    assert read_pools(server.stored)[0].devices == pools(cards)[0].devices


def test_shared_cards_have_a_pool_of_their_own() -> None:
    found = pools([card(0), card(1, shares=4, sharing="mps"), card(2, shares=0, sharing="time-slicing")])
    assert [each.name for each in found] == ["n1", "n1/shares"]
    assert {each.id.device for each in found[0].devices if "mig" not in each.id.device} == {"gpu-0"}
    one, other = found[1].devices
    assert (one.id.device, one.shared, one.attributes["gpu.tessera.dev/sharing"]) == ("gpu-1-shares", True, "mps")
    assert one.capacity["gpu.tessera.dev/shares"].value == 4
    assert "gpu.tessera.dev/shares" not in other.capacity
    server = Server()
    server.publish(*found)
    assert tuple(read_pools(server.stored)) == found
    server.publish(*pools([card(0)]))
    assert {each.spec.pool.name for each in server.stored} == {"n1"}


def test_a_server_that_drops_fields_is_seen_by_reading_back() -> None:
    server = Server("taints", "consumesCounters", "allowMultipleAllocations")
    wanted = pools([card(0)])
    server.apply(plan_slices(wanted, ()))
    assert dropped_fields(wanted, server.stored) == {"taints", "counters"}
    bare = pools([card(0)], taints=False, counters=False, shares=False, guarded=True)
    server.publish(*bare)
    assert tuple(read_pools(server.stored)) == pools([card(0)], taints=False)  # the counters are made again
    assert server.publish(*bare) == 0
    assert dropped_fields(bare, server.stored) == frozenset()


def test_without_counters_foreign_slots_are_not_published() -> None:
    server = Server("consumesCounters")
    server.publish(*pools([card(0, foreign=(Placement("3g.20gb", 4, 4),)), card(1)], counters=False, guarded=True))
    (pool,) = read_pools(server.stored)
    of_card = [each for each in pool.devices if each.attributes["gpu.tessera.dev/index"] == 0]
    assert "gpu-0" not in {each.id.device for each in of_card}
    assert {each.attributes["gpu.tessera.dev/start"] for each in of_card} == {0, 1, 2, 3}
    assert find([pool], "gpu-1").counters


@pytest.mark.parametrize("options", [{}, {"guarded": True, "placed_by_us": False}])
def test_without_counters_and_a_guard_only_whole_cards_are_published(options: Any) -> None:
    found = pools([card(0)], counters=False, **options)
    assert [each.id.device for each in found[0].devices] == ["gpu-0"]


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({"start": {"int": 10**18}, "size": {"int": 1}}, "start 1000000000000000000 and size 1 are no place"),
        ({"start": {"int": 0}, "size": {"int": 10**12}}, "are no place on a card of at most"),
        ({"start": {"string": "0"}, "size": {"int": 1}}, "minor 0, start 0 and size 1 are no place"),
        ({"start": {"int": 0}, "size": {"int": 1}, "profile": {"string": "x"}}, "x"),
    ],
)
def test_forged_partitions_without_counters_are_a_problem_of_their_pool(attributes: Any, problem: str) -> None:
    forged = {"minor": {"int": 0}, "profile": {"string": "1g.5gb"}} | attributes
    (pool,) = read_pools([part("a", driver="gpu.tessera.dev", devices=[{"name": "x", "attributes": forged}])])
    assert pool.devices == ()
    assert problem in pool.problem


def test_cards_without_mig_stand_beside_others() -> None:
    found = pools([card(0, geometry=None, product="NVIDIA L4", memory_mib=23034), card(1), card(2, whole=False)])
    assert find(found, "gpu-0").counters == {}
    assert [each.id.device for each in found[0].devices if "mig" not in each.id.device] == ["gpu-0", "gpu-1"]
    server = Server()
    server.publish(*pools([card(0, geometry=None)]))
    assert len(server.items) == 1


def test_scheduler_mode_has_no_taint_of_placement() -> None:
    assert find(pools([card(0)], placed_by_us=False), "gpu-0").taints == ()


# -- reading ----------------------------------------------------------------------------------------------------------


def part(name: str, **spec: Any) -> ResourceSlice:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1} | spec.pop("pool", {})
    whole = {"driver": "d", "nodeName": "n1", "pool": pool, **spec}
    return msgspec.convert({"metadata": {"name": name}, "spec": whole}, ResourceSlice)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([part("a", pool={"resourceSliceCount": 2})], "1 of 2 ResourceSlices of generation 1 are there"),
        (
            [part("a", devices=[{"name": "x"}], pool={"resourceSliceCount": 2}), part("b", devices=[{"name": "x"}])],
            "device x stands 2 times",
        ),
        (
            [
                part(
                    "a",
                    devices=[
                        {"name": "x", "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]}
                    ],
                )
            ],
            "device x takes from counter c of s: there is none",
        ),
        ([part("a", sharedCounters=[{"name": "s"}, {"name": "s"}])], "counter set s stands 2 times"),
        (
            [part("a", devices=[{"name": "x", "attributes": {"v": {"version": "1"}}}])],
            "device x, attribute v: '1' is no",
        ),
        ([part("a", devices=[{"name": "x", "attributes": {"v": {}}}])], "attribute v has no value of a known type"),
        (
            [part("a", devices=[{"name": "x", "capacity": {"m": {"value": "1K"}}}])],
            "device x, capacity m: quantity '1K'",
        ),
    ],
)
def test_a_pool_that_breaks_a_rule_has_a_problem(parts: list[ResourceSlice], problem: str) -> None:
    (pool,) = read_pools(parts)
    assert pool.devices == ()
    assert problem in pool.problem
    good = part("z", devices=[{"name": "y"}], pool={"name": "n0"})
    assert next(each.problem for each in read_pools([*parts, good])) == ""


@pytest.mark.parametrize("name", ["gpu-1", "gpu-1-mig-1g5gb-99-6", "gpu-1-shares"])
def test_a_device_that_vanished_holds_its_card(name: str) -> None:
    """A claim may hold what is no longer published: the card was given whole, or its profile had another number."""
    (pool,) = pools([card(index, whole=False) for index in range(3)])
    pool_name = "n1/shares" if name.endswith("shares") else "n1"
    results = [AllocatedDevice(driver="gpu.tessera.dev", pool=pool_name, device=name)]
    holdings = read_holdings([pool], results)
    free = {each.attributes["gpu.tessera.dev/index"] for each in pool.devices if holdings.has_room(each, pool)}
    assert free == {0, 2}
    elsewhere = [AllocatedDevice(driver="gpu.tessera.dev", pool="n2", device=name)]
    other = read_holdings([pool], elsewhere)
    assert all(other.has_room(each, pool) for each in pool.devices)


def test_older_generations_do_not_count() -> None:
    old = part("a", devices=[{"name": "x"}])
    new = part("b", devices=[{"name": "y"}], pool={"generation": 2})
    (pool,) = read_pools([old, new])
    assert [each.id.device for each in pool.devices] == ["y"]


def test_a_node_that_forges_a_pool_of_another_node_spoils_its_own_only() -> None:
    server = Server()
    server.publish(*pools([card(0)]))
    forged = msgspec.convert(
        {
            "metadata": {"name": "forged"},
            "spec": {
                "driver": "gpu.tessera.dev",
                "nodeName": "n2",
                "pool": {"name": "n1", "generation": 99, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0"}],
            },
        },
        ResourceSlice,
    )
    honest, other = read_pools([forged, *server.stored])
    assert honest == pools([card(0)])[0]
    assert other.devices == ()
    assert "published by node n2, whose pools have the node's name" in other.problem


_CHANGES = st.lists(
    st.lists(
        st.builds(
            lambda index, fault, kind: card(index, fault=fault, **kind),
            st.integers(0, 9),
            st.sampled_from(("", "xid-79")),
            st.sampled_from(({}, {"geometry": None}, {"shares": 3}, {"foreign": (Placement("1g.5gb", 2, 1),)})),
        ),
        unique_by=lambda each: each.index,
        max_size=6,
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(60), deadline=None)
@given(_CHANGES, st.integers(0, 7))
def test_whatever_changes_the_server_ends_with_the_pools_and_then_rests(
    rounds: list[list[NodeCard]], interrupted: int
) -> None:
    server = Server()
    for cards in rounds:
        wanted = pools(cards)
        plan = plan_slices(wanted, server.stored)
        server.apply(  # an agent that dies after some writes
            SlicePlan(
                create=plan.create[:interrupted],
                replace=plan.replace[: max(interrupted - len(plan.create), 0)],
            )
        )
        server.publish(*wanted)
        assert sorted(read_pools(server.stored), key=lambda each: each.name) == list(wanted)
        assert server.publish(*wanted) == 0


def test_amounts_are_exact() -> None:
    assert find(pools([card(0, memory_mib=40537)]), "gpu-0").capacity["gpu.tessera.dev/memory"].value == Decimal(
        40537 * 2**20
    )


def test_no_two_nodes_have_objects_of_one_name() -> None:
    options = PublishOptions()
    names = [
        each["metadata"]["name"]
        for node in ("n1", "n1-shares")
        for each in plan_slices(node_pools(node, [card(), card(1, shares=4)], VERSIONS, options), ()).create
    ]
    assert len(set(names)) == len(names)


def test_cards_without_a_minor_have_no_devices_of_one_name() -> None:
    """A driver may refuse to tell the minor."""
    (pool,) = pools([card(0, minor=-1), card(1, minor=-1), card(2)])
    assert {each.attributes["gpu.tessera.dev/minor"] for each in pool.devices} == {2}
    assert {name for name, _ in pool.counters} == {"gpu-2-memory-slices", "gpu-2-compute-slices"}
