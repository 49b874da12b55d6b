"""Slices by ResourceClaims. The node's Instaslice object records them, as slices by limits.

kube-scheduler binds no pod before all of its claims have an allocation, so the pod needs no gate: once the place of its
slices is on record, the claims are *granted*, which is written to their ``status.allocation``.

Rules:

1.  A claim that several pods use is asked for by the first of them. The others wait for it, and run where it is.
2.  Slices go back only once no claim is granted from them, whatever became of the pod: kube-controller-manager clears
    an allocation when no pod uses it any more. One that no pod reserved is cleared here. So is one whose slices are on
    record nowhere, as after a node was deleted: others may get its devices, and its next pod could not start.
3.  kube-scheduler clears an allocation when the node refuses the pod. Then the pod avoids the node for a while, and is
    placed again; on the same node at once if pods were preempted for it there.
4.  Nothing rests on what tenants may write into claims: which slices a claim has follows from the names of its devices,
    and the node's agent gives none that no promise to the claim's pods has.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tessera.api.dra.claims import RESOURCE_CLAIMS, DeviceClass, ResourceClaim
from tessera.api.dra.resource_slices import ResourceSlice
from tessera.api.names import DEVICE_API_DRA, DEVICE_API_LABEL, HOSTNAME_LABEL, NodeName, PodUid
from tessera.controller.filters.avoidance import AVOIDANCE_SECONDS
from tessera.controller.objects.pod_info import CLAIMS, PodInfo
from tessera.controller.slicing.claims.claim_profiles import ProfileReader
from tessera.controller.slicing.claims.grants import Grants
from tessera.controller.slicing.claims.published_devices import PublishedDevices
from tessera.controller.slicing.kinds.request_kind import RequestKind
from tessera.controller.slicing.state.allocation import Allocation, AllocationStep, will_never_run
from tessera.controller.slicing.state.instructions import PatchRecord
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.limits.pods import POD_SLICES
from tessera.mig.names import resource_spelling

#: What a node has whose slices go to claims, in the words of a refusal.
OFFER = f"slices for ResourceClaims (label {DEVICE_API_LABEL}={DEVICE_API_DRA})"


class Claims(RequestKind):
    """The claims of pods for slices of one driver.

    Args:
        state: the slicer's state.
        driver: the driver.
    """

    kind = CLAIMS
    records = RESOURCE_CLAIMS

    def __init__(self, state: SlicerState, driver: str) -> None:
        self._state = state
        self._published = PublishedDevices(driver)
        self._profiles = ProfileReader(driver, self._published)
        self.grants = Grants(self._published, self._profiles)
        #: Pods that name claims, as observed, and by claim the pods that name it; no set is empty.
        self._pods: dict[PodUid, PodInfo] = {}
        self._users: dict[str, set[PodUid]] = {}
        #: Pods to read again.
        self._stale: set[PodUid] = set()
        #: Pods whose node made kube-scheduler clear the allocation of a claim.
        self._refused: set[PodUid] = set()
        #: Why the slices that pods were given do not suit their claims; until classes or devices change.
        self._unsuited: dict[PodUid, str] = {}
        #: Pods at the gate of which no claim asks for slices of their own.
        self._free: set[PodUid] = set()
        #: Nodes that publish devices, and whose label says that they give them to claims.
        self._giving: set[NodeName] = set()
        #: Choices of which all nodes were asked whether they keep them.
        self._choices: set[str] = set()

    # What is observed -----------------------------------------------------------------------------------------------

    def observe(self, item: Any, *, deleted: bool) -> None:
        """See :class:`RequestKind`."""
        match item:
            case ResourceClaim():
                self._put_claim(item, deleted=deleted)
            case DeviceClass():
                self._put_class(item, deleted=deleted)
            case ResourceSlice():
                self._put_slice(item, deleted=deleted)
            case _:
                raise TypeError(f"{type(item).__name__} is nothing that claims depend on")

    def _put_claim(self, claim: ResourceClaim, *, deleted: bool) -> None:
        key = f"{claim.metadata.namespace}/{claim.metadata.name}"
        before = self.grants.put(key, None if deleted else claim)
        for node in {each.status.allocation.node for each in (before, claim) if each and each.status.allocation}:
            self._state.dirty_nodes.add(NodeName(node))
        users = self._users.get(key, set())
        for uid in users:
            allocation = self._state.allocations.current_of(uid)
            if allocation is not None:
                self._state.dirty_nodes.add(allocation.node)
                if before is not None and self.grants.is_cleared(before, None if deleted else claim, allocation):
                    self._refused.add(uid)
                    self._state.cluster.changed_pods.add(uid)
        if before is None or deleted or _turning_points(before) != _turning_points(claim):
            self._stale |= users

    def _put_class(self, item: DeviceClass, *, deleted: bool) -> None:
        known = self._profiles.classes.pop(item.metadata.name, None)
        if not deleted:
            self._profiles.classes[item.metadata.name] = item
        if deleted or known is None or known.spec != item.spec:
            self._read_all_again()

    def _put_slice(self, item: ResourceSlice, *, deleted: bool) -> None:
        before = self._published.sorts.keys()
        sorts = frozenset(before)
        node = self._published.put(item, deleted=deleted)
        if node is None:
            return
        if self._published.sorts.keys() != sorts:
            self._read_all_again()
        self._offer(node)
        self._state.dirty_nodes.add(node)

    def _read_all_again(self) -> None:
        self._profiles.forget()
        self._choices.clear()
        self._unsuited.clear()
        self._stale |= self._pods.keys()

    def observe_node(self, node: NodeName) -> None:
        """See :class:`RequestKind`; the label may choose the other way to give slices."""
        if self._gives(node) != (node in self._giving):
            self._offer(node)

    def _gives(self, node: NodeName) -> bool:
        facts = self._state.cluster.nodes.get(node)
        by_claims = facts is not None and facts.labels.get(DEVICE_API_LABEL) == DEVICE_API_DRA
        return by_claims and node in self._published.nodes

    def _offer(self, node: NodeName) -> None:
        gives = self._gives(node)
        (self._giving.add if gives else self._giving.discard)(node)
        found = {OFFER, *self._profiles.kept_by(node)} if gives else ()
        self._state.cluster.offer(node, CLAIMS.name, frozenset(found))

    def note_listed(self) -> None:
        """See :class:`RequestKind`."""
        self.grants.listed = True
        self._state.dirty_nodes |= self._state.cluster.nodes.keys()

    # Pods -----------------------------------------------------------------------------------------------------------

    def let_go(self) -> Iterable[PodInfo]:
        """See :class:`RequestKind`."""
        return [self._pods[uid] for uid in sorted(self._free)]

    def reread(self) -> Sequence[PodInfo]:
        """See :class:`RequestKind`."""
        stale, self._stale = self._stale, set()
        return [self._pods[uid] for uid in sorted(stale & self._pods.keys())]

    def forget(self, uid: PodUid) -> None:
        """See :class:`RequestKind`."""
        pod = self._pods.pop(uid, None)
        self._refused.discard(uid)
        self._free.discard(uid)
        self._unsuited.pop(uid, None)
        for key in pod.device_claims if pod is not None else ():
            users = self._users.get(key, set())
            users.discard(uid)
            self._stale |= users
            if not users:
                self._users.pop(key, None)
            self._wake_nodes(key)

    def _wake_nodes(self, key: str) -> None:
        claim = self.grants.claims.get(key)
        if claim is not None and claim.status.allocation is not None:
            self._state.dirty_nodes.add(NodeName(claim.status.allocation.node))

    def read(self, pod: PodInfo) -> PodInfo:
        """See :class:`RequestKind`."""
        if not pod.device_claims:
            return pod
        pod = self._as_observed(pod)
        self._note(pod)
        self._free.discard(pod.uid)
        if any(key not in self.grants.claims or self._is_going(key) for key in pod.device_claims):
            return pod  # one is still to be made
        asked: list[str] = []
        wanted, nodes = {OFFER}, dict[str, str]()
        problem, one_card = self._unsuited.get(pod.uid, ""), False
        for key in pod.device_claims:
            claim = self.grants.claims[key]
            found = self._profiles.read(claim)
            problem = problem or found.problem
            if found.profiles and self._asks(pod.uid, key):
                asked += found.profiles
                wanted.update(found.choices)
                one_card |= found.one_card
            elif claim.status.allocation is not None:
                nodes[claim.status.allocation.node] = key
            elif found.profiles:
                return pod  # another pod asks for it first
        if not asked and not problem:
            if pod.gated and not pod.earlier_gates and not will_never_run(pod):
                self._free.add(pod.uid)
            return pod
        for name in wanted - {OFFER}:
            self._offer_choice(name)
        if pod.profiles or pod.devices:
            problem = "asks for cards by limits and by ResourceClaims: use one of them, or two pods"
        if len(asked) > POD_SLICES:
            problem = problem or f"its ResourceClaims ask for {len(asked):,} slices; a pod has at most {POD_SLICES:d}"
            asked = asked[: int(POD_SLICES)]
        hosts = {host: node for node in nodes if node for host in self._hosts([node])}
        for (_, host), node in hosts.items():
            if pod.hostname and host != pod.hostname:
                problem = problem or (
                    f"its node selector names {HOSTNAME_LABEL}={pod.hostname}, but its ResourceClaim {nodes[node]} is"
                    f" granted on node {node}, and a pod runs where its claims are: make the pod without the selector"
                )
        constraints = replace(
            pod.constraints,
            selector=tuple(sorted({*pod.constraints.selector, *hosts})),
            devices=frozenset(wanted),
        )
        return replace(
            pod,
            profiles=tuple(asked),
            one_card=one_card and len(asked) > 1,
            other_kind=CLAIMS,
            constraints=constraints,
            fault=pod.fault or problem,
        )

    def _is_going(self, key: str) -> bool:
        """True for a claim that is being deleted and has nothing: kube-scheduler waits for the next of its name."""
        claim = self.grants.claims[key]
        return claim.metadata.deletion_timestamp is not None and claim.status.allocation is None

    def _hosts(self, nodes: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yields the selector of each node where the pod must run, since a claim is granted there."""
        for node in nodes:
            facts = self._state.cluster.nodes.get(NodeName(node))
            yield HOSTNAME_LABEL, facts.hostname if facts is not None else node

    def _as_observed(self, pod: PodInfo) -> PodInfo:
        """Returns a pod without what :meth:`read` added, since the cycle may have it read once more."""
        known = self._pods.get(pod.uid)
        if known is None or pod.other_kind != CLAIMS:
            return pod
        return replace(
            pod,
            profiles=known.profiles,
            one_card=known.one_card,
            other_kind=known.other_kind,
            constraints=known.constraints,
            fault=known.fault,
        )

    def _note(self, pod: PodInfo) -> None:
        known = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        if known is not None and known.device_claims != pod.device_claims:
            for key in set(known.device_claims) - set(pod.device_claims):
                self._users.get(key, set()).discard(pod.uid)
        for key in pod.device_claims:
            users = self._users.setdefault(key, set())
            if pod.uid not in users:  # it may be older than the one that asks
                self._stale |= self._first_of(users)
            users.add(pod.uid)
        if will_never_run(pod) and (known is None or not will_never_run(known)):
            for key in pod.device_claims:  # the next of its users asks now
                self._stale |= self._users[key] - {pod.uid}
                self._wake_nodes(key)

    def _offer_choice(self, name: str) -> None:
        """Has all nodes say whether they keep a choice, once for each choice."""
        if name not in self._choices:
            self._choices.add(name)
            for node in self._published.nodes:
                self._offer(node)

    def _asks(self, uid: PodUid, key: str) -> bool:
        """True if the slices of a claim are this pod's: they are granted from its own, or it is the first to use it."""
        claim = self.grants.claims[key]
        if claim.status.allocation is not None:
            return any(self.grants.is_from(claim, each) for each in self._state.allocations.of(uid))
        return uid in self._first_of(self._users[key])

    def _first_of(self, users: Iterable[PodUid]) -> set[PodUid]:
        """Returns the first of pods that may run, as a set; one that has slices already stays the first."""
        current = self._state.allocations.current_of
        pods = (self._pods[uid] for uid in users)
        living = [(current(each.uid) is None, each.created, each.uid) for each in pods if not will_never_run(each)]
        return {min(living)[2]} if living else set()

    def absorb_node(self, node: NodeName, *, renewed: bool) -> Iterator[Allocation]:
        """See :class:`RequestKind`; pods whose slices are known now may ask for those of granted claims."""
        if renewed:
            self._stale |= {each.uid for each in self._state.allocations.on(node)} & self._pods.keys()
        yield from ()

    def refused(self, pod: PodInfo) -> Allocation | None:
        """See :class:`RequestKind`; rule 3. Slices that the pod does not ask for any more go back too."""
        cleared = pod.uid in self._refused
        self._refused.discard(pod.uid)
        own = self._state.allocations.current_of(pod.uid)
        if own is None or pod.node or pod.uid not in self._pods:
            return None
        if pod.fault or sorted(pod.profiles) != sorted(resource_spelling(each.profile) for each in own.slices):
            return own
        if not cleared or pod.preempting:
            return None
        self._state.avoidance.add(pod.avoids_as, own.node, self._state.monotonic + AVOIDANCE_SECONDS)
        return own

    # Grants ---------------------------------------------------------------------------------------------------------

    def accompany(self, allocation: Allocation, step: AllocationStep) -> tuple[Sequence[PatchRecord], bool]:
        """See :class:`RequestKind`."""
        if step in (AllocationStep.REQUEST, AllocationStep.WAIT):
            return (), True
        if step in (AllocationStep.UNGATE, AllocationStep.SETTLED):
            pod = self._pods.get(allocation.uid)
            if pod is None or not allocation.requested:
                return (), True
            found = self.grants.give(allocation, self._own_claims(pod), self._state.now)
            if isinstance(found, str):
                self._unsuited[pod.uid] = found
                self._stale.add(pod.uid)
                return (), False
            return found
        return self.grants.take_back(allocation, self._is_used)

    def lost(self, node: NodeName) -> Sequence[PatchRecord]:
        """See :class:`RequestKind`; rule 2."""
        return () if node in self._state.faults else self.grants.lost(node, self._state.allocations.on(node))

    def _own_claims(self, pod: PodInfo) -> list[str]:
        """Returns the claims that are to be granted from a pod's slices."""
        known = {key: self.grants.claims[key] for key in pod.device_claims if key in self.grants.claims}
        return [key for key, claim in known.items() if self._profiles.read(claim).profiles and self._asks(pod.uid, key)]

    def _is_used(self, key: str) -> bool:
        users: Iterable[PodInfo] = (self._pods[uid] for uid in self._users.get(key, ()))
        return any(not will_never_run(each) for each in users)


def _turning_points(claim: ResourceClaim) -> tuple[bool, bool]:
    """What changes the request of the pods that use a claim."""
    return claim.status.allocation is None, claim.metadata.deletion_timestamp is None
