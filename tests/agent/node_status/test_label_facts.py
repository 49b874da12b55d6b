"""The labels of whole nodes, from simulated cards through the same reading that an agent does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tessera.agent.inventory.gpu_inventory import GpuInventory
from tessera.agent.node_status.label_facts import SIMULATED_MACHINE, SharingFacts, collect_label_facts, read_machine
from tessera.agent.node_status.labels import node_labels
from tessera.api.sharing.devices import Advertisement
from tessera.api.sharing.profile import MigStrategy

A100 = "NVIDIA-A100-SXM4-40GB"
#: Two 2g.10gb and three 1g.5gb on an A100-40GB.
SEED_LAYOUT = (("2g.10gb", 0), ("2g.10gb", 2), ("1g.5gb", 4), ("1g.5gb", 5), ("1g.5gb", 6))
SEVEN = tuple(("1g.5gb", start) for start in range(7))
NONE = SharingFacts(offer=Advertisement(resources={}))


def profile(kind: str = "timeSlicing", *, rename: bool = False, replicas: int = 4, **entry: Any) -> str:
    fields = {"name": "nvidia.com/gpu", "replicas": replicas, **entry}
    resources = ", ".join(f"{key}: {value}" for key, value in fields.items())
    return f"sharing: {{{kind}: {{renameByDefault: {str(rename).lower()}, resources: [{{{resources}}}]}}}}"


def labels_of(stock: GpuInventory, sharing: SharingFacts, **more: Any) -> dict[str, str]:
    return node_labels(collect_label_facts(stock, sharing, machine=SIMULATED_MACHINE, **more))


def told(labels: dict[str, str], prefix: str) -> dict[str, str]:
    """The labels that begin so, without that."""
    return {name.removeprefix(prefix): value for name, value in labels.items() if name.startswith(prefix)}


#: What every node of four A100-40GB says, however they are offered.
FOUR_A100 = {
    "nvidia.com/cuda.driver-version.full": "595.58.03",
    "nvidia.com/cuda.driver-version.major": "595",
    "nvidia.com/cuda.driver-version.minor": "58",
    "nvidia.com/cuda.driver-version.revision": "03",
    "nvidia.com/cuda.driver.major": "595",
    "nvidia.com/cuda.driver.minor": "58",
    "nvidia.com/cuda.driver.rev": "03",
    "nvidia.com/cuda.runtime-version.full": "13.2",
    "nvidia.com/cuda.runtime-version.major": "13",
    "nvidia.com/cuda.runtime-version.minor": "2",
    "nvidia.com/cuda.runtime.major": "13",
    "nvidia.com/cuda.runtime.minor": "2",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.family": "ampere",
    "nvidia.com/gpu.machine": "Simulated",
    "nvidia.com/gpu.mode": "compute",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mps.capable": "false",
    f"tessera.dev/count.{A100}": "4",
    "tessera.dev/gpu.ecc": "true",
}


def gpu(product: str, count: int, replicas: int, sharing: str, memory: int = 40960) -> dict[str, str]:
    return {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": sharing,
        "nvidia.com/gpu.memory": str(memory),
    }


def mig(resource: str, name: str, count: int, *sizes: int) -> dict[str, str]:
    """Labels of MIG devices; sizes are slices, memory, SMs, and engines to copy, decode, encode, for JPEG and OFA."""
    slices, memory, sms, *engines = sizes
    values = {
        "product": f"{A100}-MIG-{name}",
        "count": count,
        "replicas": 1,
        "sharing-strategy": "none",
        "memory": memory,
        "multiprocessors": sms,
        "slices.gi": slices,
        "slices.ci": slices,
        **dict(
            zip([f"engines.{each}" for each in ("copy", "decoder", "encoder", "jpeg", "ofa")], engines, strict=True)
        ),
    }
    return {f"nvidia.com/{resource}.{key}": str(value) for key, value in values.items()}


@pytest.mark.parametrize(
    ("rename", "product"),
    [(True, A100), (False, f"{A100}-SHARED")],
)
def test_four_cards_in_time_slices(make_machine: Any, make_sharing: Any, rename: bool, product: str) -> None:
    """Seed 002: with names of their own the shares do not change the product, without they do."""
    stock = make_machine("4xA100-40GB").read()
    found = labels_of(stock, make_sharing(stock, profile(rename=rename), MigStrategy.NONE))
    assert found == FOUR_A100 | {"tessera.dev/gpu.nvlink": "true"} | gpu(product, 4, 4, "time-slicing")


def test_two_and_three_slices_on_each_of_four_cards(make_machine: Any, make_sharing: Any) -> None:
    """Seed 002: 2x2g.10gb and 3x1g.5gb, strategy mixed."""
    machine = make_machine("4xA100-40GB")
    for card in range(4):
        machine.cut(card, *SEED_LAYOUT)
    stock = machine.read()
    assert labels_of(stock, make_sharing(stock)) == (
        FOUR_A100
        | {"tessera.dev/gpu.nvlink": "false", "nvidia.com/mig.strategy": "mixed"}
        | gpu(A100, 4, 0, "none")
        | mig("mig-1g.5gb", "1g.5gb", 12, 1, 4864, 14, 1, 0, 0, 0, 0)
        | mig("mig-2g.10gb", "2g.10gb", 8, 2, 9856, 28, 2, 1, 0, 0, 0)
    )


def test_seven_slices_on_each_of_four_cards_as_if_they_were_cards(make_machine: Any, make_sharing: Any) -> None:
    machine = make_machine("4xA100-40GB")
    for card in range(4):
        machine.cut(card, *SEVEN)
    stock = machine.read()
    assert labels_of(stock, make_sharing(stock, "", MigStrategy.SINGLE)) == (
        FOUR_A100
        | {"tessera.dev/gpu.nvlink": "false", "nvidia.com/mig.strategy": "single"}
        | mig("gpu", "1g.5gb", 28, 1, 4864, 14, 1, 0, 0, 0, 0)
    )


def test_one_card_that_is_not_cut_makes_the_strategy_single_invalid(make_machine: Any) -> None:
    machine = make_machine("4xA100-40GB")
    for card in range(3):
        machine.cut(card, *SEVEN)
    found = labels_of(machine.read(), msgspec.structs.replace(NONE, mig_strategy=MigStrategy.SINGLE))
    assert found == (
        FOUR_A100
        | {"tessera.dev/gpu.nvlink": "mixed", "nvidia.com/mig.strategy": "single"}
        | gpu(f"{A100}-MIG-INVALID", 0, 0, "", 0)
    )


def test_two_models_on_a_node(
    make_machine: Any, make_sharing: Any, reordered: Callable[[GpuInventory], GpuInventory]
) -> None:
    stock = make_machine("2xA100-40GB,2xT4").read()
    sharing = make_sharing(stock, profile())
    found = labels_of(stock, sharing)
    assert told(found, "tessera.dev/") == {
        f"count.{A100}": "2",
        "count.Tesla-T4": "2",
        "gpu.ecc": "true",
        "gpu.nvlink": "mixed",
    }
    expected = gpu(f"{A100}-SHARED", 2, 4, "time-slicing")
    assert {name: found[name] for name in expected} == expected
    assert labels_of(reordered(stock), sharing) == found


def test_one_model_cut_and_the_other_in_time_slices(make_machine: Any, make_sharing: Any) -> None:
    machine = make_machine("2xA100-40GB,2xT4")
    for card in range(2):
        machine.cut(card, *SEED_LAYOUT)
    stock = machine.read()
    found = labels_of(stock, make_sharing(stock, profile()))
    expected = gpu("Tesla-T4-SHARED", 2, 4, "time-slicing", 15360)
    assert {name: found[name] for name in expected} == expected
    assert told(found, "nvidia.com/mig-2g.10gb.")["count"] == "4"


def test_shares_of_slices(make_machine: Any, make_sharing: Any) -> None:
    machine = make_machine("A100-40GB")
    machine.cut(0, *SEVEN)
    stock = machine.read()
    found = labels_of(stock, make_sharing(stock, profile(rename=True, name="nvidia.com/mig-1g.5gb", replicas=3)))
    slices = told(found, "nvidia.com/mig-1g.5gb.")
    assert (slices["count"], slices["replicas"], slices["sharing-strategy"]) == ("7", "3", "time-slicing")
    assert slices["product"] == f"{A100}-MIG-1g.5gb"


@pytest.mark.parametrize(
    ("devices", "replicas", "strategy"), [("[0]", "1", "none"), ("[0, 1, 2]", "4", "mps"), ("all", "4", "mps")]
)
def test_where_cards_differ_labels_tell_of_most(
    make_machine: Any, make_sharing: Any, devices: str, replicas: str, strategy: str
) -> None:
    stock = make_machine("4xA100-40GB").read()
    found = labels_of(stock, make_sharing(stock, profile("mps", rename=True, devices=devices)))
    assert found["nvidia.com/gpu.replicas"] == replicas
    assert found["nvidia.com/gpu.sharing-strategy"] == strategy
    assert found["nvidia.com/mps.capable"] == "true"


def test_cards_on_demand_keep_their_labels_whatever_pods_request(make_machine: Any) -> None:
    machine = make_machine("2xA100-40GB")
    strategies = [msgspec.structs.replace(NONE, mig_strategy=strategy) for strategy in MigStrategy]
    before = [labels_of(machine.read(), each, on_demand=machine.uuids) for each in strategies]
    machine.cut(0, *SEED_LAYOUT)
    machine.cut(1)
    assert [labels_of(machine.read(), each, on_demand=machine.uuids) for each in strategies] == before
    for found in before:
        assert found["nvidia.com/mig.capable"] == "true"
        assert (found["nvidia.com/gpu.product"], found["nvidia.com/gpu.replicas"]) == (A100, "0")
        assert not told(found, "nvidia.com/mig-")


def test_a_lost_card_changes_no_label(make_machine: Any, make_sharing: Any) -> None:
    machine = make_machine("4xA100-40GB")
    stock = machine.read()
    sharing = make_sharing(stock)
    before = labels_of(stock, sharing)
    machine.cards.lose(machine.cards.uuids()[2])
    assert labels_of(machine.read(), sharing) == before


def test_a_profile_may_leave_the_timestamp_out(make_machine: Any, make_sharing: Any) -> None:
    stock = make_machine("T4").read()
    label = "nvidia.com/gfd.timestamp"
    assert labels_of(stock, make_sharing(stock), timestamp=1_700_000_000)[label] == "1700000000"
    without = make_sharing(stock, "flags: {gfd: {noTimestamp: true}}")
    assert label not in labels_of(stock, without, timestamp=1_700_000_000)


def test_the_machine_has_the_name_of_its_firmware(tmp_path: Path) -> None:
    name = tmp_path / "product_name"
    assert read_machine(name) is None
    name.write_text("\n")
    assert read_machine(name) is None
    name.write_text("DGXA100 920-23687-2530-000\n")
    assert read_machine(name) == "DGXA100 920-23687-2530-000"
