"""The labels of GPU feature discovery: its own tables, and cases that it leaves open."""

import re
from itertools import permutations
from typing import Any

import msgspec
import pytest
import yaml

from tessera.agent.node_status.labels import (
    CardFacts,
    LabelFacts,
    LabelFactsError,
    MigFacts,
    Share,
    VgpuFacts,
    node_labels,
)
from tessera.api.names import MIG_CONFIG_STATE_LABEL
from tessera.api.sharing.devices import SharingKind
from tessera.api.sharing.profile import MigStrategy
from tessera.doctor.manifests import deploy_folder
from tessera.nvml.interface import family

FULL = CardFacts(product="MOCKMODEL", memory_mib=300, compute_capability=(8, 0))
#: Upstream's stand-in for a card in MIG mode tells no compute capability.
MIG = CardFacts(product="MOCKMODEL", memory_mib=300, compute_capability=(0, 0), mig_capable=True, mig_enabled=True)
A100 = CardFacts(
    product="NVIDIA A100-SXM4-40GB",
    memory_mib=40960,
    compute_capability=(8, 0),
    mig_capable=True,
    nvlink=True,
    ecc=True,
)
T4 = CardFacts(product="Tesla T4", memory_mib=15360, compute_capability=(7, 5), ecc=True)

ARCHITECTURE = {"gpu.compute.major": "8", "gpu.compute.minor": "0", "gpu.family": "ampere"}
TWO_SLICES = Share(SharingKind.TIME_SLICING, 2)
TWO_RENAMED = Share(SharingKind.TIME_SLICING, 2, renamed=True)
TWO_MPS = Share(SharingKind.MPS, 2)
TWO_MPS_RENAMED = Share(SharingKind.MPS, 2, renamed=True)


def instance(gi: int, ci: int, memory: int, **engines: int) -> MigFacts:
    return MigFacts(profile=f"{gi}g.{memory}gb", memory_mib=memory, gi_slices=gi, ci_slices=ci, **engines)


def cut(*devices: MigFacts, card: CardFacts = MIG) -> CardFacts:
    return msgspec.structs.replace(card, mig_capable=True, mig_enabled=True, mig_devices=devices)


def labels_of(*cards: CardFacts, **more: Any) -> dict[str, str]:
    return node_labels(LabelFacts(cards=cards, driver_version="570.133.20", cuda_version=12080, **more))


def resource_labels(*cards: CardFacts, **more: Any) -> dict[str, str]:
    """The labels that upstream's tables of resources tell of, without their prefix."""
    apart = ("cuda.", "gpu.machine", "gpu.mode", "mig.capable", "mps.capable")
    found = {name.removeprefix("nvidia.com/"): value for name, value in labels_of(*cards, **more).items()}
    return {name: value for name, value in found.items() if not name.startswith((*apart, "tessera.dev/"))}


def base(
    product: str, count: int, replicas: int, strategy: str, memory: int = 300, *, resource: str = "gpu"
) -> dict[str, str]:
    return {
        f"{resource}.product": product,
        f"{resource}.count": str(count),
        f"{resource}.replicas": str(replicas),
        f"{resource}.sharing-strategy": strategy,
        f"{resource}.memory": str(memory),
    }


def attributes(resource: str, gi: int, ci: int, *engines: int) -> dict[str, str]:
    """Slices, and SMs and engines if the driver reports any: an unknown number has no label, it is not 0."""
    names = ("multiprocessors", "engines.copy", "engines.decoder", "engines.encoder", "engines.jpeg", "engines.ofa")
    found = {f"{resource}.{name}": str(value) for name, value in zip(names, engines, strict=True)} if engines else {}
    return found | {f"{resource}.slices.gi": str(gi), f"{resource}.slices.ci": str(ci)}


@pytest.mark.parametrize(
    ("shares", "product", "replicas", "strategy"),
    [
        ({}, "MOCKMODEL", 1, "none"),
        ({"nvidia.com/not-gpu": TWO_SLICES}, "MOCKMODEL", 1, "none"),
        ({"nvidia.com/gpu": TWO_SLICES}, "MOCKMODEL-SHARED", 2, "time-slicing"),
        ({"nvidia.com/gpu": TWO_RENAMED}, "MOCKMODEL", 2, "time-slicing"),
        ({"nvidia.com/not-gpu": TWO_MPS}, "MOCKMODEL", 1, "none"),
        ({"nvidia.com/gpu": TWO_MPS}, "MOCKMODEL-SHARED", 2, "mps"),
        ({"nvidia.com/gpu": TWO_MPS_RENAMED}, "MOCKMODEL", 2, "mps"),
        ({"nvidia.com/gpu": Share(SharingKind.TIME_SLICING, 1)}, "MOCKMODEL", 1, "none"),
    ],
)
def test_a_whole_card(shares: dict[str, Share], product: str, replicas: int, strategy: str) -> None:
    assert resource_labels(FULL, shares=shares) == base(product, 1, replicas, strategy) | ARCHITECTURE


@pytest.mark.parametrize(
    ("cards", "shares", "expected"),
    [
        ((FULL,), {}, base("MOCKMODEL", 1, 1, "none") | ARCHITECTURE),
        ((FULL, FULL), {"nvidia.com/gpu": TWO_SLICES}, base("MOCKMODEL-SHARED", 2, 2, "time-slicing") | ARCHITECTURE),
        ((MIG,), {"nvidia.com/gpu": TWO_SLICES}, base("MOCKMODEL", 1, 0, "none")),
        ((MIG, MIG), {"nvidia.com/gpu": TWO_SLICES}, base("MOCKMODEL", 2, 0, "none")),
        ((MIG, FULL), {"nvidia.com/gpu": TWO_SLICES}, base("MOCKMODEL-SHARED", 2, 2, "time-slicing") | ARCHITECTURE),
    ],
)
def test_strategy_none(cards: tuple[CardFacts, ...], shares: dict[str, Share], expected: dict[str, str]) -> None:
    assert resource_labels(*cards, shares=shares) == expected


INVALID = base("MOCKMODEL-MIG-INVALID", 0, 0, "", 0)


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        ((FULL,), base("MOCKMODEL", 1, 1, "none") | ARCHITECTURE),
        ((FULL, FULL), base("MOCKMODEL", 2, 1, "none") | ARCHITECTURE),
        (
            (cut(instance(1, 2, 100)),),
            base("MOCKMODEL-MIG-1g.100gb", 1, 1, "none", 100) | attributes("gpu", 1, 2),
        ),
        (
            (
                cut(
                    instance(
                        1,
                        2,
                        100,
                        multiprocessors=12,
                        copy_engines=13,
                        decoders=14,
                        encoders=15,
                        jpeg_engines=16,
                        ofa_engines=17,
                    )
                ),
            )
            * 2,
            base("MOCKMODEL-MIG-1g.100gb", 2, 1, "none", 100) | attributes("gpu", 1, 2, 12, 13, 14, 15, 16, 17),
        ),
        ((MIG,), INVALID),
        ((cut(instance(1, 2, 100), instance(3, 4, 100)),), INVALID),
        ((cut(instance(1, 2, 100)), FULL), INVALID | ARCHITECTURE),
        ((cut(instance(1, 2, 100)), FULL, MIG), INVALID | ARCHITECTURE),
    ],
)
def test_strategy_single(cards: tuple[CardFacts, ...], expected: dict[str, str]) -> None:
    found = resource_labels(*cards, mig_strategy=MigStrategy.SINGLE)
    assert found == expected | {"mig.strategy": "single"}


@pytest.mark.parametrize(
    ("share", "suffix", "replicas", "strategy"),
    [
        (None, "", 1, "none"),
        (TWO_SLICES, "-SHARED", 2, "time-slicing"),
        (TWO_RENAMED, "", 2, "time-slicing"),
    ],
)
def test_shares_of_mig_devices(share: Share | None, suffix: str, replicas: int, strategy: str) -> None:
    card = cut(instance(1, 2, 300))
    name = f"MOCKMODEL-MIG-1g.300gb{suffix}"
    single = resource_labels(card, mig_strategy=MigStrategy.SINGLE, shares={"nvidia.com/gpu": share} if share else {})
    assert single == base(name, 1, replicas, strategy) | attributes("gpu", 1, 2) | {"mig.strategy": "single"}
    resource = "mig-1g.300gb"
    mixed = resource_labels(
        card, mig_strategy=MigStrategy.MIXED, shares={"nvidia.com/" + resource: share} if share else {}
    )
    parent = base("MOCKMODEL", 1, 0, "none")
    expected = base(name, 1, replicas, strategy, resource=resource) | attributes(resource, 1, 2)
    assert mixed == parent | expected | {"mig.strategy": "mixed"}


def test_seed_layout_mixed() -> None:
    small = MigFacts(profile="1g.5gb", memory_mib=4864, gi_slices=1, ci_slices=1, multiprocessors=14)
    large = MigFacts(profile="2g.10gb", memory_mib=9856, gi_slices=2, ci_slices=2, multiprocessors=28)
    labels = labels_of(*[cut(large, large, small, small, small, card=A100)] * 4, mig_strategy=MigStrategy.MIXED)
    assert labels["nvidia.com/mig-1g.5gb.count"] == "12"
    assert labels["nvidia.com/mig-2g.10gb.count"] == "8"
    assert labels["nvidia.com/mig-2g.10gb.product"] == "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb"
    assert labels["nvidia.com/gpu.count"] == "4"
    assert labels["nvidia.com/gpu.compute.major"] == "8"


def test_seed_shares() -> None:
    renamed = labels_of(*[A100] * 4, shares={"nvidia.com/gpu": Share(SharingKind.TIME_SLICING, 4, renamed=True)})
    assert renamed["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    plain = labels_of(*[A100] * 4, shares={"nvidia.com/gpu": Share(SharingKind.TIME_SLICING, 4)})
    assert plain["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-SHARED"
    assert (plain["nvidia.com/gpu.count"], plain["nvidia.com/gpu.replicas"]) == ("4", "4")


def test_seed_single_strategy() -> None:
    small = MigFacts(profile="1g.5gb", memory_mib=4864, gi_slices=1, ci_slices=1)
    labels = labels_of(*[cut(*[small] * 7, card=A100)] * 4, mig_strategy=MigStrategy.SINGLE)
    assert labels["nvidia.com/gpu.count"] == "28"
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"


def test_a_profile_with_a_plus_has_a_label_that_is_legal() -> None:
    media = MigFacts(profile="1g.5gb+me", memory_mib=4864, gi_slices=1, ci_slices=1)
    labels = labels_of(cut(media, card=A100), mig_strategy=MigStrategy.MIXED)
    assert labels["nvidia.com/mig-1g.5gb.me.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me"


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        ([FULL], "false"),
        ([FULL, FULL], "false"),
        ([MIG], "true"),
        ([FULL, MIG], "true"),
        ([A100], "true"),
    ],
)
def test_mig_capable(cards: list[CardFacts], expected: str) -> None:
    assert labels_of(*cards)["nvidia.com/mig.capable"] == expected


def test_without_cards_no_label_describes_cards() -> None:
    assert labels_of() == {}
    assert labels_of(msgspec.structs.replace(FULL, product="NVIDIA DGX Display")) == {}
    assert labels_of(timestamp=1_700_000_000) == {"nvidia.com/gfd.timestamp": "1700000000"}


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([0x030000], "graphics"),
        ([0x030200], "compute"),
        ([0x068000], "unknown"),
        ([0x030200] * 3, "compute"),
        ([0x030000] * 3, "graphics"),
        ([0x030000, 0x030200, 0x030000], "unknown"),
        ([None], "unknown"),
    ],
)
def test_gpu_mode(classes: list[int | None], expected: str) -> None:
    cards = [msgspec.structs.replace(FULL, pci_class=each) for each in classes]
    assert labels_of(*cards)["nvidia.com/gpu.mode"] == expected


def test_mps_capable_follows_the_offer_whatever_the_mode_of_other_cards() -> None:
    assert labels_of(A100)["nvidia.com/mps.capable"] == "false"
    assert labels_of(A100, mps=True)["nvidia.com/mps.capable"] == "true"
    assert labels_of(A100, MIG, mps=True)["nvidia.com/mps.capable"] == "true"


@pytest.mark.parametrize("strategy", list(MigStrategy))
def test_slices_on_demand_change_no_label(strategy: MigStrategy) -> None:
    card = msgspec.structs.replace(cut(card=A100), on_demand=True)
    busy = msgspec.structs.replace(card, mig_devices=(instance(1, 1, 5), instance(2, 2, 10)))
    labels = labels_of(busy, T4, mig_strategy=strategy)
    assert labels == labels_of(card, T4, mig_strategy=strategy)
    assert labels["nvidia.com/mig.capable"] == "true"
    assert "INVALID" not in str(labels)


def test_a_node_whose_cards_are_all_cut_on_demand_has_no_whole_ones() -> None:
    labels = labels_of(*[msgspec.structs.replace(cut(card=A100), on_demand=True)] * 2, mig_strategy=MigStrategy.SINGLE)
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.replicas"]) == ("2", "0")


def test_a_compute_instance_that_does_not_fill_its_gpu_instance_has_no_labels_under_mixed() -> None:
    part = MigFacts(profile="1c.3g.20gb", memory_mib=19968, gi_slices=3, ci_slices=1)
    assert not [name for name in labels_of(cut(part, card=A100), mig_strategy=MigStrategy.MIXED) if "3g" in name]


def test_versions() -> None:
    labels = labels_of(A100)
    assert {name: value for name, value in labels.items() if "cuda" in name} == {
        "nvidia.com/cuda.driver-version.major": "570",
        "nvidia.com/cuda.driver-version.minor": "133",
        "nvidia.com/cuda.driver-version.revision": "20",
        "nvidia.com/cuda.driver-version.full": "570.133.20",
        "nvidia.com/cuda.runtime-version.major": "12",
        "nvidia.com/cuda.runtime-version.minor": "8",
        "nvidia.com/cuda.runtime-version.full": "12.8",
        "nvidia.com/cuda.driver.major": "570",
        "nvidia.com/cuda.driver.minor": "133",
        "nvidia.com/cuda.driver.rev": "20",
        "nvidia.com/cuda.runtime.major": "12",
        "nvidia.com/cuda.runtime.minor": "8",
    }


def test_a_driver_version_of_two_parts_has_no_revision() -> None:
    labels = node_labels(LabelFacts(cards=[A100], driver_version="575.64", cuda_version=12090))
    assert labels["nvidia.com/cuda.driver-version.revision"] == ""


@pytest.mark.parametrize("version", ["570", "1.2.3.4", ""])
def test_other_driver_versions_are_refused(version: str) -> None:
    with pytest.raises(LabelFactsError, match="not of the form X"):
        node_labels(LabelFacts(cards=[A100], driver_version=version, cuda_version=12090))


def test_machine_clique_and_vgpu() -> None:
    card = msgspec.structs.replace(A100, fabric=("cluster-1", "7"))
    labels = labels_of(card, card, machine="DGXA100 920-23687", vgpu=VgpuFacts("535.54", "r535_54"))
    assert labels["nvidia.com/gpu.machine"] == "DGXA100-920-23687"
    assert labels["nvidia.com/gpu.clique"] == "cluster-1.7"
    assert labels["nvidia.com/vgpu.present"] == "true"
    assert labels["nvidia.com/vgpu.host-driver-version"] == "535.54"
    assert labels["nvidia.com/vgpu.host-driver-branch"] == "r535_54"
    assert labels_of(A100)["nvidia.com/gpu.machine"] == "unknown"


def test_cards_of_two_cliques_have_no_clique_label() -> None:
    cards = [msgspec.structs.replace(A100, fabric=("cluster-1", clique)) for clique in ("7", "8")]
    assert "nvidia.com/gpu.clique" not in labels_of(*cards)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((1, 3), "tesla"),
        ((2, 0), "fermi"),
        ((3, 7), "kepler"),
        ((5, 2), "maxwell"),
        ((6, 1), "pascal"),
        ((7, 0), "volta"),
        ((7, 5), "turing"),
        ((8, 6), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((10, 3), "blackwell"),
        ((12, 0), "blackwell"),
        ((13, 0), "rubin"),
        ((4, 0), "undefined"),
        ((11, 0), "undefined"),
    ],
)
def test_family(capability: tuple[int, int], expected: str) -> None:
    assert family(capability) == expected


def test_nvlink_and_ecc_are_true_only_if_every_card_has_them() -> None:
    uniform = labels_of(A100, A100)
    assert (uniform["tessera.dev/gpu.nvlink"], uniform["tessera.dev/gpu.ecc"]) == ("true", "true")
    mixed = labels_of(A100, T4)
    assert (mixed["tessera.dev/gpu.nvlink"], mixed["tessera.dev/gpu.ecc"]) == ("mixed", "true")
    assert labels_of(FULL)["tessera.dev/gpu.ecc"] == "false"


def test_in_mig_mode_there_is_no_nvlink() -> None:
    assert labels_of(cut(card=A100))["tessera.dev/gpu.nvlink"] == "false"


def test_cards_of_each_model_are_counted() -> None:
    labels = labels_of(A100, T4, T4)
    assert labels["tessera.dev/count.NVIDIA-A100-SXM4-40GB"] == "1"
    assert labels["tessera.dev/count.Tesla-T4"] == "2"


MIXED_NODES = [
    [A100, T4],
    [A100, A100, T4],
    [cut(instance(1, 1, 5), instance(2, 2, 10), card=A100), T4, A100],
    [cut(instance(1, 1, 10), card=A100), cut(instance(1, 1, 10, multiprocessors=9), card=A100), T4],
]


@pytest.mark.parametrize("cards", MIXED_NODES)
@pytest.mark.parametrize("strategy", MigStrategy)
def test_the_order_of_cards_does_not_matter(cards: list[CardFacts], strategy: MigStrategy) -> None:
    assert len({str(labels_of(*order, mig_strategy=strategy)) for order in permutations(cards)}) == 1


def test_the_labels_describe_the_model_with_whole_cards() -> None:
    labels = labels_of(cut(instance(1, 1, 5), card=A100), cut(card=A100), T4, mig_strategy=MigStrategy.MIXED)
    assert labels["nvidia.com/gpu.product"] == "Tesla-T4"
    assert labels["nvidia.com/gpu.memory"] == "15360"
    assert labels["nvidia.com/gpu.count"] == "1"


@pytest.mark.parametrize("cards", MIXED_NODES)
def test_every_label_is_legal(cards: list[CardFacts]) -> None:
    long = msgspec.structs.replace(A100, product="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition of (a) Kind_")
    for name, value in labels_of(*cards, long, mig_strategy=MigStrategy.MIXED, machine="x" * 10).items():
        prefix, _, key = name.partition("/")
        assert prefix in {"nvidia.com", "tessera.dev"}
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", key), name
        assert re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", value), (name, value)


@pytest.mark.parametrize("cards", MIXED_NODES)
@pytest.mark.parametrize("strategy", MigStrategy)
def test_the_agents_policy_lets_it_write_every_label(cards: list[CardFacts], strategy: MigStrategy) -> None:
    """``deploy/policies/agent.yaml`` lists the labels in one pattern."""
    vgpu = VgpuFacts(host_driver_version="550.54", host_driver_branch="r550")
    fabric = msgspec.structs.replace(A100, fabric=("c", "1"))
    labels = labels_of(*cards, fabric, mig_strategy=strategy, timestamp=1, mps=True, vgpu=vgpu)
    (text,) = (
        variable["expression"]
        for each in yaml.safe_load_all((deploy_folder() / "policies" / "agent.yaml").read_text())
        for variable in each["spec"].get("variables", ())
        if variable["name"] == "foreignLabels"
    )
    (pattern,) = re.findall(r"'(\^.*\$)'", text)
    assert [name for name in (*labels, MIG_CONFIG_STATE_LABEL) if not re.search(pattern, name)] == []
    others = (
        "nvidia.com/mig.config",
        "nvidia.com/gpu.present",
        "nvidia.com/gpu.deploy.driver",
        "tessera.dev/driver-set",
    )
    assert [name for name in others if re.search(pattern, name)] == []
