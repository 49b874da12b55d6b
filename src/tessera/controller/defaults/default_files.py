"""The files that an installation brings: MIG layouts for every known model, and sharing profiles.

NVIDIA's MIG manager ships a file with ``all-disabled``, ``all-enabled``, ``all-balanced`` and ``all-<profile>`` for
each profile (mig-parted, ``config-default.yaml``). This one has the same names and counts, but it is made from the
geometry in :mod:`tessera.mig.models`, so it has every model with known placements. Each entry selects its cards by PCI
id, and by model for cards whose id is not in the table: a node of several models gets what fits each of its cards.

The names and the form of the profiles are those of CERN's articles on shared GPUs: ``slice-4`` makes four shares of
each whole card, a container gets one, and the resource is called ``nvidia.com/gpu.shared``. Shares by MPS are
``nvidia.com/gpu.mps``, so that both kinds can be in one cluster and a pod can tell them apart.
"""

from collections.abc import Iterator, Mapping
from functools import cache

from tessera.api.mig_layouts.generated import BALANCED, DISABLED, ENABLED, LayoutCardModel, generated_layouts
from tessera.mig.geometry import GpuModel
from tessera.mig.models import MODELS
from tessera.mig.names import resource_spelling

#: The key of the file in its ConfigMap, as in NVIDIA's.
LAYOUTS_KEY = "config.yaml"
_NVIDIA = "10DE"
_HEADER = """\
# MIG layouts of Tessera, by the names of NVIDIA's MIG manager. A node has the one that its label names:
#   kubectl label node NODE nvidia.com/mig.config=all-balanced
# Tessera renews this text with each version until somebody changes it. Write your own layouts under another key.
version: v1
mig-configs:
"""


@cache
def default_layouts() -> str:
    """Returns the file."""
    return _HEADER + "".join(_layout_text(name, cards) for name, cards in _layouts().items())


def _layouts() -> Mapping[str, Mapping[tuple[tuple[str, int], ...], list[GpuModel]]]:
    """The models of each layout, grouped by the instances that a card has in it."""
    found: dict[str, dict[tuple[tuple[str, int], ...], list[GpuModel]]] = {DISABLED: {}, ENABLED: {}, BALANCED: {}}
    for model in MODELS:
        if model.table is None:
            continue
        made = generated_layouts([LayoutCardModel(0, model.table)])
        for name, (entry,) in made.items():
            if name in {DISABLED, ENABLED}:
                continue
            instances = tuple(sorted(entry.counts.items()))
            for spelling in (name, *_aliases(model, name)):
                found.setdefault(spelling, {}).setdefault(instances, []).append(model)
    return found


def _aliases(model: GpuModel, name: str) -> Iterator[str]:
    """Other names of a layout, for boards whose memory NVIDIA's tools round in two ways."""
    assert model.table is not None
    for profile in model.table.profiles:
        if name == f"all-{profile.spelling}":
            yield from (f"all-{resource_spelling(alias)}" for alias in profile.aliases)


def _layout_text(name: str, groups: Mapping[tuple[tuple[str, int], ...], list[GpuModel]]) -> str:
    if name == DISABLED:
        return f"  {name}:\n  - devices: all\n    mig-enabled: false\n"
    if name == ENABLED:
        return f"  {name}:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {{}}\n"
    return f"  {name}:\n" + "".join(_entry_text(instances, models) for instances, models in groups.items())


def _entry_text(instances: tuple[tuple[str, int], ...], models: list[GpuModel]) -> str:
    wanted = ", ".join(f'"{profile}": {count}' for profile, count in instances)
    selected = ", ".join(f'"{each}"' for model in models for each in _filters(model))
    return f"  - devices: all\n    device-filter: [{selected}]\n    mig-enabled: true\n    mig-devices: {{{wanted}}}\n"


def _filters(model: GpuModel) -> Iterator[str]:
    yield model.short_name
    yield from (f"0x{each}{_NVIDIA}" for each in model.pci_device_ids)


#: Shares of a card in the profiles.
TIME_SLICES = (2, 4, 8, 10)
#: NVIDIA's limit is 48 clients of a card from compute capability 7.0 on; each gets its part of memory and threads.
MPS_SHARES = (2, 4, 8)

_PROFILE = """\
# {count} shares of each whole card, {how}. A node has the profile that its label names:
#   kubectl label node NODE nvidia.com/device-plugin.config={name}
# Tessera renews this text with each version until somebody changes it. Write your own profiles under other keys.
version: v1
sharing:
  {kind}:
{flags}    resources:
    - name: nvidia.com/gpu
      rename: {rename}
      replicas: {count}
"""


def default_profiles() -> Mapping[str, str]:
    """Returns the profiles by their name, which is their key in the ConfigMap."""
    slices = {f"slice-{count}": _time_slices(f"slice-{count}", count) for count in TIME_SLICES}
    return slices | {f"mps-{count}": _mps(f"mps-{count}", count) for count in MPS_SHARES}


def _time_slices(name: str, count: int) -> str:
    flags = "    failRequestsGreaterThanOne: true\n"
    how = "which take turns on it; nothing limits their memory (tessera agent --memory-limits does)"
    return _PROFILE.format(
        name=name, count=count, kind="timeSlicing", flags=flags, rename="nvidia.com/gpu.shared", how=how
    )


def _mps(name: str, count: int) -> str:
    how = "which run side by side; each has its part of memory and threads"
    return _PROFILE.format(name=name, count=count, kind="mps", flags="", rename="nvidia.com/gpu.mps", how=how)
