"""The cost model of the simulation: one value; each number has its meaning, unit and source.

Waits that a program adds (a probe's initial delay, a poll) are no costs: they belong to that program's order of steps.
The model has only work that takes the same time under any operator. Numbers that nobody has published are marked
``calibrated``: they were chosen so that the reference operator's order of steps comes to the means that Red Hat
published (308 and 132 s; 369, 217 and 207 s). They are not measured.
"""

import math
import random
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

CALIBRATED = "calibrated"


def _cost(meaning: str, unit: str, source: str = CALIBRATED) -> Any:
    return msgspec.Meta(description=meaning, extra={"unit": unit, "source": source})


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """All costs; :func:`list_costs` has meaning, unit and source of each."""

    public_mib_s: Annotated[float, _cost("a public registry to one node", "MiB/s")] = 45.0
    internal_mib_s: Annotated[float, _cost("the cluster's registry to one node", "MiB/s")] = 180.0
    unpack_mib_s: Annotated[float, _cost("a node unpacks layers", "MiB/s")] = 60.0
    registry_seconds: Annotated[float, _cost("a registry tells what an image consists of", "s")] = 0.8

    builder_mib: Annotated[float, _cost("the driver image with sources, compressed", "MiB")] = 460.0
    precompiled_mib: Annotated[
        float, _cost("the driver image with finished modules, compressed", "MiB", "one published image: 689 MB")
    ] = 657.0
    driver_toolkit_mib: Annotated[float, _cost("OpenShift's Driver Toolkit, compressed", "MiB")] = 350.0
    toolkit_mib: Annotated[float, _cost("NVIDIA's container toolkit, compressed", "MiB")] = 130.0
    manager_mib: Annotated[float, _cost("NVIDIA's driver manager, compressed", "MiB")] = 60.0
    tessera_mib: Annotated[float, _cost("this project's image, compressed", "MiB")] = 60.0
    operand_mib: Annotated[float, _cost("another image of the reference operator, compressed", "MiB")] = 120.0
    workload_mib: Annotated[float, _cost("the workload's image, compressed", "MiB")] = 120.0

    prepare_seconds: Annotated[float, _cost("a builder fetches and unpacks headers and sources", "s")] = 25.0
    compile_seconds: Annotated[float, _cost("the kernel modules are compiled on the node", "s")] = 170.0
    install_seconds: Annotated[float, _cost("a driver container installs what it has", "s")] = 12.0
    load_seconds: Annotated[float, _cost("modules are loaded and daemons started", "s")] = 10.0
    unload_seconds: Annotated[float, _cost("daemons are stopped and modules unloaded", "s")] = 4.0
    manager_seconds: Annotated[float, _cost("the driver manager looks at a node without a driver", "s")] = 10.0
    toolkit_seconds: Annotated[float, _cost("the toolkit is installed and the runtime configured", "s")] = 22.0
    reconcile_seconds: Annotated[
        float, _cost("the reference operator goes through its states and makes their objects", "s")
    ] = 13.0
    plugin_seconds: Annotated[float, _cost("a device plugin starts and registers", "s")] = 3.0
    nvml_seconds: Annotated[float, _cost("a container asks NVML for the cards", "s")] = 2.0
    cuda_seconds: Annotated[float, _cost("a container adds two vectors on a card", "s")] = 2.0

    build_seconds: Annotated[
        float,
        _cost(
            "an image with finished modules is built and pushed", "s", "derived from gpu-driver-container #981: 19 min"
        ),
    ] = 1140.0

    vm_seconds: Annotated[float, _cost("a cloud makes a virtual machine", "s")] = 90.0
    join_seconds: Annotated[float, _cost("it boots and its kubelet registers", "s")] = 60.0
    network_seconds: Annotated[float, _cost("a registered node gets its network and is Ready", "s")] = 25.0
    nfd_seconds: Annotated[
        float, _cost("after Ready, node feature discovery has labelled the node", "s", "NFD looks every 60 s")
    ] = 30.0

    spread: Annotated[float, _cost("standard deviation of each duration, as a part of its mean", "")] = 0.05


class CostEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One number of a cost model, for a table."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str


def list_costs(costs: CostModel) -> list[CostEntry]:
    """All numbers with what they mean and where they come from."""
    found = []
    for name, annotated in CostModel.__annotations__.items():
        (meta,) = annotated.__metadata__
        found.append(
            CostEntry(
                name=name,
                value=getattr(costs, name),
                unit=meta.extra["unit"],
                meaning=meta.description,
                source=meta.extra["source"],
            )
        )
    return found


def draw_log_normal(rng: random.Random, mean: float, spread: float) -> float:
    """Draws a log-normal duration: never negative, and sometimes much longer than the mean.

    Args:
        rng: random numbers.
        mean: its mean.
        spread: its standard deviation as a part of the mean; 0 returns the mean.
    """
    if not spread or not mean:
        return mean
    variance = math.log1p(spread * spread)
    return mean * math.exp(rng.gauss(-variance / 2, math.sqrt(variance)))


def draw_durations(costs: CostModel, rng: random.Random) -> Callable[[float], float]:
    """Returns a function that draws a duration around a mean, with the model's spread.

    Each mean has its own random numbers: the duration of the third compilation does not depend on other draws. So two
    orders of the same steps are compared on the same durations.
    """
    seed = rng.getrandbits(64)
    chances: dict[float, random.Random] = {}

    def draw(mean: float) -> float:
        chance = chances.setdefault(mean, random.Random(f"{seed}/{mean}"))
        return draw_log_normal(chance, mean, costs.spread)

    return draw
