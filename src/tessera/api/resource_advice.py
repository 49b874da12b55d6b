"""What a pod asks for in vain, and what to ask for instead: names that no node offers, keys that nobody reads.

A name of a resource may be misspelt, another slicer's or another vendor's. A key may stand in a wrong section, or under
Tessera's domain and be unknown: Kubernetes takes any label, annotation and selector, so nothing refuses it. Each
sentence names the section in which it stands, and the one in which it counts.

The webhook says it when the pod, or an object with a template of it, is created; ``tessera why`` says it later.

Sources of the foreign names: HAMi's README (``nvidia.com/gpumem`` in MiB, ``gpucores`` in percent, ``vgpu``), Volcano's
device plugins (``volcano.sh/vgpu-memory`` in MiB), Koordinator, Alibaba's GPU Share, Tencent's GPU Manager, KAI and
Run:ai (annotations ``gpu-memory`` in MiB, ``gpu-fraction``), nos (``nvidia.com/gpu-10gb``).
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches

import msgspec

from tessera.api.names import (
    DEVICE_ACCESS_LABEL,
    FAULT_TOLERATION,
    GPU_RESOURCES,
    KUEUE_QUEUE_LABEL,
    LENDS_ANNOTATION,
    MEMORY_ENFORCEMENT_ANNOTATION,
    MEMORY_LIMIT_ANNOTATION,
    MIG_CONFIG_DYNAMIC,
    MIG_CONFIG_LABEL,
    MIG_RESOURCE_PREFIX,
    MOVABLE_ANNOTATION,
    OWN_DOMAIN,
    PINNED_ANNOTATION,
    PLACEMENT_LABEL,
    POD_PREFLIGHT,
    QUEUE_LABEL,
    SHARED_CARDS,
    SYSTEM_NAMESPACE,
    UPDATE_ANNOTATION,
    USER_KEY,
    WHOLE_CARDS,
    YIELDS_ANNOTATION,
    profile_of,
    resource_of,
    suggest_resource,
)
from tessera.api.nodes.repairs import FAULT_TOLERATION_DIGITS
from tessera.api.pod_annotations import (
    CHOSEN,
    CHOSEN_REASON,
    GANG_LABEL,
    GANG_SIZE_ANNOTATION,
    KEYS,
    MEMORY,
    POD_GROUP_LABEL,
    WHOLE_CARD,
)
from tessera.api.sharing.profile import PROFILE_LABEL
from tessera.api.sharing.profile_parser import SHARED_SUFFIX
from tessera.kube.quantity import count_or_zero
from tessera.kube.resources import Pod
from tessera.kube.resources.pods import DEFAULT_SCHEDULER
from tessera.limits import VALUE_SHOWN
from tessera.mig.names import parse_profile_name
from tessera.text import list_names, one_line

#: Resources of NVIDIA's and our device plugins, unless a profile renames them.
DOMAIN = "nvidia.com/"
#: A MIG resource with a spelling mistake.
_MIG = re.compile(r"(?:mig[-.:_]?)?([0-9]{1,2})g[-._]?([0-9]{1,3})gb?(?:[.+]([a-z]{2,6}))?")
#: The most of a resource's name that is compared; Kubernetes allows 317 characters.
_COMPARED = 100

#: Resources by which other systems count a part of a card's memory, and the unit of one; "" if it is a percentage.
_MEMORY_UNITS: Mapping[str, str] = {
    "nvidia.com/gpumem": "Mi",
    "nvidia.com/gpumem-percentage": "",
    "volcano.sh/vgpu-memory": "Mi",
    "volcano.sh/gpu-memory": "Mi",
    "koordinator.sh/gpu-memory": "",
    "koordinator.sh/gpu-memory-ratio": "",
    "aliyun.com/gpu-mem": "Gi",
    "tencent.com/vcuda-memory": "",
}
#: Resources by which other systems count a part of a card's compute power, a priority, or cards.
_PARTS = frozenset(
    {
        "nvidia.com/gpucores",
        "nvidia.com/priority",
        "volcano.sh/vgpu-cores",
        "koordinator.sh/gpu-core",
        "koordinator.sh/gpu.shared",
        "tencent.com/vcuda-core",
        "aliyun.com/gpu-core.percentage",
    }
)
_CARDS = frozenset(
    {
        "nvidia.com/vgpu",
        "volcano.sh/vgpu-number",
        "volcano.sh/gpu-number",
        "4pd.io/vgpu",
        "koordinator.sh/gpu",
        "aliyun.com/gpu-count",
        "k8s.amazonaws.com/vgpu",
        "nvshare.com/gpu",
    }
)
#: A share of a card by its memory, as nos names it.
_BY_MEMORY = re.compile(r"nvidia\.com/gpu-([0-9]{1,3})gb")


class Offered(msgspec.Struct, frozen=True):
    """What the nodes of a cluster have.

    Attributes:
        fixed: resources that they offer, slices on demand left aside.
        on_demand: resources of slices that they make on demand.
    """

    fixed: frozenset[str] = frozenset()
    on_demand: frozenset[str] = frozenset()

    def __contains__(self, resource: str) -> bool:
        """True if a node has it."""
        return resource in self.fixed or resource in self.on_demand

    @property
    def largest(self) -> str:
        """The largest slice that is made on demand; empty if none is."""
        return max(self.on_demand, key=_size, default="")


def _size(resource: str) -> tuple[int, int, bool, str]:
    """The order of slices on demand: memory, compute slices, and plain ones after those with a suffix."""
    try:
        name = parse_profile_name(profile_of(resource))
    except ValueError:
        return (0, 0, False, resource)
    return (name.memory_gb, name.slices, not name.suffix, resource)


def find_correction(resource: str, offered: Offered) -> str:
    """What to request instead of a misspelt name that no node offers; empty if it resembles none.

    Args:
        resource: the name in the manifest.
        offered: what the nodes have.
    """
    if resource in offered:
        return ""
    right = suggest_resource(resource) or _suggest(resource, offered)
    if right == resource:
        return ""
    return offered.largest if right == WHOLE_CARDS and right not in offered and offered.largest else right


def _suggest(name: str, offered: Offered) -> str:
    domain, _, resource = name[:_COMPARED].casefold().partition("/")
    mig = _MIG.fullmatch(resource)
    if mig is not None:
        return f"{MIG_RESOURCE_PREFIX}{mig[1]}g.{mig[2]}gb{f'.{mig[3]}' if mig[3] else ''}"
    if is_part(name) or not get_close_matches(domain, ["nvidia.com", "nvidia"], n=1, cutoff=0.8):
        return ""
    known = {each.removeprefix(DOMAIN): each for each in (*GPU_RESOURCES, *offered.fixed) if each.startswith(DOMAIN)}
    closest = get_close_matches(resource, sorted(known), n=1, cutoff=0.8)
    return known[closest[0]] if closest else ""


def advise(offered: Offered, asked: Mapping[str, int], missing: Sequence[str]) -> tuple[str, ...]:
    """The steps that help a pod whose resources no node offers, most useful first.

    Args:
        offered: what the nodes have.
        asked: all device resources that the pod requests.
        missing: those of them that no node offers.
    """
    parts = [name for name in asked if is_part(name)]
    if parts:
        return (*_ask_for_memory(asked, parts), *_others(offered, [each for each in missing if each not in parts]))
    return tuple(_others(offered, missing))


def is_part(name: str) -> bool:
    """True if another system shares cards by this resource or annotation."""
    return name in _MEMORY_UNITS or name in _PARTS or name in _CARDS or _BY_MEMORY.fullmatch(name) is not None


def _ask_for_memory(asked: Mapping[str, int], parts: Sequence[str]) -> Iterator[str]:
    amount = next(filter(None, (_memory(name, asked[name]) for name in parts)), "10Gi")
    cards = [name for name in asked if name in GPU_RESOURCES]
    yield (
        f"Tessera gives a part of a card by memory: write the annotation {MEMORY}: {amount} into the pod's"
        f" metadata.annotations, and remove {list_names(sorted({*parts, *cards}))} from limits and requests"
    )
    if any(name in _PARTS for name in parts):
        yield "no percentage of a card's compute power is served; a MIG slice has its own: tessera map shows them"


def _memory(name: str, count: int) -> str:
    by_memory = _BY_MEMORY.fullmatch(name)
    if by_memory is not None:
        return f"{by_memory[1]}Gi"
    unit = _MEMORY_UNITS.get(name)
    return f"{count}{unit}" if unit else ""


def _others(offered: Offered, missing: Sequence[str]) -> Iterator[str]:
    for name in missing:
        yield from _steps(offered, name)


def _steps(offered: Offered, name: str) -> Iterator[str]:
    if "/" not in name:
        yield f"request no {one_line(name)}, or let a node have it: kubectl describe node NODE shows what it has"
    elif not name.startswith(DOMAIN):
        yield f"see who should serve {one_line(name)}: the device plugin of its vendor; Tessera serves {DOMAIN}* only"
    elif name == WHOLE_CARDS:
        yield from _whole_card_steps(offered)
    elif name == SHARED_CARDS or not name.startswith(MIG_RESOURCE_PREFIX):
        yield from _request_another(offered)
        profile = f"kubectl label node NODE {PROFILE_LABEL}=PROFILE --overwrite"
        yield f"let a node offer it, by a sharing profile that gives this name: {profile}"
    else:
        yield from _mig_steps(offered, name)


def _whole_card_steps(offered: Offered) -> Iterator[str]:
    largest = offered.largest
    renamed = sorted(name for name in offered.fixed if not name.startswith(MIG_RESOURCE_PREFIX))
    if largest and renamed:
        yield f"request cards or shares by the name that a sharing profile gives them: {list_names(renamed)}"
    if largest:
        yield f"request the largest slice instead: {largest}; or an amount of memory: annotation {MEMORY}: 10Gi"
        yield (f"or let a node offer whole cards: kubectl label node NODE {MIG_CONFIG_LABEL}=all-disabled --overwrite")
        return
    yield from _request_another(offered)
    if not offered.fixed:
        yield "see which nodes have cards, and what keeps them: tessera doctor, then tessera why node/NODE"
    else:
        yield f"or let a node offer whole cards: without the labels {MIG_CONFIG_LABEL} and {PROFILE_LABEL} it does"


def _mig_steps(offered: Offered, name: str) -> Iterator[str]:
    profile = profile_of(name)
    base = profile.removesuffix(SHARED_SUFFIX)
    if base != profile:
        if resource_of(base) in offered.on_demand:
            yield f"request a slice of its own: {resource_of(base)}; slices that are made on demand are not shared"
        both = f"{MIG_CONFIG_LABEL}=all-{base} and {PROFILE_LABEL}=PROFILE"
        yield f"or let a node offer shares of fixed slices: label it {both}, a profile that shares {resource_of(base)}"
        return
    try:
        parse_profile_name(profile)
    except ValueError as error:
        yield f"correct the name: {error}"
        return
    yield from _request_another(offered)
    yield (
        f"let a node offer it: kubectl label node NODE {MIG_CONFIG_LABEL}={MIG_CONFIG_DYNAMIC} --overwrite, for slices"
        f" on demand, or a layout with {profile}; tessera plan mig MODEL {profile}=1 says if its cards have it"
    )


def _request_another(offered: Offered) -> Iterator[str]:
    there = sorted(offered.fixed | offered.on_demand)
    if there:
        yield f"request what nodes have instead: {list_names(there)}"


#: Where the keys count that Tessera and Kueue read of a pod, and those of other objects.
_ANNOTATIONS = (
    frozenset(KEYS)
    | {GANG_SIZE_ANNOTATION, MOVABLE_ANNOTATION, UPDATE_ANNOTATION, YIELDS_ANNOTATION, FAULT_TOLERATION}
    | {POD_PREFLIGHT, MEMORY_LIMIT_ANNOTATION, MEMORY_ENFORCEMENT_ANNOTATION}
)
_LABELS = frozenset({QUEUE_LABEL, GANG_LABEL, POD_GROUP_LABEL, KUEUE_QUEUE_LABEL})
NODE_LABELS = frozenset({MIG_CONFIG_LABEL, PROFILE_LABEL})
NAMESPACE_LABELS = frozenset({PLACEMENT_LABEL, DEVICE_ACCESS_LABEL})
#: Further keys of Tessera that a pod may have: some are read in either section, others are written by Tessera.
_OTHERS = frozenset({WHOLE_CARD, CHOSEN, CHOSEN_REASON, LENDS_ANNOTATION, PINNED_ANNOTATION, USER_KEY})
#: Longest name of a key after its domain (Kubernetes, qualified names).
_LONGEST = 63
_SECONDS = re.compile(rf"[0-9]{{1,{FAULT_TOLERATION_DIGITS}}}")
#: Annotations of a pod whose other values have no effect: what each may be, and whether a value is that.
_VALUES: Mapping[str, tuple[str, Callable[[str], object]]] = {
    **dict.fromkeys(
        (MOVABLE_ANNOTATION, YIELDS_ANNOTATION, POD_PREFLIGHT), ('"true" or "false"', {"true", "false"}.__contains__)
    ),
    FAULT_TOLERATION: (f"a number of seconds of at most {FAULT_TOLERATION_DIGITS} digits", _SECONDS.fullmatch),
    MEMORY_ENFORCEMENT_ANNOTATION: ('"off"', lambda text: text.strip().lower() == "off"),
    MEMORY_LIMIT_ANNOTATION: ("a quantity of bytes such as 4Gi", lambda text: count_or_zero(text) > 0),
}
#: Annotations by which KAI and Run:ai share a card.
_KAI = frozenset({"gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"})


def misplaced_on_pod(
    pod: Pod, is_node_label: Callable[[str], object], configured: Collection[str] | None = None
) -> Iterator[str]:
    """Keys of a pod that have no effect where they stand, values that have none, and selectors that select no node.

    Args:
        pod: the pod.
        is_node_label: whether a node has this label.
        configured: keys of pods that options of the controller name; None if they are not known.
    """
    meta, kai = pod.metadata, pod.spec.scheduler_name in {"", DEFAULT_SCHEDULER}
    of_tessera = meta.namespace == SYSTEM_NAMESPACE
    for section, keys in (("annotation", meta.annotations), ("label", meta.labels)):
        for key in sorted(keys):
            if right := _right_section(section, key, kai=kai) or (
                "" if of_tessera else _unknown(section, key, configured)
            ):
                yield f"its {section} {key} has no effect: {right}"
            elif wrong := _find_wrong_value(key, str(keys[key])):
                yield f"its {section} {wrong}"
    for key in sorted(pod.spec.node_selector):
        if (right := _right_section("nodeSelector", key, kai=kai)) and not is_node_label(key):
            yield f"its nodeSelector {key} matches no node: {right}"


def _right_section(section: str, key: str, *, kai: bool) -> str:
    if key in _ANNOTATIONS and section != "annotation":
        return "it is an annotation, in metadata.annotations of the pod or of the pod template"
    if key in _LABELS and section != "label":
        return "it is a label, in metadata.labels of the pod or of the pod template"
    if key in NODE_LABELS and section != "nodeSelector":
        return f"it is a label of nodes (kubectl label node NODE {key}=VALUE); a pod selects such nodes by nodeSelector"
    if key in NAMESPACE_LABELS:
        return f"it is a label of the namespace (kubectl label namespace NAMESPACE {key}=VALUE)"
    if is_part(key) or (kai and section == "annotation" and key in _KAI):
        return f"other systems share a card by it; here the annotation {MEMORY} asks for a part of a card"
    if key in GPU_RESOURCES or key.startswith(MIG_RESOURCE_PREFIX):
        return "it is a resource, in resources.limits of a container"
    return ""


def _find_wrong_value(key: str, text: str) -> str:
    """Names a value that has no effect; empty if it has one, or if others read the key."""
    wanted, is_right = _VALUES.get(key, ("", bool))
    if not wanted or is_right(text):
        return ""
    return f'{key}: "{one_line(text, VALUE_SHOWN)}" has no effect: write {wanted}'


def _unknown(section: str, key: str, configured: Collection[str] | None) -> str:
    known = _ANNOTATIONS if section == "annotation" else _LABELS
    if not key.startswith(OWN_DOMAIN) or key in known or key in _OTHERS or key in (configured or ()):
        return ""
    names = sorted(each.removeprefix(OWN_DOMAIN) for each in known if each.startswith(OWN_DOMAIN))
    close = get_close_matches(key.removeprefix(OWN_DOMAIN)[:_LONGEST], names, n=1, cutoff=0.6)
    if close:
        return f"Tessera reads no {section} of this name; did you mean {OWN_DOMAIN}{close[0]}?"
    unless = ", unless the controller's --usage-user or --usage-label names it" if configured is None else ""
    return f"Tessera reads no {section} of this name{unless}"
