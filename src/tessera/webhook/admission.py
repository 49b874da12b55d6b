"""One pod in, one verdict out: gate it, leave it alone, or refuse it with a reason.

Rules:

- A pod without a MIG request is never changed, and one that asks for a slice gets exactly two things: the scheduling
  gate, and per container that asks the quota resource, in limits and requests.
- A pod that only nodes with a fixed layout can serve, among those that its author leaves, is left to them.
- The patch is computed against what the pod already has, so a second call (reinvocation) patches nothing.
- The quota is ours to compute: a value that the author wrote is replaced, else the quota could be bypassed.
- A pod is charged for all that it holds until it ends. Kubernetes counts the largest init container beside the sum of
  the others, but kubelet keeps the slices of every init container; what that leaves out is charged to an app container.
- What cannot work is refused here, where the author sees it, and not left to wait for ever.

Pure: the verdict follows from the pod's JSON and the known capabilities alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import GATE, MIG_RESOURCE_PREFIX, QUOTA_RESOURCE
from tessera.api.requests import ContainerSlices, SliceRequestError, container_slices, pod_slices
from tessera.api.sharing.grammar import SHARED_SUFFIX
from tessera.mig.names import parse_profile_name
from tessera.webhook.capabilities import MODEL_PROFILES, Capabilities
from tessera.webhook.operations import Operation
from tessera.webhook.restriction import restriction_of

Json = Mapping[str, Any]


class Refused(Exception):  # noqa: N818 - a verdict, not a fault
    """The pod must not be created; the text is shown to its author."""


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """A container that asks for slices, and where it stands in the pod."""

    path: str
    container: Json
    slices: ContainerSlices


def patch(pod: Json, capabilities: Capabilities) -> Sequence[Operation]:
    """The operations that gate a pod and charge its slices; none if it is to be left alone.

    Raises:
        Refused: the pod asks for what cannot be served.
    """
    try:
        asking = _asking(pod.get("spec") or {})
        held = pod_slices([one.slices for one in asking])
    except SliceRequestError as error:
        raise Refused(f"{error}") from None
    if not asking or _for_static_nodes(pod["spec"], asking, capabilities):
        return ()
    _refuse_bound(pod["spec"])
    charges = _charges(asking, held, pod["spec"])
    return [*_gate(pod["spec"]), *(operation for charge in charges for operation in _charge(*charge))]


def _asking(spec: Json) -> Sequence[Asking]:
    found = []
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            slices = _slices(container, init=field == "initContainers")
            if slices.counts:
                found.append(Asking(path=f"/spec/{field}/{index}", container=container, slices=slices))
    return found


def _slices(container: Json, *, init: bool) -> ContainerSlices:
    resources = container.get("resources") or {}
    return container_slices(
        container.get("name", ""),
        resources.get("limits") or {},
        resources.get("requests") or {},
        [variable.get("name", "") for variable in container.get("env") or ()],
        init=init,
        sidecar=init and container.get("restartPolicy") == "Always",
    )


def _for_static_nodes(spec: Json, asking: Sequence[Asking], capabilities: Capabilities) -> bool:
    """Whether nodes with a fixed layout are to serve the pod.

    The nodes decide that its author leaves; if none of those has what it asks for, all.

    Raises:
        Refused: no node can.
    """
    profiles = {profile: one.slices.name for one in asking for profile in one.slices.counts}
    if any(_is_share(profile, capabilities) for profile in profiles):
        return True  # like any pod for a resource that no node has yet, it waits for one
    left = capabilities.left_by(spec)
    if any(profiles.keys() <= node.dynamic for node in left):
        return False
    if any(profiles.keys() <= node.fixed for node in left):
        return True
    fixed = profiles.keys() <= capabilities.static
    if fixed and not restriction_of(spec).may_be_on_demand:
        return True
    if profiles.keys() <= capabilities.possible and (capabilities.dynamic or not fixed):
        return False
    if fixed:
        return True
    for profile, container in sorted(profiles.items()):
        _refuse_unknown(profile, container, capabilities)
    on_demand = sorted(profiles.keys() & capabilities.possible)
    raise Refused(
        f"asks for {_named(sorted(profiles))}, but {_named(on_demand)} is cut on demand and the rest stands on nodes "
        "with a fixed MIG layout; a pod gets its slices from one of them: use profiles of one kind"
    )


def _is_share(profile: str, capabilities: Capabilities) -> bool:
    """Whether this is a share of a slice as sharing profiles call it; slices that are cut on demand are not shared."""
    base = profile.removesuffix(SHARED_SUFFIX)
    return base != profile and base in capabilities.possible | capabilities.static | MODEL_PROFILES


def _refuse_unknown(profile: str, container: str, capabilities: Capabilities) -> None:
    if profile in capabilities.possible or profile in capabilities.static:
        return
    where = f'container "{container}": {MIG_RESOURCE_PREFIX}{profile}'
    closest = capabilities.closest(profile)
    meant = f" Did you mean {MIG_RESOURCE_PREFIX}{closest}?" if closest else ""
    try:
        parse_profile_name(profile)
    except ValueError:
        fault = "is not a MIG profile (the form is <compute slices>g.<memory>gb, as in 3g.20gb)."
    else:
        fault = (
            "is a profile of no card in this cluster." if capabilities.dynamic else "is a profile of no NVIDIA card."
        )
    owner = "The cards of this cluster have" if capabilities.dynamic else "Known profiles are"
    raise Refused(f"{where} {fault}{meant} {owner} {_listed(capabilities.possible | capabilities.static)}.")


def _refuse_bound(spec: Json) -> None:
    if spec.get("nodeName"):
        raise Refused(
            f'spec.nodeName is "{spec["nodeName"]}": a pod that asks for a slice cannot be bound by its author, '
            "because the slice is placed first; use spec.nodeSelector or node affinity"
        )


def _gate(spec: Json) -> Sequence[Operation]:
    gates = spec.get("schedulingGates") or ()
    if any(gate.get("name") == GATE for gate in gates):
        return ()
    if gates:
        return [{"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": GATE}}]
    return [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]


def _charges(asking: Sequence[Asking], held: Sequence[str], spec: Json) -> Sequence[tuple[str, Json, int]]:
    """Path, container and GB of each charge; together Kubernetes counts them as what the pod holds."""
    charges = [(one.path, one.container, _gigabytes(one.slices)) for one in asking]
    beside = peak = 0
    for one, (_, _, own) in zip(asking, charges, strict=True):
        if one.slices.init and not one.slices.sidecar:
            peak = max(peak, beside + own)
        else:
            beside += own
    whole = sum(parse_profile_name(profile).memory_gb for profile in held)
    if max(beside, peak) < whole:
        path = next((one.path for one in asking if not one.slices.init), "/spec/containers/0")
        before = sum(own for at, _, own in charges if at == path)
        container = spec["containers"][int(path.rpartition("/")[2])]
        charges = [charge for charge in charges if charge[0] != path]
        charges.append((path, container, before + whole - beside))
    return charges


def _gigabytes(slices: ContainerSlices) -> int:
    return sum(parse_profile_name(profile).memory_gb * count for profile, count in slices.counts.items())


def _charge(path: str, container: Json, gigabytes: int) -> Sequence[Operation]:
    """The quota resource of a container: GB of its profiles times their counts, counted as Gi."""
    amount = f"{gigabytes}Gi"
    resources = container.get("resources")
    key = QUOTA_RESOURCE.replace("~", "~0").replace("/", "~1")
    if resources is None:
        both = {"limits": {QUOTA_RESOURCE: amount}, "requests": {QUOTA_RESOURCE: amount}}
        return [{"op": "add", "path": f"{path}/resources", "value": both}]
    operations: list[Operation] = []
    for field in ("limits", "requests"):
        present = resources.get(field)
        at = f"{path}/resources/{field}"
        if present is None:
            operations.append({"op": "add", "path": at, "value": {QUOTA_RESOURCE: amount}})
        elif present.get(QUOTA_RESOURCE) != amount:
            operations.append({"op": "add", "path": f"{at}/{key}", "value": amount})
    return operations


def _named(profiles: Sequence[str]) -> str:
    return ", ".join(MIG_RESOURCE_PREFIX + profile for profile in profiles)


def _listed(profiles: frozenset[str]) -> str:
    return ", ".join(sorted(profiles, key=_order))


def _order(profile: str) -> tuple[int, int, str]:
    try:
        name = parse_profile_name(profile)
    except ValueError:
        return (99, 0, profile)
    return (name.slices, name.memory_gb, profile)
