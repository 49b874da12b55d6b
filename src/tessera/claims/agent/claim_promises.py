"""Finds the promise that serves a ResourceClaim, and tells the state machine which promises serve claims.

The controller promises slices to a pod, whether the pod asks for them by limits or by claims; then it writes the same
places into ``status.allocation`` of the pod's claims. The API server checks nothing of an allocation. So a device is
handed out only if the promise to a pod that may use the claim has its place, and no other claim or container got that
place. A forged ``status.reservedFor`` may name a pod of another tenant, so promise and claim must be of one namespace.
Where it names a group of pods, the pods of this node whose spec names the claim may use it.

A promise may outlive its pod: then it serves the next pod that shares the claim, which it may never have served before.
A promise precedes its allocation on the API server, so a claim is refused at once for which none is there. Where
kube-scheduler's allocator places, the promise follows its allocation, once the device's former promise has gone: so a
claim waits for it, and a claim of a template never takes what another pod has left.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from tessera.agent.base.node_objects import ApiMirror
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.wake_ups import Fact
from tessera.agent.inventory.sliceable_gpus import SlicePosition
from tessera.agent.slices.events import PromiseServes, SlicePromise
from tessera.agent.slices.instaslice_status import instaslice_event
from tessera.agent.slices.slice_table import claim_of
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.names import PodUid
from tessera.claims.agent.claim_files import bind_claim, refusing
from tessera.claims.agent.prepared_claims import PreparedClaims
from tessera.controller.objects.pod_constraints import read_device_claims
from tessera.dra.claims import ResourceClaim
from tessera.kubelet.interfaces import PluginError
from tessera.mig.names import CLAIMED_SHARE

#: API group of PodGroups. A claim that one names is reserved for it, and not for its pods (KEP 5729, Kubernetes 1.37).
GROUPS = "scheduling.k8s.io"


class ClaimPromises:
    """The promises of this node that serve claims.

    Args:
        runtime: clock, change notifier and mirror of this agent.
        machine: the slices and their owners.
        prepared: the prepared claims, and the pods whose promises serve them.

    Attributes:
        follows: promises follow the allocations of kube-scheduler.
    """

    def __init__(self, runtime: AgentRuntime, machine: SliceStateMachine, prepared: PreparedClaims) -> None:
        self._clock = runtime.clock
        self._changes = runtime.changes.about(Fact.SLICES)
        self._mirror: ApiMirror = runtime.mirror
        self._machine = machine
        self._slices = machine.table
        self._prepared = prepared
        self.follows = runtime.options.claim_placement == "scheduler"
        #: By position that is about to be handed out, the UID of its claim.
        self._reserved: dict[SlicePosition, str] = {}

    def adopt(self) -> None:
        """Tells the machine the claims that are prepared; before it decides anything."""
        for uid, claim in self._prepared.items():
            if (pod := self._prepared.promise(uid)) is not None:
                bind_claim(self._machine, uid, pod, claim.slices())
        self.settle(*self._prepared.pods())

    def settle(self, *pods: PodUid) -> None:
        """Tells the machine which of these pods' promises serve claims now."""
        for pod in pods:
            self._machine.handle(PromiseServes(pod, self._prepared.serves(pod)))
        if pods:
            self._changes.notify(Fact.SLICES)

    def leave(self, uid: str) -> None:
        """Tells the machine that no container can use the slices of a claim any more."""
        pods = self._pods_of(uid)
        for pod in pods:
            bind_claim(self._machine, uid, pod)
        self.settle(*pods)
        self.forget()

    def _pods_of(self, uid: str) -> set[PodUid]:
        """The pods whose slices a claim has, also if its note is lost."""
        bindings, noted = self._slices.bindings, self._prepared.promise(uid)
        bound = {pod for pod, devices in bindings.items() if any(claim_of(device) == uid for device in devices)}
        return bound if noted is None else bound | {noted}

    def forget(self) -> None:
        """Forgets the claims that are not prepared and whose promise is gone.

        Raises:
            PluginError: this cannot be noted on the disk.
        """
        with refusing("the claim cannot be forgotten on this node"):
            self.settle(*self._prepared.forget(self._slices.promises))

    # Which promise ----------------------------------------------------------------------------------------------

    async def find(self, claim: ResourceClaim, positions: Collection[SlicePosition], deadline: float) -> PodUid:
        """The pod whose promise has these positions; the promise may reach the node after the allocation.

        Args:
            claim: the claim, as the API server has it now.
            positions: of its devices.
            deadline: time until which to wait, monotonic seconds.

        Raises:
            PluginError: no promise may serve the claim; the text gives the reason and the next step for the user.
        """
        pods = self._candidates(claim)

        def missing(pod: PodUid) -> list[str]:
            return sorted(each.device_id for each in positions if not self._slices.is_promised(pod, each))

        def serving() -> list[PodUid]:
            return [pod for pod in pods if not missing(pod) and self._is_neighbour(pod, claim)]

        if not serving():
            stored = await self._read_promises(claim.metadata.namespace, positions)
            others = [each for each in stored if each.pod not in pods and self._may_inherit(claim, each.pod)]
            left = [each.pod for each in others if await self._is_left(each)]
            pods = [*pods, *left]
            for pod in left:
                self._machine.handle(PromiseServes(pod, prepared=True))
            comes = self.follows or any(each.pod in pods for each in stored)
            if not (comes and await self._wait_until(lambda: bool(serving()), deadline)):
                self.settle(*left)
                self._refuse(claim, pods, min((missing(pod) for pod in pods), key=len, default=[]))
        return serving()[0]

    async def find_shares(self, claim: ResourceClaim, gpus: Sequence[str], deadline: float) -> Sequence[SlicePosition]:
        """Positions for shares of these cards, in a promise that follows the claim; no other claim has them.

        ``shareID`` is made up by kube-scheduler, and the shares of a card are alike: only their number counts.

        Raises:
            PluginError: no promise has as many; the text gives the reason.
        """
        pods = self._candidates(claim)

        def free() -> Sequence[SlicePosition]:
            return next((found for pod in pods if (found := self._free_shares(pod, claim, gpus))), ())

        if not await self._wait_until(lambda: bool(free()), deadline):
            self._refuse(claim, pods, ())
        return free()

    def _free_shares(self, pod: PodUid, claim: ResourceClaim, gpus: Sequence[str]) -> Sequence[SlicePosition]:
        if pod not in self._slices.promises or not self._is_neighbour(pod, claim):
            return ()
        bound = {each: claim_of(device) for device, each in self._slices.bindings_of(pod).items()} | self._reserved
        shares = [each.position for each in self._slices.promises[pod].slices]
        free = sorted(
            each
            for each in shares
            if each.profile == CLAIMED_SHARE and bound.get(each, claim.metadata.uid) == claim.metadata.uid
        )
        found: list[SlicePosition] = []
        for gpu in gpus:
            found += [each for each in free if each.gpu == gpu and each not in found][:1]
        return found if len(found) == len(gpus) else ()

    def _candidates(self, claim: ResourceClaim) -> Sequence[PodUid]:
        """The pods whose promise may serve a claim: those that may use it, after the one that it served it before."""
        before = self._prepared.promise(claim.metadata.uid)
        reserved = claim.status.reserved_for
        users = [each.uid for each in reserved if each.resource == "pods" and not each.api_group]
        if any(each.api_group == GROUPS for each in reserved):
            key = f"{claim.metadata.namespace}/{claim.metadata.name}"
            users += [each.metadata.uid for each in self._mirror.live_pods() if key in read_device_claims(each)]
        pods = [*([before] if before is not None else []), *map(PodUid, users)]
        if not pods:
            raise PluginError(f"{_name(claim)}: status.reservedFor names no pod that uses it")
        return list(dict.fromkeys(pods))

    def _is_neighbour(self, pod: PodUid, claim: ResourceClaim) -> bool:
        return self._slices.promises[pod].namespace == claim.metadata.namespace

    async def _read_promises(self, namespace: str, positions: Collection[SlicePosition]) -> Sequence[SlicePromise]:
        """The promises to pods of a namespace that have all these positions, as the API server has them now."""
        with _asking("whether devices are promised"):
            promises = instaslice_event(await self._mirror.read_instaslice()).promises.values()
        places = {each.pod: {one.position for one in each.slices} for each in promises}
        return [each for each in promises if each.namespace == namespace and places[each.pod].issuperset(positions)]

    def _may_inherit(self, claim: ResourceClaim, pod: PodUid) -> bool:
        return not (self.follows and claim.pod) or claim.pod == pod

    async def _is_left(self, promise: SlicePromise) -> bool:
        """True if a promise outlives its pod: the controller keeps it only for those that share the pod's claim."""
        if promise.pod in self._slices.pods:
            return self._slices.pods[promise.pod]
        with _asking("whether the pod of a promise exists"):
            return not await self._mirror.exists(promise.pod, promise.name, promise.namespace)

    def _refuse(self, claim: ResourceClaim, pods: Sequence[PodUid], missing: Sequence[str]) -> None:
        names = ", ".join(missing)
        if self.follows:
            raise PluginError(
                f"{_name(claim)}: Tessera's controller has not recorded {names or 'its devices'} for a pod of"
                " status.reservedFor: another pod still has them, or no controller runs; kubelet tries again"
            )
        strangers = [pod for pod in pods if pod in self._slices.promises and not self._is_neighbour(pod, claim)]
        if any(self._slices.is_released(pod) and pod in self._slices.promises for pod in pods):
            raise PluginError(f"{_name(claim)}: {names}: former slices are still being released; kubelet tries again")
        if strangers:
            owner = self._slices.promises[strangers[0]]
            text = f"the promise to {owner.namespace}/{owner.name} serves claims of namespace {owner.namespace} only"
        else:
            text = f"Tessera's controller promised {names or 'its devices'} to no pod of status.reservedFor"
        raise PluginError(
            f"{_name(claim)}: {text}: somebody else wrote its status.allocation; delete the claim and its pods, and "
            "create them again"
        )

    # Who has a place --------------------------------------------------------------------------------------------

    @contextmanager
    def reserve(self, uid: str, pod: PodUid, positions: Collection[SlicePosition]) -> Iterator[None]:
        """Keeps positions of a promise for one claim while they are handed out.

        Raises:
            PluginError: another claim, or a container that asked by limits, has one of them.
        """
        taken = {each: claim_of(device) for device, each in self._slices.bindings_of(pod).items()} | self._reserved
        for position in positions:
            if taken.get(position, uid) != uid:
                raise PluginError(f"{position.device_id} is held by {self._holder(taken[position])}")
        former = self._pods_of(uid) - {pod}
        for each in former:
            bind_claim(self._machine, uid, each)
        self._reserved.update(dict.fromkeys(positions, uid))
        self._machine.handle(PromiseServes(pod, prepared=True))
        self._changes.notify(Fact.SLICES)
        try:
            yield
        finally:
            for position in positions:
                self._reserved.pop(position, None)
            self.settle(pod, *former)

    def _holder(self, uid: str) -> str:
        known = self._prepared.get(uid)
        if known is not None:
            return f"claim {known.namespace}/{known.name}"
        return f"the claim with UID {uid}" if uid else "a container of the pod that asked for it by limits"

    async def _wait_until(self, condition: Callable[[], bool], deadline: float) -> bool:
        return await self._changes.wait_until(condition, max(0.0, deadline - self._clock.monotonic()))


def _name(claim: ResourceClaim) -> str:
    return f"claim {claim.metadata.namespace}/{claim.metadata.name}"


@contextmanager
def _asking(what: str) -> Iterator[None]:
    try:
        yield
    except ConnectionError as error:
        raise PluginError(f"the API server did not say {what}: {error}") from error
