"""Builds the node's labels from facts: they describe its cards and how the node offers them.

Names and values are those of NVIDIA's GPU feature discovery, so that selectors, affinities and dashboards written for
it work. The same facts give the same labels in whatever order the cards are listed. A node may have cards of several
models while a label has room for one. The labels then describe the model that has cards without MIG; next, the one
with the most cards; next, the one with more memory; next, the first by name. Tessera's own labels give the number of
cards of each model, and NVLink and ECC, for which upstream has no label.

If a value is too long for a label, the end of the product name is cut off, never the suffix that says how the card is
offered. This module does not know how facts are read or labels written.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tessera.api.nodes.node_cards import count_label, product_label
from tessera.api.sharing.devices import SharingKind
from tessera.api.sharing.profile import MigStrategy
from tessera.mig.names import resource_spelling
from tessera.nvml.interface import family

PREFIX = "nvidia.com/"
GPU = PREFIX + "gpu"
OWN = "tessera.dev/"
#: Small cards that only drive a DGX Station's screen; go-nvlib ignores them.
DISPLAY_CARDS = frozenset({"DGX Display", "NVIDIA DGX Display"})
#: The value of ``gpu.mode`` for each PCI class.
MODES = {0x030000: "graphics", 0x030200: "compute"}
_PART = re.compile(r"\d+c\.")


class LabelFactsError(ValueError):
    """A fact cannot be read. The text is for the administrator."""


class MigFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG device. Engines and multiprocessors are 0 if the driver does not report them.

    Attributes:
        profile: its profile, such as ``3g.20gb``.
        memory_mib: its memory, MiB.
        multiprocessors: its SMs.
        gi_slices: compute slices of its GPU instance.
        ci_slices: compute slices of its compute instance.
        copy_engines: copy engines that it may use; the fields below count its other engines.
    """

    profile: str
    memory_mib: int
    gi_slices: int
    ci_slices: int
    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


class CardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One card.

    Attributes:
        product: product name from NVML.
        memory_mib: total memory, MiB; 0 if it cannot be read.
        compute_capability: major and minor; major 0 if it cannot be read.
        mig_capable: true if it has a MIG mode.
        mig_enabled: true if its MIG mode is on.
        mig_devices: its MIG devices.
        on_demand: true if it is cut as pods ask for it. Its MIG devices come and go with the pods, so no label
            describes them.
        pci_class: its PCI class, such as ``0x030200``; ``None`` if it cannot be read.
        nvlink: true if one of its NVLinks is up; ``None`` if that cannot be read, for example on a lost card.
        ecc: true if ECC is on; ``False`` for a card without ECC; ``None`` if that cannot be read.
        fabric: cluster UUID and clique id on a card that is part of an NVLink fabric.
    """

    product: str
    memory_mib: int
    compute_capability: tuple[int, int]
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_devices: tuple[MigFacts, ...] = ()
    on_demand: bool = False
    pci_class: int | None = None
    nvlink: bool | None = False
    ecc: bool | None = False
    fabric: tuple[str, str] | None = None


class Share(msgspec.Struct, frozen=True):
    """Sharing of the devices of one resource.

    Attributes:
        kind: time slices or MPS.
        replicas: shares of each device.
        renamed: true if the shares have a resource name of their own.
    """

    kind: SharingKind
    replicas: int
    renamed: bool = False


class VgpuFacts(msgspec.Struct, frozen=True):
    """Host driver of a virtual machine whose cards are vGPUs: version and branch."""

    host_driver_version: str
    host_driver_branch: str


class LabelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts behind the labels.

    Attributes:
        cards: the node's cards, in any order.
        driver_version: such as ``570.133.20``.
        cuda_version: the highest CUDA version that the driver runs, as NVML writes it: 12040 is 12.4.
        machine: DMI product name; ``None`` if it cannot be read.
        mig_strategy: how MIG devices are advertised.
        shares: sharing of the devices of each resource, by the resource's name before it is renamed.
        mps: true if MPS shares cards of the node.
        timestamp: seconds since 1970 at which discovery began; ``None`` for no such label.
        vgpu: the host's driver, in a virtual machine with vGPUs; ``None`` elsewhere.
    """

    cards: Sequence[CardFacts]
    driver_version: str
    cuda_version: int
    machine: str | None = None
    mig_strategy: MigStrategy = MigStrategy.NONE
    shares: Mapping[str, Share] = {}
    mps: bool = False
    timestamp: int | None = None
    vgpu: VgpuFacts | None = None


def node_labels(facts: LabelFacts) -> dict[str, str]:
    """Every label of the node, by name. A node without cards gets no labels that describe cards.

    Raises:
        LabelFactsError: ``driver_version`` is not a version.
    """
    labels: dict[str, object] = {}
    if facts.timestamp is not None:
        labels[PREFIX + "gfd.timestamp"] = facts.timestamp
    cards = [card for card in facts.cards if card.product not in DISPLAY_CARDS]
    if cards:
        labels |= _versions(facts.driver_version, facts.cuda_version)
        labels[GPU + ".machine"] = product_label("unknown" if facts.machine is None else facts.machine)
        labels |= _capabilities(cards, mps=facts.mps)
        labels |= _whole_cards(cards, facts.shares)
        labels |= _mig(cards, facts.mig_strategy, facts.shares)
        labels |= _own(cards)
    if facts.vgpu is not None:
        labels[PREFIX + "vgpu.present"] = "true"
        labels[PREFIX + "vgpu.host-driver-version"] = facts.vgpu.host_driver_version
        labels[PREFIX + "vgpu.host-driver-branch"] = facts.vgpu.host_driver_branch
    return {name: str(labels[name]) for name in sorted(labels)}


def _versions(driver: str, cuda: int) -> dict[str, object]:
    parts = driver.split(".")
    if len(parts) not in {2, 3}:
        raise LabelFactsError(f'driver version "{driver}": not of the form X.Y or X.Y.Z; is the driver whole?')
    major, minor, revision = (*parts, "")[:3]
    cuda_major, cuda_minor = cuda // 1000, cuda % 1000 // 10
    return {
        PREFIX + "cuda.driver-version.major": major,
        PREFIX + "cuda.driver-version.minor": minor,
        PREFIX + "cuda.driver-version.revision": revision,
        PREFIX + "cuda.driver-version.full": driver,
        PREFIX + "cuda.runtime-version.major": cuda_major,
        PREFIX + "cuda.runtime-version.minor": cuda_minor,
        PREFIX + "cuda.runtime-version.full": f"{cuda_major}.{cuda_minor}",
        PREFIX + "cuda.driver.major": major,
        PREFIX + "cuda.driver.minor": minor,
        PREFIX + "cuda.driver.rev": revision,
        PREFIX + "cuda.runtime.major": cuda_major,
        PREFIX + "cuda.runtime.minor": cuda_minor,
    }


def _capabilities(cards: Sequence[CardFacts], *, mps: bool) -> dict[str, object]:
    classes = {card.pci_class for card in cards if card.pci_class is not None}
    labels: dict[str, object] = {
        PREFIX + "mig.capable": _truth(any(card.mig_capable for card in cards)),
        PREFIX + "mps.capable": _truth(mps),
        GPU + ".mode": MODES.get(classes.pop(), "unknown") if len(classes) == 1 else "unknown",
    }
    fabrics = {card.fabric for card in cards if card.fabric is not None}
    if len(fabrics) == 1:
        labels[GPU + ".clique"] = ".".join(fabrics.pop())
    return labels


def _whole_cards(cards: Sequence[CardFacts], shares: Mapping[str, Share]) -> dict[str, object]:
    """Labels of the model that they describe. Sharing concerns only cards that are not in MIG mode."""
    alike = described_cards(cards)
    card = min(alike, key=lambda each: (each.mig_enabled, -each.memory_mib, each.compute_capability))
    share = shares.get(GPU)
    labels = _base(GPU, len(alike), [card.product], None if card.mig_enabled else share)
    if card.mig_enabled:
        labels[GPU + ".replicas"] = 0
    if card.memory_mib:
        labels[GPU + ".memory"] = card.memory_mib
    if card.compute_capability[0]:
        labels[GPU + ".family"] = family(card.compute_capability)
        labels[GPU + ".compute.major"], labels[GPU + ".compute.minor"] = card.compute_capability
    return labels


def described_cards(cards: Sequence[CardFacts]) -> list[CardFacts]:
    """The cards of the model that the labels describe on a node with several models; ``cards`` must not be empty."""
    models: dict[str, list[CardFacts]] = {}
    for card in cards:
        models.setdefault(card.product, []).append(card)
    return min(
        models.values(),
        key=lambda alike: (
            all(card.mig_enabled for card in alike),
            -len(alike),
            -max(card.memory_mib for card in alike),
            alike[0].product,
        ),
    )


def _base(resource: str, count: int, name: Sequence[str], share: Share | None) -> dict[str, object]:
    shared = share is not None and share.replicas > 1
    suffix = ["SHARED"] if share is not None and shared and not share.renamed else []
    return {
        resource + ".product": product_label(*name, *suffix),
        resource + ".count": count,
        resource + ".replicas": share.replicas if share is not None and shared else 1,
        resource + ".sharing-strategy": (share.kind if share is not None and shared else SharingKind.NONE).value,
    }


def _mig(cards: Sequence[CardFacts], strategy: MigStrategy, shares: Mapping[str, Share]) -> dict[str, object]:
    if strategy is MigStrategy.NONE:
        return {}
    labels: dict[str, object] = {PREFIX + "mig.strategy": strategy.value}
    cards = [card for card in cards if not card.on_demand]
    devices = [(card, device) for card in cards if card.mig_enabled for device in card.mig_devices]
    by_profile: dict[str, list[tuple[CardFacts, MigFacts]]] = {}
    for card, device in devices:
        by_profile.setdefault(resource_spelling(device.profile), []).append((card, device))
    if strategy is MigStrategy.MIXED:
        for profile, found in by_profile.items():
            if _PART.match(profile):
                continue  # as upstream: a compute instance that does not fill its GPU instance has no resource
            resource = f"{PREFIX}mig-{profile}"
            labels |= _mig_resource(resource, profile, found, shares.get(resource))
    elif any(card.mig_enabled for card in cards):
        whole = all(card.mig_enabled and card.mig_devices for card in cards)
        if whole and len(by_profile) == 1:
            ((profile, found),) = by_profile.items()
            labels |= _mig_resource(GPU, profile, found, shares.get(GPU))
        else:
            labels |= _invalid([card for card in cards if card.mig_enabled])
    return labels


def _mig_resource(
    resource: str, profile: str, found: Sequence[tuple[CardFacts, MigFacts]], share: Share | None
) -> dict[str, object]:
    """Labels of MIG devices of one profile: those of the model with the most devices, then of the first by name."""
    models = Counter(card.product for card, _ in found)
    product = min(models, key=lambda name: (-models[name], name))
    alike = (device for card, device in found if card.product == product)
    device = min(alike, key=lambda each: (each.memory_mib == 0, msgspec.structs.astuple(each)))
    return {
        **_base(resource, len(found), [product, "MIG", profile], share),
        **{f"{resource}.{name}": value for name, value in _attributes(device).items()},
    }


def _attributes(device: MigFacts) -> dict[str, int]:
    """Memory, SMs, slices and engines of a MIG device; no label where the driver reports none."""
    known = {
        "memory": device.memory_mib,
        "multiprocessors": device.multiprocessors,
        "slices.gi": device.gi_slices,
        "slices.ci": device.ci_slices,
    }
    engines = {
        "engines.copy": device.copy_engines,
        "engines.decoder": device.decoders,
        "engines.encoder": device.encoders,
        "engines.jpeg": device.jpeg_engines,
        "engines.ofa": device.ofa_engines,
    }
    reported = any(engines.values())  # every MIG device has a copy engine
    return {name: value for name, value in known.items() if value} | (engines if reported else {})


def _invalid(cards: Sequence[CardFacts]) -> dict[str, object]:
    """Upstream's labels if the strategy ``single`` does not hold: no device is available; the product says so."""
    return {
        GPU + ".product": product_label(described_cards(cards)[0].product, "MIG", "INVALID"),
        GPU + ".count": 0,
        GPU + ".replicas": 0,
        GPU + ".sharing-strategy": "",
        GPU + ".memory": 0,
    }


def _own(cards: Sequence[CardFacts]) -> dict[str, object]:
    labels: dict[str, object] = {
        OWN + "gpu.nvlink": _all_of(False if card.mig_enabled else card.nvlink for card in cards),
        OWN + "gpu.ecc": _all_of(card.ecc for card in cards),
    }
    for product, count in Counter(card.product for card in cards).items():
        labels[count_label(product)] = count
    return labels


def _all_of(values: Iterable[bool | None]) -> str:
    """``true`` only if a pod can rely on it on every card. A card that cannot be read is ignored."""
    found = set(values) - {None}
    return "mixed" if len(found) > 1 else _truth(found == {True})


def _truth(value: bool) -> str:
    return "true" if value else "false"
