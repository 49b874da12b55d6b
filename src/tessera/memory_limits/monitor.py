"""Samples the memory of shared cards, and passes the policy's decisions to the enforcement.

The monitor reads the shares that pods were given from kubelet, and the memory that they use from NVML and the kernel.
:mod:`tessera.memory_limits.policy` decides.
:mod:`tessera.memory_limits.enforcement` reads everything again, and then carries the decisions out.

Rules:

- The monitor does not read a card or MIG device that is not shared. It reads a shared one often while a pod holds or
  uses a share, and seldom otherwise.
- Without an answer of kubelet there is no decision: the limit of a pod comes only from the share that it was given. A
  share is not computed from an impossible size, since it is kept as long as the pod lives. Pods that came while no
  share was recorded (the file was lost, enforcement was off) may use the whole card.
- In mode ``observe`` a pod gets one event when it exceeds its limit; from ``warn`` on it also gets one when it comes
  near.
- A process without a pod that the kernel proves counts in one metric and nowhere else.

Shares of cards that ResourceClaims have are brought into the form of those by limits: the memory watch treats both
alike.

The memory of each shared card that each pod was given is computed from kubelet's list and the offer by pure functions.
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

import logging
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tessera.agent.base.node_files import StateFile
from tessera.agent.base.runtime import AgentRuntime, MemoryUsage
from tessera.agent.base.settings import EnforcementMode
from tessera.agent.base.wake_ups import Fact
from tessera.agent.inventory.device_state import DeviceUser
from tessera.agent.inventory.sliceable_gpus import SliceableGpus, SlicePosition
from tessera.agent.satellites import MemoryInputs, MemoryWatch
from tessera.api.names import MEMORY_ENFORCEMENT_ANNOTATION, MEMORY_LIMIT_ANNOTATION, PodUid
from tessera.api.sharing.devices import SHARING_RULES, AdvertisedDevice, AdvertisedResource, Advertisement
from tessera.kube.eviction import Evictor
from tessera.kube.quantity import integer_value
from tessera.kube.resources import Pod
from tessera.memory_limits.enforcement import MemoryEnforcement, ProcessMemoryReader
from tessera.memory_limits.policy import (
    CardUse,
    MemoryAction,
    MemoryGrant,
    MemoryPolicy,
    MemoryRules,
    MemorySample,
    is_plausible_total,
    sum_by_pod,
)
from tessera.mig.names import CLAIMED_SHARE

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


def add_offer(offer: Advertisement, cards: SliceableGpus) -> Advertisement:
    """Returns an offer with the cards that claims get in shares."""
    devices = tuple(
        AdvertisedDevice(
            id=card.uuid,
            uuid=card.uuid,
            gpu=card.uuid,
            index=str(card.info.index),
            replicas=card.shares.count,
            kind=card.shares.kind,
        )
        for card in cards.gpus
        if card.shares is not None
    )
    if not devices:
        return offer
    shared = AdvertisedResource(name=CLAIMED_SHARE, devices=devices)
    return msgspec.structs.replace(offer, resources={**offer.resources, CLAIMED_SHARE: shared})


def add_users(
    users: Mapping[str, Sequence[DeviceUser]], held: Iterable[tuple[PodUid, SlicePosition]], pods: Iterable[Pod]
) -> Mapping[str, Sequence[DeviceUser]]:
    """Returns the users of devices with the pods that have shares of cards by claims."""
    living = {PodUid(pod.metadata.uid): pod.metadata for pod in pods}
    found = {uuid: list(each) for uuid, each in users.items()}
    for uid, position in held:
        meta = living.get(uid)
        if meta is not None and position.profile == CLAIMED_SHARE:
            user = DeviceUser(
                pod=uid,
                namespace=meta.namespace,
                name=meta.name,
                container="",
                resource=CLAIMED_SHARE,
                ids=(f"{position.gpu}::{position.start}",),
            )
            found.setdefault(position.gpu, []).append(user)
    return found


_log = logging.getLogger(__name__)


#: Seconds between two samples while a pod holds or uses a share.
PERIOD = 5.0
#: Seconds between two samples of shared cards that no pod holds or uses.
IDLE_PERIOD = 60.0


class MemoryMonitor(MemoryWatch):
    """Watches the memory of one node's shared cards.

    Args:
        runtime: metrics, the clock, and the file of the share that each pod was given when it came.
        reader: reads cards.
        policy: decides.
        enforcement: carries decisions out.
        inputs: inputs from the rest of the agent.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        reader: ProcessMemoryReader,
        policy: MemoryPolicy,
        enforcement: MemoryEnforcement,
        inputs: MemoryInputs,
    ) -> None:
        self._reader = reader
        self._policy = policy
        self._enforcement = enforcement
        self._inputs = inputs
        self._shares_file = runtime.state_file("shares.json")
        self._changes = runtime.changes
        self._clock = runtime.clock
        #: The agent's own pod; it may use any card without a grant.
        self._own_pod = reader.own_pod()
        self._file: StateFile[Shares] = StateFile(self._shares_file, Shares)
        stored = self._file.load()
        self._grants = MemoryGrants(stored)
        #: True if no record has the shares of the pods that are here already; false after the first sample.
        self._without_record = stored is None
        #: Pods with an event that their annotation is rejected.
        self._reported: set[PodUid] = set()
        #: By pod and card, the memory of the last sample, for the metrics.
        self._usage: tuple[MemoryUsage, ...] = ()
        #: By card, the used bytes of the last sample that no pod is proven to hold, for the metrics.
        self._unattributed: Mapping[str, int] = {}
        runtime.recorders.attach("memory", policy)
        runtime.metrics.show_memory(self.memory_usage, lambda: self._unattributed)

    def memory_usage(self) -> Sequence[MemoryUsage]:
        """Memory of shared cards by pod, of the last sample."""
        return self._usage

    async def run(self) -> None:
        """Samples until cancelled; not at all in mode ``off``."""
        if self._policy.rules.mode is EnforcementMode.OFF:
            self._delete_shares()
            return
        while True:
            watches = bool(self._watched_devices())
            changes = self._changes.about(Fact.OFFER | Fact.SLICES | Fact.PODS if watches else Fact.OFFER)
            count = changes.count
            busy = await self.take_sample()
            if not busy:  # a pod that has just come uses nothing yet
                await changes.wait(count, IDLE_PERIOD - PERIOD if watches else None)
            await self._clock.sleep(PERIOD)

    async def take_sample(self) -> bool:
        """Takes one sample and carries out the decisions; returns true if any pod holds or uses a share, or may."""
        cards, grants = await self._read()
        pods = {cgroup_uid(pod): pod for pod in self._inputs.live_pods()}
        self._update_metrics(cards, grants, pods)
        self._report_rejected_limits()
        sample = MemorySample(
            now=self._clock.monotonic(), cards=cards, grants=grants, api_reachable=self._inputs.api_reachable()
        )
        by_device = {card.device: card for card in cards}
        for decision in self._policy.handle(sample):
            if decision.action is not MemoryAction.STRANGER or decision.pod != self._own_pod:
                await self._enforcement.enforce(decision, by_device[decision.device], pods)
        held = any(self._grants.shares.values())  # also while kubelet does not answer
        return held or bool(grants) or any(card.uses for card in cards)

    async def _read(self) -> tuple[tuple[CardUse, ...], tuple[MemoryGrant, ...]]:
        """The shared cards that can be read, and the pods' grants; both empty if kubelet does not answer."""
        watched = self._watched_devices()
        if not watched and not self._without_record:
            return (), ()
        try:
            users = add_users(await self._inputs.read_users(), self._inputs.held(), self._inputs.live_pods())
        except ConnectionError as error:
            _log.warning(
                "memory of shared cards is not checked: kubelet did not list the pods that hold them: %s", error
            )
            return (), ()
        if self._without_record:
            self._without_record = False
            self._grants.without_record = frozenset((device, each.pod) for device in users for each in users[device])
        cards = tuple([card for device in watched if (card := await self._reader.read(device)) is not None])
        totals = {card.device: card.total for card in cards if is_plausible_total(card.total)}
        grants = self._grants.update(users, self._offer(), totals, self._inputs.live_pods())
        self._save_shares()
        return cards, self._grants.divide(grants, users, cards)

    def _watched_devices(self) -> Sequence[str]:
        """Devices that are shared now, and those of which pods still hold earlier shares."""
        held = {device for device, pods in self._grants.shares.items() if pods}
        return sorted(held | shared_devices(self._offer()).keys())

    def _offer(self) -> Advertisement:
        return add_offer(self._inputs.offer(), self._inputs.cards())

    def _save_shares(self) -> None:
        self._file.save_if_possible(self._grants.shares, "the shares of pods are not kept")

    def _delete_shares(self) -> None:
        """Deletes the file: in mode ``off`` no shares are recorded, so it would be wrong once the mode changes."""
        try:
            self._shares_file.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("the file with the shares of pods cannot be deleted: %s", error)

    def _update_metrics(
        self, cards: Sequence[CardUse], grants: Sequence[MemoryGrant], pods: Mapping[PodUid, Pod]
    ) -> None:
        limits = {(device, grant.pod): limit for grant in grants for device, limit in grant.limits.items()}
        used = {(card.device, pod): amount for card in cards for pod, amount in sum_by_pod(card.uses).items()}
        self._usage = tuple(
            MemoryUsage(
                namespace=pods[uid].metadata.namespace,
                pod=pods[uid].metadata.name,
                gpu=device,
                used=used.get((device, uid), 0),
                limit=limits.get((device, uid), 0),
            )
            for device, uid in sorted(limits.keys() | used.keys())
            if uid in pods
        )
        self._unattributed = {card.device: max(0, card.used - sum(sum_by_pod(card.uses).values())) for card in cards}

    def _report_rejected_limits(self) -> None:
        """Records on each pod once that its annotation is rejected."""
        rejected = self._grants.rejected_limits
        for pod in self._inputs.live_pods():
            uid = PodUid(pod.metadata.uid)
            if uid in rejected and uid not in self._reported:
                self._enforcement.report_rejected_limit(pod, rejected[uid])
        self._reported = set(rejected)


def watch_memory(runtime: AgentRuntime, inputs: MemoryInputs) -> MemoryMonitor:
    """Makes the monitor of a node, with the mode of the agent's options."""
    mode = runtime.options.memory_limits
    reader = ProcessMemoryReader(runtime.hardware, runtime.processes)
    return MemoryMonitor(
        runtime,
        reader=reader,
        policy=MemoryPolicy(MemoryRules(mode=mode)),
        enforcement=MemoryEnforcement(
            mode=mode,
            processes=runtime.processes,
            read_card=reader.read,
            evictor=Evictor(runtime.client),
            record=runtime.object_events.record_on_pod,
            metrics=runtime.metrics,
        ),
        inputs=inputs,
    )
