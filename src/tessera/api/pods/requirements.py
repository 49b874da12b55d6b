"""Reads a pod's requirements on a GPU from its annotations.

``tessera.dev/gpu-memory: 10Gi``, ``tessera.dev/nvlink: "true"``, ``tessera.dev/ecc: "true"``,
``tessera.dev/compute-capability: ">=8.0"`` (several bounds with commas), ``tessera.dev/product: A100|H100``. A pod has
either requirements or resources: if a pod had both and they differed, neither could be called wrong.

A misspelt key is refused, since an ignored requirement is worse than none.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

from tessera.api.names import GPU_RESOURCES, MIG_RESOURCE_PREFIX
from tessera.kube.quantity import parse_quantity
from tessera.limits import OWN_ANNOTATIONS, PRODUCTS, REQUIRED_MEMORY, REQUIREMENT
from tessera.offers import OPERATORS, CapabilityBound, Requirements
from tessera.text import one_line

PREFIX = "tessera.dev/"
MEMORY = PREFIX + "gpu-memory"
NVLINK = PREFIX + "nvlink"
ECC = PREFIX + "ecc"
CAPABILITY = PREFIX + "compute-capability"
PRODUCT = PREFIX + "product"
KEYS = (MEMORY, NVLINK, ECC, CAPABILITY, PRODUCT)

#: With the value :data:`SLICE`, whole cards become slices of whole cards where no node offers those.
WHOLE_CARD, SLICE = PREFIX + "whole-card", "slice"

#: Annotations that record the choice for a pod, and its reason.
CHOSEN = PREFIX + "chosen-resource"
CHOSEN_REASON = PREFIX + "chosen-resource-reason"

#: A smaller amount counts as a forgotten unit: no slice of any card is smaller.
_LEAST_MEMORY = 2**20
#: Most characters of a mistaken value that a message repeats.
_SHOWN = 40
#: After the sign and without blanks around it. Compute capabilities have two digits at most before the dot.
_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")
#: Longest name of an annotation, without its prefix (Kubernetes, qualified names).
_LONGEST_NAME = 63


class RequirementError(ValueError):
    """An annotation is malformed; the text is for the pod's author."""


def requirements_of(
    annotations: Mapping[str, str], resources: Iterable[str] = (), gpus: Collection[str] = GPU_RESOURCES
) -> Requirements | None:
    """Returns the requirements of a pod, ``None`` if it has none.

    Args:
        annotations: the pod's.
        resources: names of the resources that its containers ask for.
        gpus: names of GPU resources besides those of MIG slices.

    Raises:
        RequirementError: a value is malformed, a key is a misspelling of ours, or the pod also asks for GPUs by name.
    """
    own = [key for key in annotations if key.startswith(PREFIX)]
    if len(own) > OWN_ANNOTATIONS:
        allowed = f"{OWN_ANNOTATIONS} are allowed: remove some"
        raise RequirementError(f"the pod has {len(own)} annotations under {PREFIX}; {allowed}")
    for key in own:
        _refuse_misspelt(key)
    if not any(key in annotations for key in KEYS):
        return None
    for key in KEYS:
        _refuse_long(key, annotations.get(key, ""))
    for resource in resources:
        if resource in gpus or resource.startswith(MIG_RESOURCE_PREFIX):
            written = next(key for key in KEYS if key in annotations)
            raise RequirementError(
                f'annotation {written} and a container\'s resource "{one_line(resource)}" both say which GPU the pod '
                "gets; keep one of them"
            )
    found = Requirements(
        memory=_read_memory(annotations[MEMORY]) if MEMORY in annotations else 0,
        nvlink=_read_boolean(NVLINK, annotations.get(NVLINK, "false")),
        ecc=_read_boolean(ECC, annotations.get(ECC, "false")),
        capability=_read_capability(annotations[CAPABILITY]) if CAPABILITY in annotations else (),
        products=_read_products(annotations[PRODUCT]) if PRODUCT in annotations else (),
    )
    return found if found != Requirements() else None


def _refuse_long(key: str, text: str) -> None:
    if len(text) > REQUIREMENT:
        raise RequirementError(f"annotation {key}: has {len(text):,} characters; {REQUIREMENT} are allowed: shorten it")


def _refuse_misspelt(key: str) -> None:
    if key in {*KEYS, WHOLE_CARD} or len(key) > len(PREFIX) + _LONGEST_NAME:
        return  # the API server refuses the longer ones
    names = [known.removeprefix(PREFIX) for known in (*KEYS, WHOLE_CARD)]
    close = get_close_matches(key.removeprefix(PREFIX), names, n=1, cutoff=0.75)
    if close:
        raise RequirementError(f"annotation {one_line(key)}: unknown; did you mean {PREFIX}{close[0]}?")


def _read_memory(text: str) -> int:
    shown = one_line(text, _SHOWN)
    try:
        amount = parse_quantity(text)
    except ValueError:
        raise RequirementError(f'annotation {MEMORY}: "{shown}" is no quantity; write for example 10Gi') from None
    if amount <= 0:
        raise RequirementError(f'annotation {MEMORY}: "{shown}" must be positive; write for example 10Gi')
    if amount < _LEAST_MEMORY:
        raise RequirementError(f'annotation {MEMORY}: "{shown}" is in bytes; is a unit missing, as in {shown}Gi?')
    if amount > REQUIRED_MEMORY:
        raise RequirementError(
            f'annotation {MEMORY}: "{shown}" is more than any GPU will have; {REQUIRED_MEMORY} are allowed, '
            "write for example 10Gi"
        )
    return int(amount)


def _read_boolean(key: str, text: str) -> bool:
    if text not in {"true", "false"}:
        raise RequirementError(f'annotation {key}: "{one_line(text, _SHOWN)}" must be "true" or "false", in quotes')
    return text == "true"


def _read_capability(text: str) -> tuple[CapabilityBound, ...]:
    return tuple(_read_comparison(part.strip()) for part in text.split(","))


def _read_comparison(part: str) -> CapabilityBound:
    sign = next((each for each in OPERATORS if part.startswith(each)), "")
    version = _VERSION.fullmatch(part.removeprefix(sign).strip())
    if version is None:
        raise RequirementError(
            f'annotation {CAPABILITY}: "{one_line(part, _SHOWN)}" is no bound; write one of {" ".join(OPERATORS)} and '
            'a version, for example ">=8.0" or ">=8.0,<10.0"'
        )
    return CapabilityBound(sign or "==", (int(version[1]), int(version[2])))


def _read_products(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split("|"))
    if len(names) > PRODUCTS:
        allowed = f"{PRODUCTS} are allowed: name families"
        raise RequirementError(f"annotation {PRODUCT}: names {len(names)} models; {allowed}")
    if not all(re.search("[A-Za-z0-9]", name) for name in names):
        raise RequirementError(
            f'annotation {PRODUCT}: "{one_line(text)}" has an empty name; write models divided by |, for example '
            "A100|H100"
        )
    return names
