"""The GPU models, as data: names, memory, and of those that can be cut the table of profiles.

For planning before a card is present, and for the simulated hardware. The module is long because its table is. On a
node, the table that was read from NVML replaces this one.

Sources: NVIDIA's MIG user guide (edition 620), listings of ``nvidia-smi mig -lgip`` and ``-lgipp`` from real cards,
NVIDIA's mig-parted configurations, and for the vGPU-only H100 64 GB the vGPU guide. Placements were read from
real A100, A30, H100 and H200 cards and one RTX PRO 6000; the later seven-slice boards (B200, GB200, B300, GB300) follow
by family, and so do their GPU-instance profile ids, which NVIDIA does not publish for the B series.

PCI ids are those of the PCI ID repository (pci.ids of 2026-08-22) and of the lists of products in NVIDIA's drivers
(README of open-gpu-kernel-modules). Boards of other forms have the table of their memory: A100X and A30X are an A100
and an A30 beside a BlueField, H100 CNX is an H100 beside a ConnectX (MIG user guide, supported GPUs; product briefs).
PG506 is the board of the SXM A100 and the next two digits are its memory: 20x 40 GB, 21x 80 GB, 23x 96 GB, 24x 64 GB.

Product names and compute capabilities are as NVIDIA writes them, but those of H100 64 GB, 96 GB and CNX, of the PG506
boards, of H20-3e, B300 and Thor were not checked against a reading from a card. ``model_by_product`` answers ``None``
for a name that is not here; nothing on a node depends on it, since the table then comes from NVML.

Not published: the placements of RTX PRO 5000, RTX PRO 4500 and Thor. These models have names and no placements, so
planning for them is refused instead of guessed.

Of the cards without MIG, the module lists only simulated ones (:data:`WHOLE_MODELS`), since there is no layout to plan
for such cards.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from tessera.mig.geometry import Geometry, GpuModel, Profile, closest_profile
from tessera.mig.names import gi_profile_index, parse_profile_name, profile_gb, resource_spelling
from tessera.text import one_line


class _Row(msgspec.Struct, frozen=True):
    """A profile of a placement class: suffix, slices, size and starts in slots, nvidia-smi id, most per card."""

    slices: int
    suffix: str
    size: int
    starts: tuple[int, ...]
    gi_profile_id: int
    max_count: int


# MIG user guide, A100 placements; `nvidia-smi mig -lgipp` on A100-40GB and H100-80GB.
_SEVEN_SLICE = (
    _Row(1, "", 1, (0, 1, 2, 3, 4, 5, 6), 19, 7),
    _Row(1, "+me", 1, (0, 1, 2, 3, 4, 5, 6), 20, 1),
    _Row(1, "", 2, (0, 2, 4, 6), 15, 4),
    _Row(2, "", 2, (0, 2, 4), 14, 3),
    _Row(3, "", 4, (0, 4), 9, 2),
    _Row(4, "", 4, (0,), 5, 1),
    _Row(7, "", 8, (0,), 0, 1),
)
# `nvidia-smi mig -lgipp` on A30.
_FOUR_SLICE = (
    _Row(1, "", 1, (0, 1, 2, 3), 14, 4),
    _Row(1, "+me", 1, (0, 1, 2, 3), 21, 1),
    _Row(2, "", 2, (0, 2), 5, 2),
    _Row(2, "+me", 2, (0, 2), 6, 1),
    _Row(4, "", 4, (0,), 0, 1),
)
# `nvidia-smi mig -lgipp` on one RTX PRO 6000 Blackwell.
_TWELVE_SLOT = (
    _Row(1, "", 3, (0, 3, 6, 9), 14, 4),
    _Row(1, "+me", 3, (0, 3, 6, 9), 21, 1),
    _Row(1, "+gfx", 3, (0, 3, 6, 9), 47, 4),
    _Row(1, "+me.all", 3, (0, 3, 6, 9), 65, 1),
    _Row(1, "-me", 3, (0, 3, 6, 9), 67, 4),
    _Row(2, "", 6, (0, 6), 5, 2),
    _Row(2, "+gfx", 6, (0, 6), 35, 2),
    _Row(2, "+me.all", 6, (0, 6), 64, 1),
    _Row(2, "-me", 6, (0, 6), 66, 2),
    _Row(4, "", 12, (0,), 0, 1),
    _Row(4, "+gfx", 12, (0,), 32, 1),
)

# NVIDIA's tools disagree on GB200: boards of 186 GB and of 189 GB were listed, and configurations name both.
_GB200_ALIASES = {
    "1g.23gb": ("1g.24gb",),
    "1g.23gb+me": ("1g.24gb+me",),
    "3g.93gb": ("3g.95gb",),
    "4g.93gb": ("4g.95gb",),
    "7g.186gb": ("7g.189gb",),
}
_A100_80_ALIASES = {"7g.80gb": ("7g.79gb",)}  # name in the first drivers


# `nvidia-smi mig -lgip`, by the memory slots of an instance; H100: GiB with two digits there (9.75, 19.62, 39.50,
# 79.25); H200: NVML of driver 580.159.04.
_INSTANCE_MIB: Mapping[str, Mapping[int, int]] = {
    "A100-40GB": {1: 4864, 2: 9856, 4: 19968, 8: 40192},
    "A100-80GB": {1: 9856, 2: 19968, 4: 40192, 8: 80384},
    "A30": {1: 5952, 2: 11968, 4: 24000},
    "H100-80GB": {1: 9984, 2: 20096, 4: 40448, 8: 81152},
    "H200": {1: 16384, 2: 33280, 4: 71424, 8: 143360},
}


def _table(family: str, rows: tuple[_Row, ...], memory_mib: int, aliases: Mapping[str, tuple[str, ...]]) -> Geometry:
    slots = max(row.size for row in rows)
    smallest = min(row.size for row in rows)
    profiles = []
    for row in rows:
        gb = profile_gb(memory_mib, row.size * 8 // slots)
        name = parse_profile_name(f"{row.slices}g.{gb}gb{row.suffix}")
        profiles.append(
            Profile(
                name=str(name),
                compute_slices=row.slices,
                size=row.size,
                starts=row.starts,
                max_count=row.max_count,
                memory_gb=gb,
                gi_profile_index=gi_profile_index(name, double_memory=row.slices == 1 and row.size > smallest),
                gi_profile_id=row.gi_profile_id,
                aliases=aliases.get(str(name), ()),
                memory_mib=_INSTANCE_MIB.get(family, {}).get(row.size, 0),
            )
        )
    return Geometry.from_profiles(family, profiles, slots=slots)


def _model(
    short_name: str,
    products: tuple[str, ...],
    memory_mib: int,
    rows: tuple[_Row, ...],
    *,
    pci: str,
    cc: tuple[int, int],
    also: tuple[str, ...] = (),
    aliases: Mapping[str, tuple[str, ...]] | None = None,
) -> GpuModel:
    table = _table(short_name, rows, memory_mib, aliases or {})
    return GpuModel(
        short_name=short_name,
        product_names=products,
        memory_mib=memory_mib,
        pci_device_ids=tuple(pci.split()),
        compute_capability=cc,
        profile_names=table.names,
        table=table,
        other_short_names=also,
    )


def _model_without_placements(
    short_name: str, products: tuple[str, ...], memory_mib: int, profiles: str, *, cc: tuple[int, int]
) -> GpuModel:
    return GpuModel(
        short_name=short_name,
        product_names=products,
        memory_mib=memory_mib,
        pci_device_ids=(),
        compute_capability=cc,
        profile_names=tuple(profiles.split()),
        table=None,
    )


def _model_without_mig(
    short_name: str, product: str, memory_mib: int, *, pci: str, cc: tuple[int, int], also: tuple[str, ...]
) -> GpuModel:
    return GpuModel(
        short_name=short_name,
        product_names=(product,),
        memory_mib=memory_mib,
        pci_device_ids=(pci,),
        compute_capability=cc,
        profile_names=(),
        table=None,
        other_short_names=also,
    )


MODELS: tuple[GpuModel, ...] = (
    _model(
        "A100-40GB",
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100-PG506-207", "NVIDIA A800 40GB Active"),
        40960,
        _SEVEN_SLICE,
        pci="20B0 20B1 20F0 20F1 20F6",
        cc=(8, 0),
        also=("A100-SXM4-40GB", "A100-PCIE-40GB", "A800-40GB", "A100"),
    ),
    _model(
        "A100-64GB",
        ("NVIDIA A100-SXM-64GB", "NVIDIA PG506-242", "NVIDIA PG506-243"),
        64 * 1024,
        _SEVEN_SLICE,
        pci="20B3",
        cc=(8, 0),
        also=("A100-SXM-64GB", "A100-SXM4-64GB"),
    ),
    _model(
        "A100-80GB",
        (
            "NVIDIA A100-SXM4-80GB",
            "NVIDIA A100 80GB PCIe",
            "NVIDIA A100X",
            "NVIDIA A100-PG506-217",
            "NVIDIA A800-SXM4-80GB",
            "NVIDIA A800 80GB PCIe",
        ),
        81920,
        _SEVEN_SLICE,
        pci="20B2 20B5 20B8 20F2 20F3 20F5",
        cc=(8, 0),
        also=("A100-SXM4-80GB", "A100-PCIE-80GB", "A100X", "A800-80GB", "A800"),
        aliases=_A100_80_ALIASES,
    ),
    _model(
        "A30",
        ("NVIDIA A30", "NVIDIA A30X"),
        24576,
        _FOUR_SLICE,
        pci="20B7 20B9",
        cc=(8, 0),
        also=("A30-24GB", "A30X"),
    ),
    _model(
        "H100-80GB",
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 CNX", "NVIDIA H800", "NVIDIA H800 PCIe"),
        81559,
        _SEVEN_SLICE,
        pci="2330 2331 2336 2313 2322 2324",
        cc=(9, 0),
        also=("H100-SXM5-80GB", "H100-PCIE-80GB", "H100-CNX", "H800-80GB", "H100", "H800"),
    ),
    _model("H100-64GB", ("NVIDIA H100 64GB",), 64 * 1024, _SEVEN_SLICE, pci="2337", cc=(9, 0)),
    # NVIDIA's name of this board has no memory size; "H100" in common use is the 80 GB one.
    _model("H100-SXM5-94GB", ("NVIDIA H100",), 94 * 1024, _SEVEN_SLICE, pci="2339", cc=(9, 0)),
    _model(
        "H100-NVL",
        ("NVIDIA H100 NVL", "NVIDIA H800 NVL"),
        94 * 1024,
        _SEVEN_SLICE,
        pci="2321 233A",
        cc=(9, 0),
        also=("H100-94GB", "H100-NVL-94GB", "H800-NVL"),
    ),
    _model("H100-96GB", ("NVIDIA H100 96GB HBM3",), 96 * 1024, _SEVEN_SLICE, pci="233D 2338", cc=(9, 0)),
    _model(
        "GH200-96GB",
        ("NVIDIA GH200 480GB", "NVIDIA GH200 120GB"),
        96 * 1024,
        _SEVEN_SLICE,
        pci="2342",
        cc=(9, 0),
        also=("GH200",),
    ),
    _model("H20-96GB", ("NVIDIA H20",), 96 * 1024, _SEVEN_SLICE, pci="2329", cc=(9, 0), also=("H20",)),
    _model("PG506-96GB", ("NVIDIA PG506-232",), 96 * 1024, _SEVEN_SLICE, pci="20B6", cc=(8, 0)),
    _model(
        "H200",
        ("NVIDIA H200", "NVIDIA H200 NVL"),
        141 * 1024,
        _SEVEN_SLICE,
        pci="2335 233B",
        cc=(9, 0),
        also=("H200-141GB", "H200-NVL"),
    ),
    _model("H20-141GB", ("NVIDIA H20-3e",), 141 * 1024, _SEVEN_SLICE, pci="232C", cc=(9, 0)),
    _model("GH200-144GB", ("NVIDIA GH200 144G HBM3e",), 144 * 1024, _SEVEN_SLICE, pci="2348", cc=(9, 0)),
    _model("B200", ("NVIDIA B200",), 183359, _SEVEN_SLICE, pci="2901", cc=(10, 0), also=("B200-180GB",)),
    _model(
        "GB200",
        ("NVIDIA GB200",),
        189471,
        _SEVEN_SLICE,
        pci="2941",
        cc=(10, 0),
        also=("GB200-186GB",),
        aliases=_GB200_ALIASES,
    ),
    _model("B300", ("NVIDIA B300 SXM6 AC",), 269 * 1024, _SEVEN_SLICE, pci="3182", cc=(10, 3)),
    _model("GB300", ("NVIDIA GB300",), 284208, _SEVEN_SLICE, pci="31C2", cc=(10, 3)),
    _model(
        "RTX-PRO-6000",
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        ),
        96 * 1024,
        _TWELVE_SLOT,
        pci="2BB5",
        cc=(12, 0),
        also=("RTX-PRO-6000-96GB",),
    ),
    _model_without_placements(
        "RTX-PRO-5000",
        ("NVIDIA RTX PRO 5000 Blackwell",),
        48 * 1024,
        "1g.24gb 1g.24gb+me 1g.24gb+gfx 1g.24gb+me.all 1g.24gb-me 2g.48gb 2g.48gb+gfx",
        cc=(12, 0),
    ),
    _model_without_placements(
        "RTX-PRO-4500",
        ("NVIDIA RTX PRO 4500 Blackwell",),
        32 * 1024,
        "1g.16gb 1g.16gb+gfx 1g.16gb+me.all 1g.16gb-me 2g.32gb 2g.32gb+gfx",
        cc=(12, 0),
    ),
    _model_without_placements(
        "Thor",
        ("NVIDIA Thor",),
        128 * 1024,
        "1g.0gb 1g.0gb+me 1g.0gb+gfx 2g.0gb 2g.0gb+gfx 3g.0gb 3g.0gb+gfx",
        cc=(11, 0),
    ),
)

#: Cards without MIG, so that mixed nodes can be simulated. Memory as NVML reports it for T4 and L40S, with ECC on; PCI
#: ids of the PCI ID repository.
WHOLE_MODELS: tuple[GpuModel, ...] = (
    _model_without_mig("T4", "Tesla T4", 15360, pci="1EB8", cc=(7, 5), also=("Tesla-T4",)),
    _model_without_mig(
        "V100-SXM2-16GB", "Tesla V100-SXM2-16GB", 16 * 1024, pci="1DB1", cc=(7, 0), also=("V100", "V100-16GB")
    ),
    _model_without_mig("L40S", "NVIDIA L40S", 46068, pci="26B9", cc=(8, 9), also=("L40S-48GB",)),
)


def model_by_short_name(text: str) -> GpuModel:
    """The model that people write as ``A100-40GB``, ``H100``, ``RTX-PRO-6000``, ``T4``; capitals do not matter.

    A product name counts too, as NVML gives it (``NVIDIA A100-SXM4-40GB``) and as labels of nodes have it
    (``NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED``).

    Raises:
        ValueError: no model of that name; the text lists what exists.
    """
    key = _label_product(text)
    found = _BY_PRODUCT.get(key) or _BY_SHORT_NAME.get(key.removeprefix("nvidia-")) or _model_by_cut_label(text, key)
    if found is not None:
        return found
    known = [model.short_name for model in _EACH]
    closest = closest_profile(key.removeprefix("nvidia-").upper(), known)
    meant = f'; did you mean "{closest}"? The' if closest else "; the"
    raise ValueError(f'no GPU model "{one_line(text)}"{meant} models are {", ".join(known)}')


def suggest_profile(name: str, known: Iterable[str]) -> str | None:
    """The known profile that NVIDIA's tools also call ``name``, or else the one with the closest spelling; or None."""
    known = list(known)
    tables = [model.table for model in MODELS if model.table is not None]
    same = {row.spelling for table in tables if (row := table.find(name)) is not None}
    return next((each for each in known if resource_spelling(each) in same), None) or closest_profile(name, known)


def is_of_a_model(profile: str) -> bool:
    """True if a model in the tables has a profile of this name, in either spelling."""
    return any(model.table is not None and model.table.find(profile) is not None for model in MODELS)


def suggest_model(text: str) -> list[str]:
    """The short names of all models that a family's name such as ``A100`` may mean; none for a model's own name."""
    key = _label_product(text)
    wanted = key.removeprefix("nvidia-")
    names = [model.short_name for model in _EACH]
    if key in _BY_PRODUCT or wanted in map(str.casefold, names):
        return []
    return [name for name in names if name.casefold().startswith(f"{wanted}-")]


def model_by_product(product_name: str) -> GpuModel | None:
    """The model with this NVML product name (``NVIDIA A100-SXM4-40GB``); ``None`` for a card that is in neither table.

    Node labels hold the name with dashes for spaces; that form is found too.
    """
    return _BY_PRODUCT.get(_product_key(product_name))


def _product_key(product_name: str) -> str:
    """A name as a label's value has it (:func:`tessera.api.nodes.node_cards.sanitise`), in small letters."""
    return "-".join(re.sub(r"[^A-Za-z0-9\-_. ]", "", product_name).split()).casefold()


#: What GPU feature discovery adds to a product's name: the profile of MIG devices, and that they are shared.
_LABEL_SUFFIX = re.compile(r"(?:-mig-(?:[1-9]g\.\d+gb(?:[.\-+]?[a-z.]+)?|invalid))?(?:-shared)?$")
#: Most characters of a label's value (Kubernetes); a longer product name is cut at its end, before its suffixes.
_LABEL_LENGTH = 63


def _label_product(text: str) -> str:
    """The product of a text in a label's form, without what labels add to it; of any other name the key."""
    return _LABEL_SUFFIX.sub("", _product_key(text[:256]))


def _model_by_cut_label(text: str, key: str) -> GpuModel | None:
    """The only model whose product begins so, if the label was too long for the whole name."""
    if len(text) < _LABEL_LENGTH - 1 or not key:
        return None
    found = {model.short_name: model for name, model in _BY_PRODUCT.items() if name.startswith(key)}
    return next(iter(found.values())) if len(found) == 1 else None


#: Models by the names that are looked up, in the order of the tables: the first model of a name is meant.
_EACH = (*MODELS, *WHOLE_MODELS)
_BY_PRODUCT: Mapping[str, GpuModel] = {
    _product_key(name): model for model in reversed(_EACH) for name in model.product_names
}
#: The names that people write: a product's without its vendor and its family, and the short ones, which win.
_BY_SHORT_NAME: Mapping[str, GpuModel] = {
    **{
        short: model
        for key, model in _BY_PRODUCT.items()
        for short in (key.removeprefix("nvidia-"), key.removeprefix("nvidia-").replace("-blackwell", ""))
    },
    **{name.casefold(): model for model in reversed(_EACH) for name in (model.short_name, *model.other_short_names)},
}
