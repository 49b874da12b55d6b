"""Gates a pod that asks for slices, leaves it unchanged, or refuses it with a reason.

Rules:

- A pod without a MIG request is never changed. A pod that asks for a slice gets exactly two things: the scheduling
  gate, and the quota resource in limits and requests of each container that asks.
- A pod is left unchanged if, of the nodes that its author selects, only nodes with a fixed layout can serve it.
- A pod whose slices no node could hold together, even an empty one, is refused: ``50 x mig-1g.5gb``, or a 7g and a 1g
  beside each other on nodes of one card, would wait for ever (below).
- The patch is computed from the pod's present content, so a second call (reinvocation) patches nothing.
- Tessera computes the quota. A pod that asks for another amount of it than its slices have, or for some without slices,
  is refused: nodes have only as much of it as their cards can give, so other pods would lack the excess.
- A pod that cannot work is refused here, where its author sees the reason, so that it does not wait for ever.

Whether a node could hold the slices: the cards of the nodes are known from their Instaslice objects, so the exact
packing test answers with certainty.

- The nodes that the pod's author selects decide, and the groups that an autoscaler can make (ConfigMap
  ``tessera-node-groups``) whose declared labels do not contradict the selection. If none of them has the profiles, all
  nodes and groups decide.
- While the cards of a node that is to be cut on demand are not known yet, nothing is certain. Nor while a new node may
  turn out to have GPUs (:mod:`tessera.api.nodes.node_cards`).
- Without any such node or group nothing is certain either: the cluster may grow from zero. Nor is it if the webhook's
  option says that nodes with other cards may come.

Pure: the result follows only from the pod's JSON and the capabilities.

The quota resource counts GB of the profiles of a pod's slices, as Gi:

- A pod is charged for all slices that it holds until it ends. Kubernetes counts the largest init container beside the
  sum of the app containers, but kubelet keeps the slices of every init container; the uncounted rest is charged to an
  app container.
- The amounts follow from the slices. An author may leave them out or write the same amounts, as in a copy of a running
  pod; other amounts are refused.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import GATE, MIG_RESOURCE_PREFIX, QUOTA_RESOURCE, suggest_resource
from tessera.api.sharing.profile_parser import SHARED_SUFFIX
from tessera.api.slice_requests import ContainerSlices, SliceRequestError, container_slices, pod_slices
from tessera.kube.quantity import parse_quantity
from tessera.mig.names import parse_profile_name
from tessera.offers import Nodes
from tessera.placement.demand import StepBudget
from tessera.placement.node_fit import Shape, count_slots, largest_part, memory_slots, none_could_hold
from tessera.reasons.reason import NeverFits
from tessera.reasons.words import sentence
from tessera.text import count_noun, one_line
from tessera.webhook.base import PodRefused, Rule, SpendTime, spend_nothing
from tessera.webhook.capabilities import MODEL_PROFILES, Capabilities, GroupNode, NodeSets
from tessera.webhook.pod_json import Operation, add_operation, refuse_wrong_gang, refuse_wrong_update, requested_amounts
from tessera.webhook.restriction import read_restriction

Json = Mapping[str, Any]

_GI = 2**30


class ContainerWithSlices(msgspec.Struct, frozen=True, kw_only=True):
    """A container that asks for slices, and its path in the pod."""

    path: str
    container: Json
    slices: ContainerSlices


class QuotaCharge(msgspec.Struct, frozen=True):
    """The amount that one container is charged.

    Attributes:
        path: the container's path in the pod.
        container: as its author wrote it.
        gigabytes: GB of its slices, and of slices that Kubernetes would not count.
    """

    path: str
    container: Json
    gigabytes: int

    def operations(self) -> Sequence[Operation]:
        """Returns the operations that set limits and requests; none if both have the amount already."""
        amount = f"{self.gigabytes}Gi"
        at = (*self.path.split("/")[1:], "resources")
        resources = self.container.get("resources")
        if resources is None:
            both = {"limits": {QUOTA_RESOURCE: amount}, "requests": {QUOTA_RESOURCE: amount}}
            return [add_operation(at, both)]
        operations: list[Operation] = []
        for field in ("limits", "requests"):
            present = resources.get(field)
            if present is None:
                operations.append(add_operation((*at, field), {QUOTA_RESOURCE: amount}))
            elif not _is_amount(present.get(QUOTA_RESOURCE), self.gigabytes):
                operations.append(add_operation((*at, field, QUOTA_RESOURCE), amount))
        return operations


def compute_charges(asking: Sequence[ContainerWithSlices], held: Sequence[str], spec: Json) -> Sequence[QuotaCharge]:
    """Returns the charges; Kubernetes counts their sum as the amount that the pod holds.

    Args:
        asking: the containers that ask for slices.
        held: the profiles of all slices that the pod keeps.
        spec: the pod's ``spec``.
    """
    charges = [QuotaCharge(one.path, one.container, _gigabytes(one.slices)) for one in asking]
    beside = peak = 0
    for one, charge in zip(asking, charges, strict=True):
        if one.slices.init and not one.slices.sidecar:
            peak = max(peak, beside + charge.gigabytes)
        else:
            beside += charge.gigabytes
    whole = sum(map(_memory, held))
    if max(beside, peak) >= whole or not spec.get("containers"):
        return charges
    path = next((one.path for one in asking if not one.slices.init), "/spec/containers/0")
    before = sum(charge.gigabytes for charge in charges if charge.path == path)
    container = spec["containers"][int(path.rpartition("/")[2])]
    others = [charge for charge in charges if charge.path != path]
    return [*others, QuotaCharge(path, container, before + whole - beside)]


def refuse_other_charges(spec: Json, charges: Sequence[QuotaCharge]) -> None:
    """Refuses amounts of the quota resource that do not match the slices.

    Raises:
        PodRefused: the text names the container, its amount and the right amount.
    """
    right = {charge.path: charge.gigabytes for charge in charges}
    for path, name, amount in _written_amounts(spec):
        gigabytes = right.get(path, 0)
        if not _is_amount(amount, gigabytes):
            because = f"its slices are charged {gigabytes}Gi" if gigabytes else "it is charged for no slices"
            raise PodRefused(
                Rule.QUOTA,
                f'container "{one_line(name)}": asks for {one_line(amount)} of {QUOTA_RESOURCE}, but {because}; ask '
                f"for slices ({MIG_RESOURCE_PREFIX}3g.20gb) and leave this resource out: admission writes the amount",
            )


def _written_amounts(spec: Json) -> Iterator[tuple[str, str, Any]]:
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            resources = container.get("resources") or {}
            for amounts in (resources.get("limits"), resources.get("requests")):
                if amounts and QUOTA_RESOURCE in amounts:
                    yield f"/spec/{field}/{index}", container.get("name") or "", amounts[QUOTA_RESOURCE]


def _is_amount(amount: Any, gigabytes: int) -> bool:
    try:
        return parse_quantity(str(amount)) == gigabytes * _GI
    except ValueError:
        return False


def _gigabytes(slices: ContainerSlices) -> int:
    return sum(_memory(profile) * count for profile, count in slices.counts.items())


def _memory(profile: str) -> int:
    """Returns the GB of a profile; 0 for a node's profile name that is not a MIG profile."""
    try:
        return parse_profile_name(profile).memory_gb
    except ValueError:
        return 0


#: Longest name of a resource, without its prefix (Kubernetes, qualified names).
_LONGEST_PROFILE = 63
#: Where no card is known, the ninety profiles of all models help nobody.
_LISTED_BY = "tessera plan mig MODEL lists the profiles of a model."


def patch_for_slices(
    pod: Json, capabilities: Capabilities, nodes: Nodes, spend: SpendTime = spend_nothing, *, gates: bool = True
) -> Sequence[Operation]:
    """Returns the operations that gate a pod and charge its slices; none if it needs no change.

    Args:
        pod: the pod to be created.
        capabilities: the GPU resources of the cluster.
        nodes: the nodes that the pod's author selects.
        spend: called before each piece of work.
        gates: False for the template of a pod, which only pods of it are held by.

    Raises:
        PodRefused: no node can serve the pod's request.
    """
    spec = pod.get("spec") or {}
    refuse_foreign(spec, capabilities)
    try:
        asking = _containers_with_slices(spec, spend)
        held = pod_slices([one.slices for one in asking])
    except SliceRequestError as error:
        raise PodRefused(Rule.SLICE_REQUEST, f"{error}") from None
    static = not asking or _is_for_fixed_layouts(spec, asking, capabilities, nodes)
    if not static and (why := find_impossible(held, capabilities, nodes, capabilities.groups_for(spec, spend))):
        static = _nodes_with_all(capabilities.fixed, held, nodes) != 0
        if not static:
            raise PodRefused(Rule.IMPOSSIBLE, why)
    charges = compute_charges(asking, held, spec)
    refuse_other_charges(spec, charges)
    if static:
        return ()
    _refuse_bound(spec)
    refuse_wrong_update(pod)
    if gates:
        refuse_wrong_gang(pod)
    gate = gate_operations(spec) if gates else ()
    return [*gate, *(operation for charge in charges for operation in charge.operations())]


def _containers_with_slices(spec: Json, spend: SpendTime) -> Sequence[ContainerWithSlices]:
    found = []
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            spend()
            slices = _slices(container, init=field == "initContainers")
            if slices.counts:
                found.append(ContainerWithSlices(path=f"/spec/{field}/{index}", container=container, slices=slices))
    return found


def _slices(container: Json, *, init: bool) -> ContainerSlices:
    resources = container.get("resources") or {}
    return container_slices(
        container.get("name") or "",
        resources.get("limits") or {},
        resources.get("requests") or {},
        [variable.get("name") or "" for variable in container.get("env") or ()],
        init=init,
        sidecar=init and container.get("restartPolicy") == "Always",
    )


def _is_for_fixed_layouts(
    spec: Json, asking: Sequence[ContainerWithSlices], capabilities: Capabilities, nodes: Nodes
) -> bool:
    """True if nodes with a fixed layout will serve the pod.

    The nodes that its author selects decide; if none of them has the profiles, all nodes do.

    Raises:
        PodRefused: no node can serve the pod.
    """
    profiles = {profile: one.slices.name for one in asking for profile in one.slices.counts}
    if any(_is_share(profile, capabilities) for profile in profiles):
        return True  # the pod waits, like any pod that asks for a resource that no node has yet
    if _nodes_with_all(capabilities.on_demand, profiles, nodes):
        return False
    if _nodes_with_all(capabilities.fixed, profiles, nodes):
        return True
    fixed = profiles.keys() <= capabilities.fixed.keys()
    if fixed and not read_restriction(spec).may_be_on_demand:
        return True
    if profiles.keys() <= capabilities.possible and (capabilities.on_demand or not fixed):
        return False
    if fixed:
        return True
    for profile, container in sorted(profiles.items()):
        _refuse_unknown(profile, container, capabilities)
    on_demand = sorted(profiles.keys() & capabilities.possible)
    raise PodRefused(
        Rule.MIXED_LAYOUTS,
        f"asks for {_join_resources(sorted(profiles))}, but {_join_resources(on_demand)} is cut on demand and the rest "
        "stands on nodes with a fixed MIG layout; a pod gets its slices from one of them: use profiles of one kind",
    )


def _nodes_with_all(sets: NodeSets[str], profiles: Iterable[str], nodes: Nodes) -> Nodes:
    """Returns those of the nodes that have all of the profiles."""
    for profile in profiles:
        nodes &= sets.get(profile, 0)
    return nodes


def _is_share(profile: str, capabilities: Capabilities) -> bool:
    """True if this is a sharing profile's name for a share of a slice; slices cut on demand are not shared."""
    base = profile.removesuffix(SHARED_SUFFIX)
    return base != profile and (base in capabilities.all_profiles or base in MODEL_PROFILES)


def _refuse_unknown(profile: str, container: str, capabilities: Capabilities) -> None:
    if profile in capabilities.all_profiles:
        return
    where = f'container "{one_line(container)}": {MIG_RESOURCE_PREFIX}{one_line(profile)}'
    closest = capabilities.closest(profile) if len(profile) <= _LONGEST_PROFILE else None
    meant = f" Did you mean {MIG_RESOURCE_PREFIX}{closest}?" if closest else ""
    try:
        parse_profile_name(profile)
    except ValueError:
        fault = "is not a MIG profile (the form is <compute slices>g.<memory>gb, as in 3g.20gb)."
    else:
        fault = f"is a profile of no {'NVIDIA card' if capabilities.any_model_may_come else 'card in this cluster'}."
    own = capabilities.own_profiles
    known = f"The cards of this cluster have {_join_profiles(own)}." if own else _LISTED_BY
    raise PodRefused(Rule.UNKNOWN_PROFILE, f"{where} {fault}{meant} {known}")


def _refuse_bound(spec: Json) -> None:
    if spec.get("nodeName"):
        raise PodRefused(
            Rule.BOUND,
            f'spec.nodeName is "{one_line(spec["nodeName"])}": a pod that asks for a slice cannot be bound by its '
            "author, because the slice is placed first; use spec.nodeSelector or node affinity",
        )


def gate_operations(spec: Json) -> Sequence[Operation]:
    """Returns the operations that add the gate to a pod's ``spec``; none if it has it."""
    gates = spec.get("schedulingGates") or ()
    if any(gate.get("name") == GATE for gate in gates):
        return ()
    if gates:
        return [{"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": GATE}}]
    return [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]


def gate_claiming_pod(pod: Json) -> Sequence[Operation]:
    """Returns the operations that gate a pod with ResourceClaims for devices of ours; none for one that is bound.

    Raises:
        PodRefused: no size of its gang can be read.
    """
    spec = pod.get("spec") or {}
    if spec.get("nodeName"):
        return ()
    refuse_wrong_gang(pod)
    refuse_wrong_update(pod)
    return gate_operations(spec)


def _join_resources(profiles: Sequence[str]) -> str:
    return ", ".join(MIG_RESOURCE_PREFIX + profile for profile in profiles)


def _join_profiles(profiles: frozenset[str]) -> str:
    return ", ".join(sorted(profiles, key=_order))


def _order(profile: str) -> tuple[int, int, str]:
    try:
        name = parse_profile_name(profile)
    except ValueError:
        return (99, 0, profile)
    return (name.slices, name.memory_gb, profile)


# Slices under the names of other slicers


def refuse_foreign(spec: Json, capabilities: Capabilities) -> None:
    """Refuses a pod that asks for another slicer's resource that no node has.

    Raises:
        PodRefused: the text names container, resource and the right name.
    """
    for container, resource, _ in requested_amounts(spec):
        meant = suggest_resource(resource)
        if meant and resource not in capabilities.foreign:
            raise PodRefused(
                Rule.FOREIGN_RESOURCE,
                f'container "{one_line(container)}": {one_line(resource)} is a name of another slicer, and no node has '
                f"it; here it is {one_line(meant)}: write that in limits",
            )


#: Most steps: trials that divide a new pod's slices among the cards of empty nodes, to refuse what none could hold. A
#: pod that fits takes as many as it has slices; beyond them the pod is admitted.
ADMISSION_STEPS = 2_000


def find_impossible(held: Sequence[str], capabilities: Capabilities, nodes: Nodes, groups: Sequence[GroupNode]) -> str:
    """Returns the reason that no node could hold a pod's slices; empty if one may.

    Args:
        held: the profiles of all slices that the pod keeps.
        capabilities: the GPU resources of the cluster.
        nodes: the nodes that the pod's author selects.
        groups: the groups of new nodes that the author may select.
    """
    restricted = nodes != capabilities.every or len(groups) < len(capabilities.groups)
    every = _groups_by_shape(capabilities.groups) | dict.fromkeys(capabilities.shapes, "")
    if capabilities.more_may_come or capabilities.unread or not every:
        return ""
    for profile in held:
        nodes &= capabilities.on_demand.get(profile, 0)
    selected = _groups_by_shape([each for each in groups if each.profiles.issuperset(held)])
    selected |= {shape: "" for shape, having in capabilities.shapes.items() if having & nodes}
    chosen = selected or every
    work = StepBudget(int(ADMISSION_STEPS))
    if not none_could_hold(chosen, held, work):
        return ""
    by_size = sorted(chosen, key=count_slots, reverse=True)
    parts = [(shape, largest_part(shape, held, work)) for shape in by_size[:_COMPARED]]
    best, part = max(parts, key=lambda found: (memory_slots(*found), -count_slots(found[0])))
    node = f"a new node of group {chosen[best]}, with" if chosen[best] else "a node with"
    known = bool(part) or not work.is_spent
    reason = NeverFits(
        tuple(held),
        largest=f"{node} {_describe(best)}{',' if chosen[best] else ''}" if known else "",
        holds=tuple(part),
        selected=bool(selected) and restricted,
    )
    return f"spec.containers: {sentence(reason)}"


def _groups_by_shape(groups: Iterable[GroupNode]) -> dict[Shape, str]:
    """Returns the names of the groups whose nodes offer slices, by the shape of a node."""
    return {each.shape: each.group for each in groups if each.shape}


#: Kinds of nodes that the text of a refusal compares.
_COMPARED = 4


def _describe(shape: Shape) -> str:
    cards = Counter(table.geometry.family for table in shape)
    return " and ".join(f"{count_noun(count, 'card')} {one_line(family)}" for family, count in sorted(cards.items()))
