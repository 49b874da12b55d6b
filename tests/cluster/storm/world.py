"""The world of a storm: machines of four systems, their registries, and what those said when they were asked.

All drawn by a seed. Of RHCOS there are machines of both architectures, and kernels with pages of 64 KiB.
"""

import random
from typing import Any

import msgspec
from tests.cluster.driverlab import BEGAN, COSTS, NEWER, VERSION, builder, node, precompiled

from tessera.clock import LoopClock
from tessera.driver.images import Outcome
from tessera_lab.cluster.options import LabNodeSpec
from tessera_lab.drivers.driver_catalogue import INTERNAL_REGISTRY
from tessera_lab.drivers.driver_containers import driver_toolkit
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, SimulatedImage

BOTH = ("amd64", "arm64")
VERSIONS = (VERSION, NEWER, "550.54.14")
#: Where the cluster's own builds go.
BUILT = f"{INTERNAL_REGISTRY}/drivers"

_OSTREE = "415.92.202402130021-0"
_COREOS = f"Red Hat Enterprise Linux CoreOS {_OSTREE} (Plow)"
_RED_HAT = "5.14.0-284.54.1.el9_2"


class System(msgspec.Struct, frozen=True):
    """An operating system that a machine may run.

    Attributes:
        os_image: as kubelet reports it.
        tag: as images are named.
        kernels: that it may boot.
        architecture: of the machine.
    """

    os_image: str
    tag: str
    kernels: tuple[str, ...]
    architecture: str = "amd64"


SYSTEMS = {
    "jammy": System(
        "Ubuntu 22.04.4 LTS", "ubuntu22.04", ("5.15.0-69-generic", "5.15.0-70-generic", "6.8.0-45-generic")
    ),
    "noble": System("Ubuntu 24.04.1 LTS", "ubuntu24.04", ("6.8.0-45-generic", "6.8.0-46-generic")),
    "coreos": System(_COREOS, "rhcos4.15", (f"{_RED_HAT}.x86_64",)),
    "coreos-arm": System(_COREOS, "rhcos4.15", (f"{_RED_HAT}.aarch64", f"{_RED_HAT}.aarch64+64k"), "arm64"),
}

#: By name, in the order in which they are drawn: every second machine runs Ubuntu 22.04.
_DRAWN = ("jammy", "jammy", "jammy", "noble", "coreos", "coreos-arm")


def branch(version: str) -> str:
    """``525`` of ``525.125.06``."""
    return version.partition(".")[0]


def images() -> dict[str, SimulatedImage]:
    """All driver images that there may be, also under their branches' names, and the Driver Toolkit."""
    found: dict[str, Any] = {
        f"{INTERNAL_REGISTRY}/openshift/driver-toolkit:{_OSTREE}": SimulatedImage(
            size_mib=COSTS.driver_toolkit_mib, program=driver_toolkit(COSTS), architectures=BOTH
        )
    }
    for system in SYSTEMS.values():
        for version in VERSIONS:
            for kernel in system.kernels:
                found |= _also_by_branch(precompiled(kernel, version, system.tag), version)
            found |= _also_by_branch(builder(version, system.tag), version)
    return found


def _also_by_branch(named: dict[str, Any], version: str) -> dict[str, Any]:
    return named | {name.replace(f":{version}", f":{branch(version)}"): image for name, image in named.items()}


def is_driver(reference: str) -> bool:
    """True if an image brings a driver; the Driver Toolkit's comes with OpenShift, and nobody deletes it."""
    return "driver-toolkit" not in reference


class Machines:
    """Draws machines, and knows what each runs."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._made = 0
        self._systems: dict[str, str] = {}

    def draw(self) -> LabNodeSpec:
        """A machine with a name of its own."""
        self._made += 1
        return self.again(f"n{self._made}")

    def again(self, name: str) -> LabNodeSpec:
        """Another machine with a name that was there before."""
        kind = self._systems[name] = self._rng.choice(_DRAWN)
        system = SYSTEMS[kind]
        return node(name, self._rng.choice(system.kernels), system.os_image, system.architecture)

    def kernel(self, name: str) -> str:
        """One that the machine can boot."""
        return self._rng.choice(SYSTEMS[self._systems[name]].kernels)


class Answer(msgspec.Struct, frozen=True):
    """A registry's answer for a reference: time, outcome, digest."""

    at: float
    outcome: Outcome
    digest: str


class Registries(ImageCatalogue):
    """Registries that remember what they answered."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock = LoopClock(BEGAN)
        self._said: dict[tuple[str, str], list[Answer]] = {}

    def answer(self, reference: str, architecture: str) -> Outcome:
        """See :meth:`.Catalogue.answer`; of what nobody named, that it is not there is remembered."""
        outcome = super().answer(reference, architecture)
        if "@" not in reference:
            known = outcome if outcome is not Outcome.FOUND or self.find_image(reference) else Outcome.NOT_FOUND
            answers = self._said.setdefault((reference, architecture), [])
            answers.append(Answer(self._clock.now(), known, self.digest(reference)))
        return outcome

    def counted(self, image: str, architecture: str, since: float) -> bool:
        """True if an image by digest was, at some moment since then, the last clear answer for one of its names.

        A registry that does not answer takes nothing back.
        """
        repository, _, digest = image.partition("@")
        return any(
            self._held(answers, digest, since)
            for (reference, asked), answers in self._said.items()
            if asked == architecture and reference.startswith(f"{repository}:")
        )

    @staticmethod
    def _held(answers: list[Answer], digest: str, since: float) -> bool:
        clear = [each for each in answers if each.outcome is not Outcome.UNREACHABLE]
        last = [each for each in clear if each.at < since][-1:] + [each for each in clear if each.at >= since]
        return any(each.outcome is Outcome.FOUND and each.digest == digest for each in last)
