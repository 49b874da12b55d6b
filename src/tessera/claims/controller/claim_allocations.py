"""Writes and clears ``status.allocation`` of claims, from slices that pods hold, and makes the events of claims.

A claim is *from* an allocation if it has a device of it. Only the names of devices decide that; annotations, which its
author may change, do not.

The order of writes is kube-scheduler's: first the finalizer, then the allocation, with its time (kube-scheduler 1.36
adds a missing one, which the server refuses). Both name the version of the claim, so neither overwrites what somebody
else wrote meanwhile. The finalizer is written at the same time as the node's record. Without it kube-controller-manager
never clears the allocation; but it deletes a claim of a template once the pod is done, so this one needs none.

Events are for those who look at a claim and not at its pod. Rules:

1.  What a pod that asks by a claim is told, the claim is told in the same words. A fact that the claim was told last is
    not told again, such as a refusal that is the same for several pods.
2.  A claim that was seen with and without an allocation is told the change: a controller that starts repeats nothing. A
    claim of a template goes with its pod, so it is not told that no pod uses it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import NodeName, PodUid
from tessera.claims.controller.claim_profiles import ProfileReader
from tessera.claims.controller.published_devices import PublishedDevices
from tessera.clock import rfc3339
from tessera.controller.objects.pod_info import CLAIMS, PodInfo
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.instructions import PatchRecord, RecordEvent
from tessera.dra.allocation import select_node, write_allocation
from tessera.dra.claims import AllocatedDevice, ResourceClaim
from tessera.dra.devices import DeviceId, HeldDevice, Holdings, Pool
from tessera.dra.matching import ChosenDevice, NoMatch, match_claims
from tessera.dra.node_devices import places_of
from tessera.dra.requests import ClaimRefused
from tessera.text import list_names

#: Kubernetes' own finalizer of a claim with an allocation (``k8s.io/api/resource/v1``, ``Finalizer``).
FINALIZER = "resource.kubernetes.io/delete-protection"


class ClaimAllocations:
    """The claims of the cluster, and what they have of slices.

    Args:
        published: names the device of a slice.
        profiles: reads what a claim asks for.

    Attributes:
        claims: all claims, by ``namespace/name``.
        listed: True once all claims were observed; before that, no slices go back.
        by_place: a ``shareID`` names a place of its card; else it is kube-scheduler's, and a claim is from any of them.
    """

    def __init__(self, published: PublishedDevices, profiles: ProfileReader) -> None:
        self._published = published
        self._profiles = profiles
        self.claims: dict[str, ResourceClaim] = {}
        self.listed = False
        self.by_place = True
        #: By the node of its allocation, the claims that are allocated there; no set is empty.
        self._by_node: dict[NodeName, set[str]] = {}

    def put(self, key: str, claim: ResourceClaim | None) -> ResourceClaim | None:
        """Takes in a claim; None if it is gone. Returns it as it was before."""
        before = self.claims.pop(key, None)
        if before is not None and before.status.allocation is not None:
            node = NodeName(before.status.allocation.node)
            self._by_node[node].discard(key)
            if not self._by_node[node]:
                del self._by_node[node]
        if claim is not None:
            self.claims[key] = claim
            if claim.status.allocation is not None:
                self._by_node.setdefault(NodeName(claim.status.allocation.node), set()).add(key)
        return before

    def on(self, node: NodeName) -> Mapping[str, ResourceClaim]:
        """Returns the claims that are allocated on a node."""
        return {key: self.claims[key] for key in self._by_node.get(node, ())}

    # Which claims have which slices ---------------------------------------------------------------------------------

    def is_from(self, claim: ResourceClaim, allocation: Allocation) -> bool:
        """True if a claim has a device of an allocation of its namespace.

        A device that its node does not publish any more may be of any slice there that has no device either.
        """
        found = claim.status.allocation
        if found is None or found.node != allocation.node or claim.metadata.namespace != allocation.namespace:
            return False
        own, has = self._devices_of(allocation), self.devices(claim)
        return bool(has & own) or (
            None in own and not {each.device for each in has} <= self._published.ids_on(allocation.node)
        )

    def is_cleared(self, before: ResourceClaim, claim: ResourceClaim | None, allocation: Allocation) -> bool:
        """True if somebody else took an allocation from a claim that still exists."""
        gone = claim is not None and claim.status.allocation is None
        return gone and not allocation.given_up and self.is_from(before, allocation)

    # The due writes -------------------------------------------------------------------------------------------------

    def give(self, allocation: Allocation, keys: Sequence[str], now: float) -> tuple[Sequence[PatchRecord], bool] | str:
        """Returns the writes due to allocate claims, and True if all are allocated; a text if the slices do not suit.

        Args:
            allocation: the slices; on record.
            keys: the claims of their pod that are to be allocated from them.
            now: the time, seconds since 1970.
        """
        due = [key for key in keys if not self.is_from(self.claims[key], allocation)]
        if not due:
            return (), True
        chosen = self._match(allocation, keys)
        if isinstance(chosen, str):
            return chosen
        if not chosen or any(self.claims[key].status.allocation is not None for key in due):
            return (), False  # one is still allocated from other slices
        writes: list[PatchRecord] = []
        for number, key in enumerate(keys):
            claim = self.claims[key]
            if key not in due or claim.metadata.deletion_timestamp is not None:
                continue
            if _lacks_finalizer(claim):
                writes.append(_protect(allocation, claim))
                continue
            found = write_allocation(
                claim.metadata.uid,
                claim.spec,
                self._profiles.classes,
                [each for each in chosen if each.claim == number],
                node_selector=select_node(allocation.node),
                time=rfc3339(now),
            )
            patch: dict[str, Any] = {"status": {"allocation": found}}
            writes.append(_write(allocation.node, allocation.uid, claim, patch, "status"))
        return writes, False

    def protect(self, allocation: Allocation, keys: Sequence[str]) -> Sequence[PatchRecord]:
        """Returns the writes of finalizers that are due before :meth:`give`, for the same claims."""
        claims = [self.claims[key] for key in keys]
        return [
            _protect(allocation, each)
            for each in claims
            if _lacks_finalizer(each) and each.metadata.deletion_timestamp is None and each.status.allocation is None
        ]

    def _match(self, allocation: Allocation, keys: Sequence[str]) -> Sequence[ChosenDevice] | str:
        """Divides the devices of an allocation among claims; none if they are not published now, or why none suits."""
        devices = [self._published.at(allocation.node, each) for each in allocation.slices]
        found_all = [each for each in devices if each is not None]
        if len(found_all) < len(devices) or not found_all:
            return ()
        counts = Counter(each.id for each in found_all)
        alone = {each.id: each for each in found_all}.values()
        known = tuple(places_of(each, counts[each.id]) if each.shared else each for each in alone)
        try:
            demands = [self._profiles.demand(self.claims[key]) for key in keys]
        except ClaimRefused as error:
            return str(error)
        pool = Pool(driver=known[0].id.driver, name=known[0].id.pool, node=allocation.node, devices=known)
        found = match_claims(demands, (pool,), Holdings(), self._profiles.selectors)
        return found.reason if isinstance(found, NoMatch) else self._name_shares(allocation, found)

    def _name_shares(self, allocation: Allocation, chosen: Sequence[ChosenDevice]) -> Sequence[ChosenDevice]:
        """Gives each share of a card the id of its first place; a share that takes several keeps the others free."""
        ids = sorted(each for each in self._devices_of(allocation) if each is not None and each.share)
        free: dict[DeviceId, list[str]] = {}
        for each in ids:
            free.setdefault(each.device, []).append(each.share)
        return [
            msgspec.structs.replace(each, share=free[each.device.id].pop(0)) if each.device.shared else each
            for each in chosen
        ]

    def take_back(self, allocation: Allocation, is_used: Callable[[str], bool]) -> tuple[Sequence[PatchRecord], bool]:
        """Returns the due writes that clear allocations, and True if no claim is allocated from the slices any more.

        Args:
            allocation: slices that go back.
            is_used: True for a claim that a living pod uses.
        """
        if not self.listed:
            return (), False
        keys = [key for key in self._by_node.get(allocation.node, ()) if self.is_from(self.claims[key], allocation)]
        writes = [
            _clear(allocation.node, allocation.uid, claim)
            for key in sorted(keys)
            if not (claim := self.claims[key]).status.reserved_for and not (is_used(key) and not allocation.given_up)
        ]
        return writes, not keys

    def lost(self, node: NodeName, allocations: Iterable[Allocation]) -> Sequence[PatchRecord]:
        """Returns the due writes that clear unreserved claims of a node that are from none of its allocations."""
        claims = [self.claims[key] for key in sorted(self._by_node.get(node, ()))] if self.listed else []
        free = [each for each in claims if not each.status.reserved_for]
        if not free:
            return ()
        here = list(allocations)
        given = {(each.namespace, device) for each in here for device in self._devices_of(each)}
        lost = [each for each in free if given.isdisjoint((each.metadata.namespace, one) for one in self.devices(each))]
        return [
            _clear(node, PodUid(""), each)
            for each in lost
            if self._is_ours(each) and not any(self.is_from(each, one) for one in here)
        ]

    def _is_ours(self, claim: ResourceClaim) -> bool:
        return bool(self.devices(claim))

    def devices(self, claim: ResourceClaim) -> set[HeldDevice]:
        """Returns the devices of the driver that a claim has; with admin access it takes none from others."""
        found = claim.status.allocation
        results = found.devices.results if found is not None else ()
        own = filter(self.is_taken, results)
        shares = ((each, each.share_id if self.by_place else "") for each in own)
        return {HeldDevice(DeviceId(each.driver, each.pool, each.device), share) for each, share in shares}

    def is_taken(self, given: AllocatedDevice) -> bool:
        """True for a device of the driver that is taken from others."""
        return given.driver == self._published.driver and not given.admin_access

    def _devices_of(self, allocation: Allocation) -> set[HeldDevice | None]:
        """Returns the devices of an allocation; None among them for one that its node does not publish any more."""
        found = {self._published.id_at(allocation.node, each) for each in allocation.slices}
        return found if self.by_place else {each and HeldDevice(each.device, "") for each in found}


def _lacks_finalizer(claim: ResourceClaim) -> bool:
    return not claim.pod and FINALIZER not in claim.metadata.finalizers


def _protect(allocation: Allocation, claim: ResourceClaim) -> PatchRecord:
    patch = {"metadata": {"finalizers": [*claim.metadata.finalizers, FINALIZER]}}
    return _write(allocation.node, allocation.uid, claim, patch)


def _clear(node: NodeName, uid: PodUid, claim: ResourceClaim) -> PatchRecord:
    return _write(node, uid, claim, {"status": {"allocation": None}}, "status")


def _write(
    node: NodeName, uid: PodUid, claim: ResourceClaim, patch: dict[str, Any], subresource: str | None = None
) -> PatchRecord:
    meta = claim.metadata
    return PatchRecord(
        kind=CLAIMS.name,
        node=node,
        uid=uid,
        namespace=meta.namespace,
        name=meta.name,
        object_uid=meta.uid,
        patch=patch,
        subresource=subresource,
        version=meta.resource_version,
    )


class ClaimEvents:
    """Makes the events of claims, and knows what each claim was told last.

    Args:
        claims: the claims that exist, by ``namespace/name``.
    """

    def __init__(self, claims: Mapping[str, ResourceClaim]) -> None:
        self._claims = claims
        #: By claim that exists, the reason and the text that it was told last.
        self._last: dict[str, tuple[str, str]] = {}

    def forget(self, key: str) -> None:
        """Takes in that a claim is gone."""
        self._last.pop(key, None)

    def repeat(self, event: RecordEvent, keys: Iterable[str]) -> Iterator[RecordEvent]:
        """Returns what claims are told of an event about their pod; rule 1."""
        for key in keys:
            yield from self._tell(key, event.reason, event.message, warning=event.warning)

    def note_allocated(self, key: str, devices: Iterable[AllocatedDevice], pod: PodInfo) -> Iterator[RecordEvent]:
        """Returns what a claim is told once it is allocated from the slices of a pod."""
        claim = self._claims[key]
        node = claim.status.allocation.node if claim.status.allocation is not None else ""
        text = f"{_names(devices)} of node {node}, for pod {pod.name}"
        yield from self._tell(key, "ClaimAllocated", text)

    def note_cleared(
        self, key: str, devices: Iterable[AllocatedDevice], node: str, *, pod: PodInfo | None, refused: bool
    ) -> Iterator[RecordEvent]:
        """Returns what a claim is told once its allocation is gone.

        Args:
            key: the claim.
            devices: what it had.
            node: on this node.
            pod: the pod that asks for it; None if none uses it.
            refused: the node did not take that pod.
        """
        if pod is None and self._claims[key].pod:
            return
        what = f"{_names(devices)} of node {node}"
        if pod is None:
            text = f"{what}: no pod uses the claim any more"
        elif refused:
            text = f"{what}: the scheduler found that the node does not take pod {pod.name}, which is placed again"
        else:
            text = f"{what}: pod {pod.name} is placed again"
        yield from self._tell(key, "ClaimTakenBack", text, warning=refused)

    def _tell(self, key: str, reason: str, text: str, *, warning: bool = False) -> Iterator[RecordEvent]:
        claim = self._claims.get(key)
        if claim is None or self._last.get(key) == (reason, text):
            return
        self._last[key] = reason, text
        meta = claim.metadata
        yield RecordEvent(
            kind=CLAIMS.name,
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            reason=reason,
            message=text,
            warning=warning,
        )


def _names(devices: Iterable[AllocatedDevice]) -> str:
    return list_names(sorted({each.device for each in devices}))
