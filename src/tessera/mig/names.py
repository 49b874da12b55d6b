"""Profile names: computes them from a card's memory, and reads and spells them.

A profile's name is computed by NVIDIA's tools from two readings: the memory of the card and the eighths of it that the
profile takes. Rules kept here:

- whole GiB of the card, rounded up; the profile's part of them rounded half *away from zero*. Python's ``round`` goes
  half to even and misnames the 180, 269 and 278 GB boards, among others (22.5 must become 23, 134.5 must become 135);
- a name's suffix is part of the profile: ``+me`` takes the card's media engines, ``-me`` goes without any, ``+gfx`` can
  render, ``+me.all`` takes all media engines;
- a Kubernetes resource name cannot hold ``+``, so it is written as ``.``; ``-me`` stays.

Compute-instance profiles are numbered by their slice count and never by the GPU instance's profile index: the two
enumerations of NVML differ from the double-memory profile on.
"""

import re
from functools import lru_cache

import msgspec

#: Prefix of a profile's spelling in a Kubernetes resource name (NVIDIA device plugin, strategy ``mixed``).
RESOURCE_PREFIX = "nvidia.com/mig-"

#: Memory slots of a whole card: NVIDIA divides the memory of a card with MIG into eight.
CARD_SLOTS = 8
#: Stands for a profile: one share of a card that ResourceClaims get in shares.
CLAIMED_SHARE = "tessera.dev/gpu.shared"

_GRAMMAR = re.compile(r"(?P<slices>[1-9]\d*)g\.(?P<gb>\d+)gb(?P<suffix>(?:[+.-][a-z][a-z0-9.]*)?)")

#: nvml.h, NVML_COMPUTE_INSTANCE_PROFILE_<n>_SLICE.
_CI_PROFILE_INDEX = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}

#: nvml.h, NVML_GPU_INSTANCE_PROFILE_*.
_GI_PROFILE_INDEX = {
    (1, ""): 0,
    (2, ""): 1,
    (3, ""): 2,
    (4, ""): 3,
    (7, ""): 4,
    (8, ""): 5,
    (6, ""): 6,
    (1, "+me"): 7,
    (2, "+me"): 8,
    (1, "+gfx"): 10,
    (2, "+gfx"): 11,
    (4, "+gfx"): 12,
    (1, "-me"): 13,
    (2, "-me"): 14,
    (1, "+me.all"): 15,
    (2, "+me.all"): 16,
    (3, "+gfx"): 17,
}

#: nvml.h, NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2.
_DOUBLE_MEMORY_GI_PROFILE_INDEX = 9


class ProfileName(msgspec.Struct, frozen=True):
    """The parts of a profile's name.

    Attributes:
        slices: compute slices, the 3 of ``3g.20gb``.
        memory_gb: the GB that the name states, the 20 of ``3g.20gb``.
        suffix: ``""``, ``"+me"``, ``"-me"``, ``"+gfx"`` or ``"+me.all"``, always with its sign.
    """

    slices: int
    memory_gb: int
    suffix: str

    @property
    def media(self) -> bool:
        """True if the profile takes the card's media engines, of which a card has one set."""
        return self.suffix in ("+me", "+me.all")

    def __str__(self) -> str:
        return f"{self.slices}g.{self.memory_gb}gb{self.suffix}"


@lru_cache(maxsize=1024)
def parse_profile_name(text: str) -> ProfileName:
    """Reads ``3g.20gb``, ``1g.5gb+me`` or the resource spelling ``1g.5gb.me``.

    Raises:
        ValueError: the text is not a profile's name.
    """
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise ValueError(
            f'"{text}" is not a MIG profile: the form is <compute slices>g.<memory>gb with an optional +me, -me, +gfx'
            " or +me.all, as in 3g.20gb; `nvidia-smi mig -lgip` on the node lists those of its cards"
        )
    suffix = match["suffix"]
    if suffix.startswith("."):
        suffix = "+" + suffix[1:]
    return ProfileName(int(match["slices"]), int(match["gb"]), suffix)


def resource_spelling(name: str) -> str:
    """Returns a profile's name as in a Kubernetes resource name: ``1g.5gb.me`` for ``1g.5gb+me``."""
    return name.replace("+", ".")


def plain_profile(name: str) -> str:
    """Returns the profile of a name, which a claim's choice of single places may follow: ``1g.5gb that …``."""
    return name.partition(" ")[0]


@lru_cache(maxsize=1024)
def takes_media(profile: str) -> bool:
    """True if a profile, or a claim's choice of its places, takes the card's media engines; no device does.

    Raises:
        ValueError: the text is no profile's name.
    """
    return not is_device_profile(profile) and parse_profile_name(plain_profile(profile)).media


def nvml_spelling(name: str) -> str:
    """Returns a profile's name as NVML has it, from either spelling: ``1g.5gb+me`` for ``nvidia.com/mig-1g.5gb.me``."""
    return re.sub(r"(?<=gb)\.(?=me\b|gfx\b)", "+", name.removeprefix(RESOURCE_PREFIX))


def profile_gb(card_mib: int, eighths: int) -> int:
    """The GB in a profile's name.

    Args:
        card_mib: memory of the whole card in MiB.
        eighths: how many eighths of the card's memory the profile takes.
    """
    card_gb = -(-card_mib // 1024)
    return (card_gb * eighths * 2 + 8) // 16


def ci_profile_index(slices: int) -> int:
    """NVML's compute-instance profile for an instance of so many compute slices.

    Raises:
        ValueError: NVML has no compute-instance profile of that many slices.
    """
    index = _CI_PROFILE_INDEX.get(slices)
    if index is None:
        known = ", ".join(map(str, sorted(_CI_PROFILE_INDEX)))
        raise ValueError(f"no compute instance has {slices} slices: NVML knows profiles of {known} slices")
    return index


def gi_profile_index(name: ProfileName, *, double_memory: bool = False) -> int:
    """NVML's GPU-instance profile index for a name.

    Args:
        name: the profile's name.
        double_memory: the card also has a smaller profile of one compute slice, so this one is NVML's ``1_SLICE_REV2``.

    Raises:
        ValueError: NVML has no such GPU-instance profile.
    """
    if double_memory and (name.slices, name.suffix) == (1, ""):
        return _DOUBLE_MEMORY_GI_PROFILE_INDEX
    index = _GI_PROFILE_INDEX.get((name.slices, name.suffix))
    if index is None:
        raise ValueError(f"NVML has no GPU-instance profile of {name.slices} compute slices with {name.suffix!r}")
    return index


def is_device_profile(profile: str) -> bool:
    """True if a name is that of a resource of whole cards or shares, which the planner treats as a profile."""
    return "/" in profile
