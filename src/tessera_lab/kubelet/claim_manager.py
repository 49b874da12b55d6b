"""Kubelet's manager of ResourceClaims: drivers, prepared claims, and the ResourceSlices of drivers that are gone.

Order and texts follow ``pkg/kubelet/cm/dra``; times were seen on a real kubelet 1.36.2. Rules:

* a pod's claims are prepared in one call for each driver; a claim that is prepared is not prepared again: not for a
  container that starts again, nor after a restart of driver, kubelet or node;
* a claim is unprepared when its last pod on the node has ended;
* the node's ResourceSlices of a driver are deleted 30 s after its last instance is gone, and 30 s after kubelet's start
  if it has not registered again. Kubelet deletes those of all other drivers then; here only drivers count that were
  registered before, so that a node without any lists nothing.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kubelet.interfaces import ClaimDeviceHealth, ClaimDevices, ClaimRef, PluginError, PreparedDevice
from tessera_lab.kubelet.device_plugins.claim_client import ClaimPluginClient
from tessera_lab.kubelet.devices.checkpoint import ClaimCheckpoint, PreparedClaim
from tessera_lab.scheduler.claim_binding import RESOURCE_CLAIMS, RESOURCE_SLICES
from tessera_lab.scheduler.state.claim_cache import (
    allocation_of,
    base_request,
    claim_names,
    container_requests,
    is_of_template,
    is_reserved_for,
    owner_uid,
    results_of,
)

Json = Mapping[str, Any]

#: Seconds from the end of a driver's last instance until its slices are deleted (``defaultWipingDelay``).
WIPING_DELAY = 30.0
#: Seconds between attempts to unprepare claims of pods that kubelet no longer knows.
RECONCILE_PERIOD = 60.0
#: Seconds after which kubelet watches the health of devices again, once the driver's stream has ended.
HEALTH_RETRY = 5.0


class ClaimError(Exception):
    """A pod's claims cannot be prepared or unprepared now; the text is kubelet's."""


class ClaimManager:
    """The claims of one node.

    Args:
        node: the node's name.
        client: reads claims and deletes slices as this kubelet.
        clock: for delays.
        checkpoint: keeps prepared claims over a restart.
        on_health: called with the UIDs of pods whose devices may have another health than before.
    """

    def __init__(
        self,
        node: str,
        client: Client,
        *,
        clock: Clock,
        checkpoint: ClaimCheckpoint,
        on_health: Callable[[Collection[str]], None] = lambda _: None,
    ) -> None:
        self._node = node
        self._client = client
        self._clock = clock
        self._checkpoint = checkpoint
        self._on_health = on_health
        self._state = checkpoint.load()
        self._drivers: dict[str, list[ClaimPluginClient]] = {}
        self._wipes: dict[str, asyncio.Task[None]] = {}
        self._watches: dict[ClaimPluginClient, asyncio.Task[None]] = {}
        self._health: dict[tuple[str, str, str], ClaimDeviceHealth] = {}

    # Drivers (tessera_lab.kubelet.device_plugins.claim_client.ClaimDrivers)

    def add_driver(self, name: str, client: ClaimPluginClient) -> None:
        """A driver registered, or answers again: it is called from now on, and its slices stay."""
        self._drivers.setdefault(name, []).append(client)
        wipe = self._wipes.pop(name, None)
        if wipe is not None:
            wipe.cancel()
        if name not in self._state.drivers:
            self._state.drivers.add(name)
            self._checkpoint.save(self._state)
        self._watches[client] = asyncio.create_task(self._watch_health(name, client))

    def remove_driver(self, name: str, client: ClaimPluginClient) -> None:
        """An instance of a driver is gone; with the last one its slices go too, after a while."""
        instances = self._drivers.get(name, [])
        if client not in instances:
            return
        instances.remove(client)
        self._watches.pop(client).cancel()
        if not instances:
            del self._drivers[name]
            self._wipes[name] = asyncio.create_task(self._wipe(name))

    def open(self) -> None:
        """Kubelet starts: drivers that were registered before have a while to register again."""
        for name in self._state.drivers - self._drivers.keys():
            self._wipes[name] = asyncio.create_task(self._wipe(name))

    async def stop(self) -> None:
        """Kubelet ends: it forgets its drivers, not its claims."""
        tasks = [*self._wipes.values(), *self._watches.values()]
        self._wipes, self._watches = {}, {}
        drivers, self._drivers = self._drivers, {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._health = {}
        for client in (each for instances in drivers.values() for each in instances):
            await client.close()

    async def _wipe(self, name: str) -> None:
        await self._clock.sleep(WIPING_DELAY)
        fields = f"spec.nodeName={self._node},spec.driver={name}"
        while True:
            try:
                for item in (await self._client.list(RESOURCE_SLICES, field_selector=fields)).items:
                    await self._delete_slice(item["metadata"]["name"])
                break
            except (ApiError, ConnectionError, TimeoutError):
                await self._clock.sleep(HEALTH_RETRY)
        self._state.drivers.discard(name)
        self._checkpoint.save(self._state)
        self._wipes.pop(name, None)

    async def _delete_slice(self, name: str) -> None:
        try:
            await self._client.delete(RESOURCE_SLICES, name)
        except NotFound:
            return

    async def _watch_health(self, name: str, client: ClaimPluginClient) -> None:
        while True:
            try:
                async for devices in client.watch_health():
                    self._note_health(name, devices)
            except (PluginError, ConnectionError):
                pass  # a driver without health, or one that has ended: kubelet dials again
            self._note_health(name, ())
            await self._clock.sleep(HEALTH_RETRY)

    def _note_health(self, name: str, devices: Sequence[ClaimDeviceHealth]) -> None:
        before = {key: each for key, each in self._health.items() if key[0] == name}
        now = {(name, each.pool, each.device): each for each in devices}
        if before == now:
            return
        self._health = {key: each for key, each in self._health.items() if key[0] != name} | now
        self._on_health({uid for each in self._state.claims.values() if name in each.drivers for uid in each.pods})

    # Pods

    async def prepare(self, pod: Json) -> None:
        """Prepares the pod's claims.

        Raises:
            ClaimError: it failed; kubelet tries again after a while.
        """
        uid = pod["metadata"]["uid"]
        wanted = [(claim, self._check_usable(pod, entry, claim)) for entry, claim in await self._claims(pod)]
        batches: dict[str, list[PreparedClaim]] = {}
        for claim, drivers in wanted:
            known = self._track(claim, drivers, uid)
            for driver in () if known.prepared else drivers:
                batches.setdefault(driver, []).append(known)
        if wanted:
            self._checkpoint.save(self._state)
        for driver, claims in batches.items():
            await self._prepare_batch(driver, claims)
        for claims in batches.values():
            for each in claims:
                each.prepared = True
        if batches:
            self._checkpoint.save(self._state)

    async def _claims(self, pod: Json) -> list[tuple[str, Json]]:
        """The pod's claims with their entries, read from the API server."""
        found: list[tuple[str, Json]] = []
        meta = pod["metadata"]
        for entry, name in claim_names(pod).items():
            if not name:
                raise ClaimError(f'pod "{meta["namespace"]}/{meta["name"]}": ResourceClaim not created yet')
            try:
                claim = await self._client.get(RESOURCE_CLAIMS, name, meta["namespace"])
            except (ApiError, ConnectionError, TimeoutError) as error:
                raise ClaimError(f"fetch ResourceClaim {name}: {error}") from error
            found.append((entry, claim))
        return found

    def _check_usable(self, pod: Json, entry: str, claim: Json) -> tuple[str, ...]:
        """Returns the drivers of a claim that the pod may use."""
        meta, name = pod["metadata"], claim["metadata"]["name"]
        if is_of_template(pod, entry) and owner_uid(claim) != meta["uid"]:
            where = f"{meta['namespace']}/{name}"
            pod_name = f"{meta['namespace']}/{meta['name']}"
            raise ClaimError(f"ResourceClaim {where} was not created for pod {pod_name} (pod is not owner)")
        if not is_reserved_for(claim, meta["uid"]):
            text = f"pod {meta['name']} ({meta['uid']}) is not allowed to use ResourceClaim {name}"
            raise ClaimError(f"{text} ({claim['metadata']['uid']})")
        if allocation_of(claim) is None:
            raise ClaimError(f"ResourceClaim {name}: claim {meta['namespace']}/{name} not allocated")
        drivers = tuple(dict.fromkeys(each["driver"] for each in results_of(allocation_of(claim))))
        for driver in drivers:
            self._instance(driver)
        return drivers

    def _instance(self, driver: str) -> ClaimPluginClient:
        instances = self._drivers.get(driver)
        if not instances:
            raise ClaimError(f"DRA driver {driver} is not registered")
        return instances[-1]

    def _track(self, claim: Json, drivers: Sequence[str], uid: str) -> PreparedClaim:
        meta = claim["metadata"]
        key = f"{meta['namespace']}/{meta['name']}"
        known = self._state.claims.get(key)
        if known is None:
            reference = ClaimRef(meta["namespace"], meta["name"], meta["uid"])
            known = self._state.claims[key] = PreparedClaim(reference, dict.fromkeys(drivers, ()))
        elif known.claim.uid != meta["uid"]:
            raise ClaimError(
                f"old ResourceClaim with same name {meta['name']} and different UID {known.claim.uid} still exists "
                "(previous pod force-deleted?!)"
            )
        known.pods.add(uid)
        return known

    async def _prepare_batch(self, driver: str, claims: Sequence[PreparedClaim]) -> None:
        try:
            answer = await self._instance(driver).prepare([each.claim for each in claims])
        except (PluginError, ConnectionError) as error:
            raise ClaimError(f"NodePrepareResources: {error}") from error
        for each in claims:
            found = answer.get(each.claim.uid)
            if isinstance(found, PluginError):
                raise ClaimError(f"NodePrepareResources failed for ResourceClaim {each.claim.name}: {found}")
            if found is not None:
                each.drivers[driver] = tuple(found)
        skipped = len(claims) - len(answer)
        if skipped:
            raise ClaimError(f"NodePrepareResources skipped {skipped} ResourceClaims")

    async def unprepare(self, uid: str) -> None:
        """Unprepares the claims that only this pod uses.

        Raises:
            ClaimError: it failed; kubelet tries again, and the pod stays until it has not.
        """
        batches: dict[str, list[PreparedClaim]] = {}
        ending = []
        for known in [each for each in self._state.claims.values() if uid in each.pods]:
            if len(known.pods) > 1:
                known.pods.discard(uid)
                continue
            ending.append(known)
            for driver in known.drivers:
                batches.setdefault(driver, []).append(known)
        for driver, claims in batches.items():
            await self._unprepare_batch(driver, claims)
        for known in ending:
            self._state.claims.pop(f"{known.claim.namespace}/{known.claim.name}", None)
        self._checkpoint.save(self._state)

    async def _unprepare_batch(self, driver: str, claims: Sequence[PreparedClaim]) -> None:
        try:
            answer = await self._instance(driver).unprepare([each.claim for each in claims])
        except (PluginError, ConnectionError) as error:
            raise ClaimError(f"NodeUnprepareResources: {error}") from error
        for each in claims:
            found = answer.get(each.claim.uid)
            if found is not None:
                raise ClaimError(f"NodeUnprepareResources failed for ResourceClaim {each.claim.name}: {found}")
        skipped = len(claims) - len(answer)
        if skipped:
            raise ClaimError(f"NodeUnprepareResources skipped {skipped} ResourceClaims")

    def uses_claims(self, uid: str) -> bool:
        """True if the pod has claims that must be unprepared."""
        return any(uid in each.pods for each in self._state.claims.values())

    async def unprepare_others(self, known: Collection[str]) -> None:
        """Unprepares the claims of all pods but these: the others were deleted while kubelet was down."""
        gone = {uid for each in self._state.claims.values() for uid in each.pods} - set(known)
        while gone:
            for uid in sorted(gone):
                with suppress(ClaimError):
                    await self.unprepare(uid)
                    gone.discard(uid)
            if gone:
                await self._clock.sleep(RECONCILE_PERIOD)

    # Containers

    def devices(self, pod: Json, container: Json) -> list[tuple[str, str, PreparedDevice]]:
        """The prepared devices that a container uses, each with what uses it (``claim:ENTRY``) and its driver."""
        names = claim_names(pod)
        found: list[tuple[str, str, PreparedDevice]] = []
        for label, entry, requests in _used(pod, container):
            known = self._state.claims.get(f"{pod['metadata']['namespace']}/{names.get(entry, '')}")
            for driver, devices in known.drivers.items() if known is not None else ():
                found += [(label, driver, each) for each in devices if _answers(each, requests)]
        return found

    def claim_devices(self, pod: Json, container: Json) -> tuple[ClaimDevices, ...]:
        """The devices that a container has by claims, for pod-resources."""
        names, namespace = claim_names(pod), pod["metadata"]["namespace"]
        found: dict[str, list[tuple[str, PreparedDevice]]] = {}
        for label, driver, device in self.devices(pod, container):
            name = names[label.removeprefix("claim:").partition("/")[0]]
            found.setdefault(name, []).append((driver, device))
        return tuple(
            ClaimDevices(namespace=namespace, name=name, devices=tuple(devices)) for name, devices in found.items()
        )

    def health(self, pod: Json, container: Json) -> dict[str, dict[str, bool | None]]:
        """Health of the container's devices by use and first CDI device; None while nobody knows it."""
        found: dict[str, dict[str, bool | None]] = {}
        for label, driver, each in self.devices(pod, container):
            known = self._health.get((driver, each.pool, each.device))
            name = each.cdi_devices[0] if each.cdi_devices else f"{driver}/{each.pool}/{each.device}"
            if label:  # kubelet shows no health of extended resources
                found.setdefault(label, {})[name] = known.healthy if known is not None else None
        return found


def _used(pod: Json, container: Json) -> list[tuple[str, str, frozenset[str]]]:
    """What a container uses: a label, the entry of the pod's spec, and the requests of its claim; none for all."""
    used = [
        (f"claim:{entry}" + (f"/{request}" if request else ""), entry, frozenset({request} if request else ()))
        for entry, request in container_requests(container)
    ]
    mapped = ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("requestMappings") or ()
    requests = frozenset(each["requestName"] for each in mapped if each["containerName"] == container["name"])
    return [*used, ("", "", requests)] if requests else used


def _answers(device: PreparedDevice, requests: frozenset[str]) -> bool:
    return not requests or not device.requests or bool(requests & {base_request(each) for each in device.requests})
