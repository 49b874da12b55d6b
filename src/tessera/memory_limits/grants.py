"""Computes the memory of each shared card that each pod was given, from kubelet's list and the offer. Pure.

A share is the card's memory divided by its replicas, or the limit that MPS sets for one client. A pod's limit is its
share times the entries that all its containers hold. A card or MIG device that is not shared has no limit.

Rules:

- The limit of a running pod is never lowered: when a profile divides a card anew, earlier pods keep their share. A pod
  without a recorded share may use the whole card.
- Pods of one claim may use its part together, since a quota counts the claim once. While they use more, each of them is
  as far over its limit as they are together (:meth:`MemoryGrants.divide`).
- A pod's annotation may lower its limit (:data:`MEMORY_LIMIT_ANNOTATION`), never raise it to its neighbours' cost.
  With another annotation the agent only records events of excess on the pod (:data:`MEMORY_ENFORCEMENT_ANNOTATION`).
- The processes of a static pod carry the hash of its manifest, not the UID of its mirror in the API; kubelet writes
  that hash into an annotation of the mirror.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tessera.agent.inventory.device_state import DeviceUser
from tessera.api.names import MEMORY_ENFORCEMENT_ANNOTATION, MEMORY_LIMIT_ANNOTATION, PodUid
from tessera.api.sharing.devices import SHARING_RULES, AdvertisedDevice, Advertisement
from tessera.kube.quantity import integer_value
from tessera.kube.resources import Pod
from tessera.memory_limits.policy import CardUse, MemoryGrant, sum_by_pod

#: The hash of a static pod's manifest, on its mirror in the API (kubelet, ``ConfigMirrorAnnotationKey``).
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

#: UIDs in the API are written with dashes, so no pod can pass for another by this annotation.
_HASH = re.compile(r"[0-9a-f]{32}")

#: Bytes of one entry, by device and pod.
Shares = dict[str, dict[PodUid, int]]


class MemoryGrants:
    """The pods that were given a part of a card.

    Args:
        shares: the record of an earlier process.

    Attributes:
        shares: bytes of one entry, by device and pod, to be kept over restarts. Only pods that hold the device now.
        without_record: devices and pods without a recorded share; their limit is the whole device.
        rejected_limits: pods whose :data:`MEMORY_LIMIT_ANNOTATION` is not a positive quantity, with the reason.
    """

    def __init__(self, shares: Shares | None = None) -> None:
        self.shares: Shares = shares or {}
        self.without_record: frozenset[tuple[str, PodUid]] = frozenset()
        self.rejected_limits: dict[PodUid, str] = {}

    def update(
        self,
        users: Mapping[str, Sequence[DeviceUser]],
        offer: Advertisement,
        totals: Mapping[str, int],
        pods: Iterable[Pod],
    ) -> tuple[MemoryGrant, ...]:
        """Takes in the present state, and returns the pods with their limits.

        Args:
            users: the containers that hold each device.
            offer: how devices are shared now.
            totals: bytes of each watched device; other devices are ignored.
            pods: the pods of the node.
        """
        shared = shared_devices(offer)
        held = {uuid: _entries(uuid, each) for uuid, each in users.items()}
        self.shares = {
            uuid: {pod: share for pod, share in pods.items() if pod in held.get(uuid, {})}
            for uuid, pods in self.shares.items()
        }
        limits: dict[PodUid, dict[str, int]] = {}
        for uuid, total in totals.items():
            before, now = self.shares.get(uuid, {}), shared.get(uuid)
            entries = held.get(uuid, {})
            self.shares[uuid] = {
                pod: _share(before.get(pod, 0), now, total)
                if count and (uuid, pod) not in self.without_record
                else total
                for pod, count in entries.items()
            }
            for pod, count in entries.items():
                limits.setdefault(pod, {})[uuid] = min(total, self.shares[uuid][pod] * (count or 1))
        self.rejected_limits = {}
        return tuple(self._grant(pod, limits[uid]) for pod in pods if (uid := PodUid(pod.metadata.uid)) in limits)

    def divide(
        self, grants: Sequence[MemoryGrant], users: Mapping[str, Sequence[DeviceUser]], cards: Iterable[CardUse]
    ) -> tuple[MemoryGrant, ...]:
        """Returns the grants, with lower limits for pods that hold the same entries and use more than these together.

        Args:
            grants: result of :meth:`update`.
            users: the containers that hold each device.
            cards: what pods use.
        """
        lower: dict[tuple[str, PodUid], int] = {}
        for card in cards:
            used, shares = sum_by_pod(card.uses), self.shares.get(card.device, {})
            for pods, ids in _groups(users.get(card.device, ())):
                allowed = len(ids) * max(shares.get(pod, 0) for pod in pods)
                total = sum(used.get(pod, 0) for pod in pods)
                if len(pods) > 1 and card.device not in ids and total > allowed:
                    lower |= {(card.device, pod): used[pod] * allowed // total for pod in pods if used.get(pod)}
        return tuple(
            msgspec.structs.replace(
                grant,
                limits={uuid: min(limit, lower.get((uuid, grant.pod), limit)) for uuid, limit in grant.limits.items()},
            )
            for grant in grants
        )

    def _grant(self, pod: Pod, limits: Mapping[str, int]) -> MemoryGrant:
        meta = pod.metadata
        own = self._own_limit(pod)
        return MemoryGrant(
            pod=cgroup_uid(pod),
            namespace=meta.namespace,
            name=meta.name,
            limits=limits if own is None else {uuid: min(limit, own) for uuid, limit in limits.items()},
            opted_out=meta.annotations.get(MEMORY_ENFORCEMENT_ANNOTATION, "").strip().lower() == "off",
            leaving=meta.deletion_timestamp is not None,
        )

    def _own_limit(self, pod: Pod) -> int | None:
        text = pod.metadata.annotations.get(MEMORY_LIMIT_ANNOTATION)
        if text is None:
            return None
        try:
            limit = integer_value(text)
        except ValueError as error:
            self.rejected_limits[PodUid(pod.metadata.uid)] = f"annotation {MEMORY_LIMIT_ANNOTATION} is ignored: {error}"
            return None
        if limit <= 0:
            self.rejected_limits[PodUid(pod.metadata.uid)] = (
                f"annotation {MEMORY_LIMIT_ANNOTATION} is ignored: {text!r} is not more than 0"
            )
            return None
        return limit


def shared_devices(offer: Advertisement) -> dict[str, AdvertisedDevice]:
    """The devices that several containers may hold at once, by UUID, each with one of its entries."""
    return {device.uuid: device for offered in offer.resources.values() for device in offered.devices if device.shared}


def share_of(device: AdvertisedDevice, total: int) -> int:
    """Bytes of one entry of a shared device.

    Args:
        device: the entry.
        total: bytes of the whole device.
    """
    return SHARING_RULES[device.kind].share_of_memory(total, device.replicas)


def cgroup_uid(pod: Pod) -> PodUid:
    """The UID that the cgroups of a pod carry."""
    mirrored = pod.metadata.annotations.get(MIRROR_ANNOTATION, "")
    return PodUid(mirrored if _HASH.fullmatch(mirrored) else pod.metadata.uid)


def _share(before: int, now: AdvertisedDevice | None, total: int) -> int:
    """Bytes of one entry for a pod: its earlier share or the present one, whichever is more; else the whole device."""
    return max(before, share_of(now, total)) if now is not None else before or total


def _entries(uuid: str, users: Sequence[DeviceUser]) -> dict[PodUid, int]:
    """The entries of a device that each pod holds, over all its containers; 0 for the whole device."""
    count: dict[PodUid, int] = {}
    for user in users:
        count[user.pod] = count.get(user.pod, 0) + len(user.ids)
    return count | {user.pod: 0 for user in users if uuid in user.ids}


def _groups(users: Sequence[DeviceUser]) -> list[tuple[set[PodUid], set[str]]]:
    """Parts the users of a device so that no entry is in two groups: the pods of each, and their entries."""
    groups: list[tuple[set[PodUid], set[str]]] = []
    for user in users:
        pods, ids = {user.pod}, set(user.ids)
        others = []
        for group in groups:
            if group[0].isdisjoint(pods) and group[1].isdisjoint(ids):
                others.append(group)
            else:
                pods, ids = pods | group[0], ids | group[1]
        groups = [*others, (pods, ids)]
    return groups
