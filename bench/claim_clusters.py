"""Simulated clusters in which ResourceClaims are placed, each by somebody else; see :mod:`bench.claims`."""

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tessera.agent.inventory.sliceable_gpus import placements
from tessera.api.instaslice import INSTASLICES
from tessera.api.names import (
    DEVICE_API_DRA,
    DEVICE_API_LABEL,
    HOSTNAME_LABEL,
    INSTASLICE_NAMESPACE,
    MIG_CONFIG_LABEL,
    SYSTEM_NAMESPACE,
)
from tessera.claims.controller.claim_allocations import FINALIZER
from tessera.cli.controller import parse_options
from tessera.clock import SystemClock
from tessera.controller.main import run as run_controller
from tessera.doctor.manifests import install_manifests
from tessera.dra.allocation import select_node
from tessera.dra.devices import Pool
from tessera.dra.driver_objects import plan_slices
from tessera.dra.node_devices import DRIVER, NodeCard, PublishOptions, node_pools
from tessera.kube.cache import WatchEvent
from tessera.kube.client import Client
from tessera.kube.informer import EventKind, Informer, InformerGroup
from tessera.kube.resources import MUTATING_WEBHOOKS, NODES, PODS
from tessera.mig.models import model_by_short_name
from tessera_lab.cli.own_commands import own_commands
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.installation.install import apply_manifests, build_entrypoint, install_tessera
from tessera_lab.scheduler.claim_binding import (
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)

MODEL, PROFILE, CARDS = model_by_short_name("A100-40GB"), "1g.5gb", 8
#: Pods for which a node has room.
ROOM = 7 * CARDS
#: How many creations are under way at once, as a workload controller's burst would have.
CREATORS = 20
TIMEOUT = 1800.0
NAMESPACE = "default"
#: Where the nodes' files lie, if it is there.
MEMORY = Path("/dev/shm")
FOLDER = MEMORY if MEMORY.is_dir() else None
VERSIONS = ("580.159.04", 13000)

Json = dict[str, Any]


# The devices


def cards(node: str) -> list[NodeCard]:
    """The cards of one node."""
    return [
        NodeCard(
            uuid=f"GPU-{node}-{index}",
            minor=index,
            index=index,
            product=MODEL.product_name,
            compute_capability=MODEL.compute_capability,
            memory_mib=MODEL.memory_mib,
            geometry=MODEL.geometry,
        )
        for index in range(CARDS)
    ]


def free_places(pools: Mapping[str, Pool]) -> Iterator[tuple[str, str]]:
    """Yields node and device for one pod after the other, in turns of the nodes."""
    names = {
        node: sorted(each.id.device for each in pool.devices if each.attributes.get(f"{DRIVER}/profile") == PROFILE)
        for node, pool in pools.items()
    }
    for number in range(ROOM):
        for node, devices in names.items():
            yield node, devices[number]


async def publish(client: Client, nodes: int, *, tainted: bool) -> dict[str, Pool]:
    """Creates nodes and their devices; returns the pools by node."""
    options, made = PublishOptions(placed_by_us=tainted), {}
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "250"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": None}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    for number in range(nodes):
        name = f"node-{number}"
        labels = {HOSTNAME_LABEL: name, MIG_CONFIG_LABEL: "dynamic", DEVICE_API_LABEL: DEVICE_API_DRA}
        await client.create(NODES.as_dicts(), {"metadata": {"name": name, "labels": labels}})
        await client.merge_patch(NODES, name, {"status": status}, subresource="status")
        (made[name],) = node_pools(name, cards(name), VERSIONS, options)
        for each in plan_slices([made[name]], ()).create:
            await client.create(RESOURCE_SLICES, msgspec.json.decode(msgspec.json.encode(each)))
    return made


# Who places


class WrittenAllocations:
    """Writes the next free device into each new claim, and lets its pod go.

    Args:
        client: writes.
        claims: mirrors the claims.
        places: node and device for one claim after the other.
    """

    def __init__(self, client: Client, claims: Informer[Json], places: Iterator[tuple[str, str]]) -> None:
        self._client = client
        self._places = places
        self._waiting: asyncio.Queue[Json] = asyncio.Queue()
        claims.add_handler(self._seen)

    def _seen(self, event: WatchEvent[Json]) -> None:
        if event.kind is EventKind.ADDED:
            self._waiting.put_nowait(event.object)

    async def run(self) -> None:
        """Places until cancelled, several claims at once."""
        await asyncio.gather(*(self._place_all() for _ in range(CREATORS)))

    async def _place_all(self) -> None:
        while True:
            claim = await self._waiting.get()
            name, pod = claim["metadata"]["name"], claim["metadata"]["ownerReferences"][0]["name"]
            node, device = next(self._places)
            result = {"request": "slice", "driver": DRIVER, "pool": node, "device": device}
            allocation = {
                "allocationTimestamp": "2026-11-29T11:00:00Z",
                "devices": {"results": [result]},
                "nodeSelector": select_node(node),
            }
            protect = {"metadata": {"finalizers": [FINALIZER]}}
            await self._client.merge_patch(RESOURCE_CLAIMS, name, protect, NAMESPACE)
            status = {"status": {"allocation": allocation}}
            await self._client.merge_patch(RESOURCE_CLAIMS, name, status, NAMESPACE, subresource="status")
            await self._client.merge_patch(PODS, pod, {"spec": {"schedulingGates": None}}, NAMESPACE)


@asynccontextmanager
async def stock(nodes: int, **_options: float) -> AsyncIterator[SimulatedCluster]:
    """A cluster whose scheduler places by itself."""
    cluster = SimulatedCluster([], clock=SystemClock())
    async with cluster.running():
        await publish(cluster.client("bench"), nodes, tainted=False)
        yield cluster


@asynccontextmanager
async def written(nodes: int, **_options: float) -> AsyncIterator[SimulatedCluster]:
    """A cluster in which allocations are written."""
    cluster = SimulatedCluster([], clock=SystemClock())
    client = cluster.client("writer")
    async with cluster.running():
        places = free_places(await publish(client, nodes, tainted=True))
        claims = Informer(client, RESOURCE_CLAIMS, clock=cluster.clock, rng=random.Random(1))
        writer = WrittenAllocations(client, claims, places)
        async with InformerGroup(claims).running(), asyncio.TaskGroup() as group:
            task = group.create_task(writer.run())
            yield cluster
            task.cancel()


@asynccontextmanager
async def controller(nodes: int, **_options: float) -> AsyncIterator[SimulatedCluster]:
    """A cluster with Tessera's controller alone, on nodes whose records are there from the start."""
    cluster = SimulatedCluster([], clock=SystemClock())
    client = cluster.client("tessera-controller")
    definitions = {"CustomResourceDefinition", "Namespace"}
    async with cluster.running():
        await apply_manifests(client, [each for each in install_manifests() if each["kind"] in definitions])
        for name in await publish(client, nodes, tainted=True):
            await client.create(INSTASLICES.as_dicts(), {"metadata": {"name": name}, "spec": {}}, INSTASLICE_NAMESPACE)
            gpus = [{"gpuUuid": each.uuid, "gpuName": each.product, "gpuMemory": "40960Mi"} for each in cards(name)]
            table = msgspec.to_builtins(placements(MODEL.geometry))
            status = {"nodeResources": {"nodeGpus": gpus, "migPlacement": table, "bootId": "boot"}}
            await client.merge_patch(INSTASLICES, name, {"status": status}, INSTASLICE_NAMESPACE, subresource="status")
        given = ["--no-leader-election", "--claim-driver", DRIVER]
        options = parse_options(given, {"POD_NAME": "c", "POD_NAMESPACE": SYSTEM_NAMESPACE})
        running = asyncio.create_task(run_controller(options, client, cluster.clock, rng=random.Random(1)))
        await cluster.clock.sleep(2.0 + nodes / 100)
        yield cluster
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@asynccontextmanager
async def own(
    nodes: int, *, by_claims: bool = True, webhook: bool = True, slice_seconds: float = 0.0
) -> AsyncIterator[SimulatedCluster]:
    """A cluster with Tessera, whose nodes give their slices by claims or by limits, with or without admission."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        specs = parse_nodes(f"{nodes}*{CARDS}xA100-40GB")
        options = ClusterOptions(cdi=Path(folder), by_claims=by_claims, slice_seconds=slice_seconds)
        entrypoint = build_entrypoint(own_commands())
        cluster = SimulatedCluster(specs, clock=SystemClock(), options=options, entrypoint=entrypoint)
        client = cluster.client("bench")
        async with cluster.running():
            await install_tessera(client, claim_driver=DRIVER if by_claims else "")
            if not webhook:
                await client.delete(MUTATING_WEBHOOKS, "tessera-webhook")
            slices = Informer(client, RESOURCE_SLICES, clock=cluster.clock, rng=random.Random(1))
            records = Informer(client, INSTASLICES, clock=cluster.clock, rng=random.Random(1))
            group = InformerGroup(slices, records)
            async with group.running():
                await group.wait_until(lambda: len(records.cache) == nodes, TIMEOUT, "all nodes have joined")
                if by_claims:
                    await group.wait_until(lambda: _all_publish(nodes, slices), TIMEOUT, "all nodes publish")
            yield cluster


def _all_publish(nodes: int, slices: Informer[Json]) -> bool:
    complete: Counter[str] = Counter()
    for each in slices.cache.values():
        complete[each["spec"]["nodeName"]] += 1
        if complete[each["spec"]["nodeName"]] == each["spec"]["pool"]["resourceSliceCount"]:
            complete["all"] += 1
    return complete["all"] == nodes


class Placing(msgspec.Struct, frozen=True):
    """A way to place claims.

    Attributes:
        cluster: a running cluster in which claims are placed this way, with this number of nodes.
        gated: pods are created behind the gate.
        limits: pods ask by limits; Tessera's webhook adds the gate.
    """

    cluster: Callable[..., AbstractAsyncContextManager[SimulatedCluster]]
    gated: bool = False
    limits: bool = False


PLACINGS = {
    "stock": Placing(stock),
    "own": Placing(own),
    "controller": Placing(controller, gated=True),
    "ungated": Placing(partial(own, webhook=False)),
    "limits": Placing(partial(own, by_claims=False), limits=True),
    "written": Placing(written, gated=True),
}
