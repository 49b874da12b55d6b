"""What to ask for instead of a resource that no node offers, by its name: misspelt, another slicer's, another vendor's.

The webhook says it when the pod, or an object with a template of it, is created; ``tessera why`` says it later.

Sources of the foreign names: HAMi's README (``nvidia.com/gpumem`` in MiB, ``gpucores`` in percent, ``vgpu``), Volcano's
device plugins (``volcano.sh/vgpu-memory`` in MiB), Koordinator, Alibaba's GPU Share, Tencent's GPU Manager, KAI and
Run:ai (annotations ``gpu-memory`` in MiB, ``gpu-fraction``), nos (``nvidia.com/gpu-10gb``).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

import msgspec

from tessera.api.names import (
    GPU_RESOURCES,
    MIG_CONFIG_DYNAMIC,
    MIG_CONFIG_LABEL,
    MIG_RESOURCE_PREFIX,
    SHARED_CARDS,
    WHOLE_CARDS,
    profile_of,
    resource_of,
    suggest_resource,
)
from tessera.api.pods.requirements import MEMORY
from tessera.api.sharing.profile import PROFILE_LABEL
from tessera.api.sharing.profile_parser import SHARED_SUFFIX
from tessera.mig.names import parse_profile_name
from tessera.text import list_names, one_line

#: Resources of NVIDIA's and our device plugins, unless a profile renames them.
DOMAIN = "nvidia.com/"
#: A MIG resource with a spelling mistake.
_MIG = re.compile(r"(?:mig[-.:_]?)?([0-9]{1,2})g[-._]?([0-9]{1,3})gb?(?:[.+]([a-z]{2,6}))?")
#: Parts of names that may mean a GPU.
_GPU_LIKE = ("gpu", "GPU", "mig-", "mig.", "MIG", "cuda")
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


def is_gpu_like(resource: str) -> bool:
    """True if a name may mean a GPU or a part of one. The conditions of deploy/admission.yaml say the same."""
    return resource.startswith("nvidia") or any(part in resource for part in _GPU_LIKE)


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
