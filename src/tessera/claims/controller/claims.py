"""Slices by ResourceClaims. The node's Instaslice object records them, as slices by limits.

kube-scheduler binds no pod before all of its claims have an allocation, so the pod needs no gate: once the place of its
slices is on record, the claims are allocated, which is written to their ``status.allocation``.

Rules:

1.  A claim that several pods use is asked for by the first of them (:mod:`.claim_users`).
2.  Slices go back only once no claim is allocated from them, whatever became of the pod: kube-controller-manager clears
    an allocation when no pod uses it any more. One that no pod reserved is cleared here. So is one whose slices are on
    record nowhere, as after a node was deleted: others may get its devices, and its next pod could not start.
3.  kube-scheduler clears an allocation when the node refuses the pod. Then the pod avoids the node for a while, and is
    placed again; on the same node at once if pods were preempted for it there.
4.  Nothing rests on what tenants may write into claims: which slices a claim has follows from the names of its devices,
    and the node's agent gives none that no promise to the claim's pods has.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from tessera.api.names import HOSTNAME_LABEL, NodeName, PodUid, gives_by_claims
from tessera.claims.controller.claim_allocations import ClaimAllocations, ClaimEvents
from tessera.claims.controller.claim_profiles import ClaimProfiles, ProfileReader, spec_key
from tessera.claims.controller.claim_users import ClaimUsers, named_claims
from tessera.claims.controller.published_devices import PublishedDevices, Sort
from tessera.controller.cluster.filters import AVOIDANCE_SECONDS
from tessera.controller.objects.node_info import CLAIMS_OFFER
from tessera.controller.objects.pod_info import CLAIMS, PodInfo
from tessera.controller.slicing.kinds import RequestKind
from tessera.controller.slicing.state.allocation import Allocation, AllocationStep, CardNames, will_never_run
from tessera.controller.slicing.state.instructions import PatchRecord, RecordEvent
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.dra.claims import RESOURCE_CLAIMS, AllocatedDevice, DeviceClass, ResourceClaim
from tessera.dra.limits import NAMESPACE_CARD_CHOICES
from tessera.dra.resource_slices import ResourceSlice
from tessera.limits import POD_SLICES
from tessera.mig.names import plain_profile, resource_spelling
from tessera.placement.demand import CardRule, CardSpread

#: Between two readings of pods that are refused for now.
READ_AGAIN_SECONDS = 60.0


class _Asked(NamedTuple):
    """What the claims of one pod ask for.

    Attributes:
        profiles: one for each device.
        choices: the choices that a node must keep.
        hosts: by the hostname of each node where other claims are allocated, that node and such a claim.
        spread: how the devices lie on cards.
        problem: why no device is given; empty if nothing is wrong.
        for_now: the problem may end without a change of the claims.
    """

    profiles: tuple[str, ...]
    choices: frozenset[str]
    hosts: Mapping[str, tuple[str, str]]
    spread: CardSpread
    problem: str
    for_now: bool


def find_mixture(pod: PodInfo) -> str:
    """Returns the fault of a pod whose claims ask for devices, if it asks by limits too; else an empty text."""
    if pod.profiles or pod.devices:
        return "asks for cards by limits and by ResourceClaims: use one of them, or two pods"
    return ""


def _find_fault(pod: PodInfo, asked: _Asked) -> str:
    if mixture := find_mixture(pod):
        return mixture
    if not asked.problem and len(asked.profiles) > POD_SLICES:
        return f"its ResourceClaims ask for {len(asked.profiles):,} slices; a pod has at most {POD_SLICES:d}"
    if asked.problem or not pod.hostname:
        return asked.problem
    for node, key in (found for host, found in asked.hosts.items() if host != pod.hostname):
        return (
            f"its node selector names {HOSTNAME_LABEL}={pod.hostname}, but its ResourceClaim {key} is allocated on node"
            f" {node}, and a pod runs where its claims are: make the pod without the selector"
        )
    return ""


class Claims(RequestKind):
    """The claims of pods for slices of one driver.

    Args:
        state: the slicer's state.
        driver: the driver.

    Attributes:
        allocated: the claims, and their allocations.
        users: the pods that use them.
    """

    kind = CLAIMS
    records = RESOURCE_CLAIMS

    def __init__(self, state: SlicerState, driver: str) -> None:
        self._state = state
        self._published = PublishedDevices(driver)
        self._profiles = ProfileReader(driver, self._published)
        self.allocated = ClaimAllocations(self._published, self._profiles)
        self.users = ClaimUsers(state)
        self._told = ClaimEvents(self.allocated.claims)
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
        #: By namespace the pods that are refused for now, those that were refused last behind; none is empty.
        self._refused_for_now: dict[str, dict[PodUid, None]] = {}
        #: When they were read again, monotonic seconds.
        self._read_again_at = 0.0
        #: Choices of which all nodes were asked whether they keep them.
        self._choices: set[str] = set()
        #: True if nodes publish other devices since claims that depend on their number were read.
        self._recount = False
        #: True if cards may have names that are forgotten.
        self._has_old_names = False

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
        before = self.allocated.put(key, None if deleted else claim)
        for node in {each.status.allocation.node for each in (before, claim) if each and each.status.allocation}:
            self._state.dirty_nodes.add(NodeName(node))
        cleared: set[PodUid] = set()
        for uid in (each.uid for each in self.users.holders(key)):
            allocation = self._state.allocations.current_of(uid)
            if allocation is not None:
                self._state.dirty_nodes.add(allocation.node)
                if before is not None and self.allocated.is_cleared(before, None if deleted else claim, allocation):
                    cleared.add(uid)
        self._refused |= cleared
        self._state.cluster.changed_pods |= cleared
        if deleted:
            self._told.forget(key)
        elif before is not None:
            self._note_change(key, before, claim, cleared)
        if before is None or deleted or _turning_points(before) != _turning_points(claim):
            self._stale.update(self.users.of(key))

    def _note_change(self, key: str, before: ResourceClaim, claim: ResourceClaim, cleared: AbstractSet[PodUid]) -> None:
        """Queues what a claim is told of its new allocation, or of the end of the last one."""
        was, now, pod = before.status.allocation, claim.status.allocation, self.users.first(key)
        if was is None and now is not None and pod is not None and self._asks(pod.uid, key):
            self._state.events += self._told.note_allocated(key, self._taken(claim), pod)
        elif was is not None and now is None and (had := self._taken(before)) and not claim.metadata.deletion_timestamp:
            refused = pod is not None and pod.uid in cleared and not pod.node
            self._state.events += self._told.note_cleared(key, had, was.node, pod=pod, refused=refused)

    def _taken(self, claim: ResourceClaim) -> list[AllocatedDevice]:
        found = claim.status.allocation
        return [each for each in found.devices.results if self.allocated.is_taken(each)] if found is not None else []

    def repeat(self, event: RecordEvent) -> Iterator[RecordEvent]:
        """See :class:`RequestKind`; for the claims that the pod asks for, and those that ask for what nobody gives."""
        pod = self.users.pods.get(PodUid(event.uid)) if not event.kind else None
        if pod is not None:
            yield from self._told.repeat(event, islice(self._asked_by(pod), int(POD_SLICES)))

    def _asked_by(self, pod: PodInfo) -> Iterator[str]:
        for key in pod.device_claims:
            claim = self.allocated.claims.get(key)
            found = self._profiles.read(claim) if claim is not None else None
            if found is not None and (found.problem or (found.profiles and self._asks(pod.uid, key))):
                yield key

    def _put_class(self, item: DeviceClass, *, deleted: bool) -> None:
        known = self._profiles.classes.pop(item.metadata.name, None)
        if not deleted:
            self._profiles.classes[item.metadata.name] = item
        if deleted or known is None or known.spec != item.spec:
            self._read_all_again()

    def _put_slice(self, item: ResourceSlice, *, deleted: bool) -> None:
        sorts = frozenset(self._published.sorts)
        self._absorb(self._published.put(item, self._state.monotonic, deleted=deleted), sorts)

    def _absorb(self, node: NodeName | None, sorts: frozenset[Sort]) -> None:
        """Brings all in line with a node whose devices have changed; ``sorts`` are those before."""
        if node is None:
            return
        if self._published.sorts.keys() != sorts:
            self._read_all_again()
        self._recount = True
        self._offer(node)
        self._state.dirty_nodes.add(node)

    def _read_all_again(self) -> None:
        self._profiles.forget()
        self._choices.clear()
        self._has_old_names = True
        self._unsuited.clear()
        self._stale |= self.users.pods.keys()

    def observe_node(self, node: NodeName) -> None:
        """See :class:`RequestKind`; the label may choose the other way to give slices."""
        if node in self._published.late:
            sorts = frozenset(self._published.sorts)
            self._absorb(self._published.read_again(node, self._state.monotonic), sorts)
        if self._gives(node) != (node in self._giving):
            self._offer(node)
        if self._state.monotonic >= self._read_again_at + READ_AGAIN_SECONDS:
            self._read_again_at = self._state.monotonic
            self._read_refused_again(int(NAMESPACE_CARD_CHOICES))

    def _read_refused_again(self, count: int) -> None:
        """Has a few pods of each namespace that are refused for now read again, those that wait longest first."""
        for pods in self._refused_for_now.values():
            self._stale.update(islice(pods, count))

    def _gives(self, node: NodeName) -> bool:
        facts = self._state.cluster.nodes.get(node)
        by_claims = facts is not None and gives_by_claims(facts.labels)
        return by_claims and node in self._published.nodes

    def _offer(self, node: NodeName) -> None:
        gives = self._gives(node)
        (self._giving.add if gives else self._giving.discard)(node)
        found = {CLAIMS_OFFER, *self._profiles.kept_by(node)} if gives else ()
        self._state.cluster.offer(node, CLAIMS.name, frozenset(found))
        self._name_cards(node, self._names(node) if gives else {}, self._published.card_values(node) if gives else {})

    def prepare(self) -> None:
        """See :class:`RequestKind`; once a step, however many nodes have changed."""
        self._drop_old_names()
        recount, self._recount = self._recount, False
        counting = self._profiles.forget_counts() if recount else ()
        if counting:
            found = {uid for uid, pod in self.users.pods.items() if any(each in counting for each in self._specs(pod))}
            self._stale |= found
            self._state.cluster.changed_pods |= found  # a step is due, though nothing else changes

    def _specs(self, pod: PodInfo) -> Iterator[bytes]:
        claims = (self.allocated.claims.get(key) for key in pod.device_claims)
        return (spec_key(each) for each in claims if each is not None)

    def note_listed(self) -> None:
        """See :class:`RequestKind`."""
        self.allocated.listed = True
        self._state.dirty_nodes |= self._state.cluster.nodes.keys()

    # Pods -----------------------------------------------------------------------------------------------------------

    def let_go(self) -> Iterable[PodInfo]:
        """See :class:`RequestKind`."""
        return [self.users.pods[uid] for uid in sorted(self._free)]

    def reread(self) -> Sequence[PodInfo]:
        """See :class:`RequestKind`."""
        stale, self._stale = self._stale, set()
        return [self.users.pods[uid] for uid in sorted(stale & self.users.pods.keys())]

    def followers(self) -> Iterator[tuple[PodInfo, PodInfo]]:
        """See :class:`RequestKind`."""
        for pod in self.users.pods.values():
            if pod.node or pod.earlier_gates or will_never_run(pod) or not self._are_made(pod):
                continue
            for key in pod.device_claims:
                claim, first = self.allocated.claims[key], self.users.first(key)
                profiles = self._profiles.read(claim).profiles if claim.status.allocation is None else ()
                if profiles and first is not None and first.uid != pod.uid:
                    yield replace(pod, profiles=profiles), first
                    break

    def forget(self, uid: PodUid) -> None:
        """See :class:`RequestKind`."""
        pod = self.users.pods.get(uid)
        self._refused.discard(uid)
        self._free.discard(uid)
        self._unsuited.pop(uid, None)
        if pod is not None:
            self._note_names(pod, ())
        self._stale |= self.users.forget(uid)
        for key in pod.device_claims if pod is not None else ():
            self._wake_nodes(key)

    def _wake_nodes(self, key: str) -> None:
        claim = self.allocated.claims.get(key)
        if claim is not None and claim.status.allocation is not None:
            self._state.dirty_nodes.add(NodeName(claim.status.allocation.node))

    def read(self, pod: PodInfo) -> PodInfo:
        """See :class:`RequestKind`."""
        if not pod.device_claims:
            return pod
        pod = self._as_observed(pod)
        self._note(pod)
        self._free.discard(pod.uid)
        self._profiles.now = self._state.monotonic
        self._profiles.cards.begin()
        asked = self._add_up(pod) if self._are_made(pod) else None
        if freed := self._profiles.take_freed():
            self._choices -= freed
            self._has_old_names = True
        is_wanted = asked is not None and not asked.problem and not will_never_run(pod)
        self._note_names(pod, (*asked.profiles, *asked.choices) if asked is not None and is_wanted else ())
        if asked is None:
            return pod  # a claim is still to be made, or another pod asks for one first
        self._note_refusal(pod, is_refused=asked.for_now)
        if not asked.profiles and not asked.problem:
            if pod.gated and not pod.earlier_gates and not will_never_run(pod):
                self._free.add(pod.uid)
            return pod
        for name in asked.choices:
            self._offer_choice(name)
        for name in {each for each in asked.profiles if each != plain_profile(each)}:
            self._offer_name(name)
        return replace(
            pod,
            profiles=asked.profiles[: int(POD_SLICES)],
            spread=asked.spread if len(asked.profiles) <= POD_SLICES else (),
            other_kind=CLAIMS,
            constraints=replace(
                pod.constraints,
                selector=tuple(sorted({*pod.constraints.selector, *((HOSTNAME_LABEL, host) for host in asked.hosts)})),
                devices=frozenset({CLAIMS_OFFER, *asked.choices}),
            ),
            fault=pod.fault or _find_fault(pod, asked),
        )

    def _add_up(self, pod: PodInfo) -> _Asked | None:
        """Returns what all claims of a pod ask for; None if another pod asks for one of them first."""
        parts: list[ClaimProfiles] = []
        nodes, problem, foreign, for_now = dict[str, str](), self._unsuited.get(pod.uid, ""), "", False
        for key in pod.device_claims:
            claim = self.allocated.claims[key]
            found = self._profiles.read(claim)
            problem = problem or found.problem
            for_now = for_now or found.for_now
            if found.foreign and claim.status.allocation is None:
                foreign = f"claim {key}: {found.foreign}"
            if found.profiles and self._asks(pod.uid, key):
                parts.append(found)
            elif claim.status.allocation is not None:
                nodes[claim.status.allocation.node] = key
            elif found.profiles:
                return None
        spread: list[CardRule] = []
        first = 0
        for each in parts:
            spread += (
                CardRule(tuple(first + n for n in one.slices), one.distinct, one.attribute) for one in each.spread
            )
            first += len(each.profiles)
        return _Asked(
            profiles=tuple(profile for each in parts for profile in each.profiles),
            choices=frozenset(choice for each in parts for choice in each.choices),
            hosts={self._host(NodeName(node)): (node, key) for node, key in nodes.items() if node},
            spread=tuple(spread),
            problem=problem or (foreign if parts else ""),  # else a device of ours would wait for it in vain
            for_now=for_now,
        )

    def _note_names(self, pod: PodInfo, names: Iterable[str]) -> None:
        """Takes in which names of cards and choices a pod uses; without any it is not refused for them."""
        if not names:
            self._note_refusal(pod, is_refused=False)
        if self._profiles.cards.use(pod.uid, names):
            self._read_refused_again(1)

    def _note_refusal(self, pod: PodInfo, *, is_refused: bool) -> None:
        pods = self._refused_for_now.setdefault(pod.namespace, {})
        pods.pop(pod.uid, None)
        if is_refused:
            pods[pod.uid] = None
        if not pods:
            del self._refused_for_now[pod.namespace]

    def _drop_old_names(self) -> None:
        """Takes names that are forgotten off all cards and nodes."""
        if not self._has_old_names:
            return
        self._has_old_names = False
        is_known, inventory = self._profiles.cards.is_known, self._state.inventory
        for node, names in list(inventory.names.items()):
            kept = {uuid: tuple(each for each in found if is_known(each[0])) for uuid, found in names.items()}
            self._name_cards(node, {uuid: each for uuid, each in kept.items() if each}, inventory.values.get(node, {}))
        for node in sorted(self._giving):
            offered = self._state.cluster.offered_by(node, CLAIMS.name)
            self._state.cluster.offer(node, CLAIMS.name, frozenset(each for each in offered if self._is_offered(each)))

    def _is_offered(self, name: str) -> bool:
        return name == CLAIMS_OFFER or self._profiles.knows(name)

    def _are_made(self, pod: PodInfo) -> bool:
        """False if a claim is still to be made, also while one without allocation of its name is being deleted."""
        claims = [self.allocated.claims.get(key) for key in pod.device_claims]
        return all(
            each is not None and not (each.metadata.deletion_timestamp is not None and each.status.allocation is None)
            for each in claims
        )

    def _host(self, node: NodeName) -> str:
        facts = self._state.cluster.nodes.get(node)
        return facts.hostname if facts is not None else node

    def _as_observed(self, pod: PodInfo) -> PodInfo:
        """Returns a pod without what :meth:`read` added, since the cycle may have it read once more."""
        known = self.users.pods.get(pod.uid)
        if known is None or pod.other_kind != CLAIMS:
            return pod
        return replace(
            pod,
            profiles=known.profiles,
            spread=known.spread,
            other_kind=known.other_kind,
            constraints=known.constraints,
            fault=known.fault,
        )

    def _note(self, pod: PodInfo) -> None:
        ends = self.users.will_end(pod)
        self._stale |= self.users.note(pod)
        for key in named_claims(pod) if ends else ():
            self._wake_nodes(key)

    def _offer_choice(self, name: str) -> None:
        """Has all nodes say whether they keep a choice; once for each."""
        if name not in self._choices:
            self._choices.add(name)
            for node in sorted(self._giving):
                offered = self._state.cluster.offered_by(node, CLAIMS.name)
                self._state.cluster.offer(node, CLAIMS.name, offered | self._profiles.kept_by(node, name))

    def _offer_name(self, name: str) -> None:
        """Has all nodes say which of their cards have a name; once for each."""
        if name not in self._choices:
            self._choices.add(name)
            for node in self._giving & self._profiles.cards.nodes_of(name):
                names = dict(self._state.inventory.names.get(node, {}))
                for uuid, found in self._names(node, name).items():
                    names[uuid] = tuple(sorted({*names.get(uuid, ()), *found}))
                self._name_cards(node, names, self._state.inventory.values.get(node, {}))

    def _names(self, node: NodeName, only: str = "") -> CardNames:
        return self._profiles.cards.names_on(node, only)

    def _name_cards(self, node: NodeName, names: CardNames, values: Mapping[str, Mapping[str, str]]) -> None:
        if self._state.inventory.name_cards(node, names, values):
            self._state.cluster.changed_nodes.add(node)

    def _asks(self, uid: PodUid, key: str) -> bool:
        """True if the slices of a claim are this pod's: they are from its own, or it is the first to use it."""
        claim = self.allocated.claims[key]
        if claim.status.allocation is not None:
            return any(self.allocated.is_from(claim, each) for each in self._state.allocations.of(uid))
        first = self.users.first(key)
        return first is not None and first.uid == uid

    def absorb_node(self, node: NodeName, *, renewed: bool) -> Iterator[Allocation]:
        """See :class:`RequestKind`; pods whose slices are known now may ask for those of allocated claims."""
        if renewed:
            found = {each.uid for each in self._state.allocations.on(node)} & self.users.pods.keys()
            self._stale |= found
            for uid in found:
                self.users.note_slices(uid)
        yield from ()

    def refused(self, pod: PodInfo) -> Allocation | None:
        """See :class:`RequestKind`; rule 3. Slices that the pod does not ask for any more go back too."""
        cleared = pod.uid in self._refused
        self._refused.discard(pod.uid)
        own = self._state.allocations.current_of(pod.uid)
        if own is None or pod.node or pod.uid not in self.users.pods:
            return None
        wanted = sorted(map(plain_profile, pod.profiles))
        if pod.fault or wanted != sorted(resource_spelling(each.profile) for each in own.slices):
            return own
        if not cleared or pod.preempting:
            return None
        self._state.avoidance.add(pod.avoids_as, own.node, self._state.monotonic + AVOIDANCE_SECONDS)
        return own

    # Allocations of claims ------------------------------------------------------------------------------------------

    def accompany(self, allocation: Allocation, step: AllocationStep) -> tuple[Sequence[PatchRecord], bool]:
        """See :class:`RequestKind`."""
        self.users.note_slices(allocation.uid)
        pod = self.users.pods.get(allocation.uid)
        if step is AllocationStep.REQUEST and pod is not None:
            return self.allocated.protect(allocation, self._own_claims(pod)), True
        if step in (AllocationStep.REQUEST, AllocationStep.WAIT):
            return (), True
        if step in (AllocationStep.UNGATE, AllocationStep.SETTLED):
            if pod is None or pod.node or not allocation.requested:  # no pod is bound before its claims are allocated
                return (), True
            found = self.allocated.give(allocation, self._own_claims(pod), self._state.now)
            if isinstance(found, str):
                self._unsuited[pod.uid] = found
                self._stale.add(pod.uid)
                self._state.cluster.changed_pods.add(pod.uid)  # a step is due, though nothing else changes
                return (), False
            return found
        return self.allocated.take_back(allocation, lambda key: self.users.first(key) is not None)

    def lost(self, node: NodeName) -> Sequence[PatchRecord]:
        """See :class:`RequestKind`; rule 2."""
        return () if node in self._state.faults else self.allocated.lost(node, self._state.allocations.on(node))

    def _own_claims(self, pod: PodInfo) -> list[str]:
        """Returns the claims that are to be allocated from a pod's slices."""
        known = {key: self.allocated.claims[key] for key in pod.device_claims if key in self.allocated.claims}
        return [key for key, claim in known.items() if self._profiles.read(claim).profiles and self._asks(pod.uid, key)]


def _turning_points(claim: ResourceClaim) -> tuple[bool, bool]:
    """What changes the request of the pods that use a claim."""
    return claim.status.allocation is None, claim.metadata.deletion_timestamp is None
