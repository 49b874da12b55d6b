"""A pod's requirements on a GPU, by properties and not by resource name.

Memory is counted as cards and profiles state it: a card counts with its GB rounded up, a slice with the GB of its name.
A program can always allocate a few percent less, since the driver and ECC use some. So a pod that asks for 10Gi gets a
``2g.10gb``, for which quotas also charge 10Gi.

This module knows neither the notation of requirements nor the offers that fulfil them.
"""

import operator
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

GIB = 2**30

#: Comparisons of versions by their sign, longest sign first.
OPERATORS: Mapping[str, Callable[[tuple[int, int], tuple[int, int]], bool]] = MappingProxyType(
    {
        ">=": operator.ge,
        "<=": operator.le,
        "==": operator.eq,
        "!=": operator.ne,
        ">": operator.gt,
        "<": operator.lt,
        "=": operator.eq,
    }
)


class CapabilityBound(msgspec.Struct, frozen=True):
    """A bound on the compute capability: a sign of :data:`OPERATORS` and a version."""

    sign: str
    version: tuple[int, int]

    def admits(self, capability: tuple[int, int]) -> bool:
        """True if the bound admits a card of that compute capability."""
        return OPERATORS[self.sign](capability, self.version)

    def __str__(self) -> str:
        return f"{self.sign}{self.version[0]}.{self.version[1]}"


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements that must all hold; a default value requires nothing.

    Attributes:
        memory: bytes.
        nvlink: the card is joined to others by NVLink and the pod may use that.
        ecc: the card's memory is protected by ECC.
        capability: bounds on the compute capability.
        products: any of these models.
    """

    memory: int = 0
    nvlink: bool = False
    ecc: bool = False
    capability: tuple[CapabilityBound, ...] = ()
    products: tuple[str, ...] = ()

    def describe(self) -> dict[str, str]:
        """Returns the requirements as text, by their names."""
        texts = {
            "memory": format_gib(self.memory) if self.memory else "",
            "compute capability": ",".join(map(str, self.capability)),
            "product": " or ".join(self.products),
            "ECC": "on" if self.ecc else "",
            "NVLink": "on" if self.nvlink else "",
        }
        return {name: text for name, text in texts.items() if text}

    def __str__(self) -> str:
        return ", ".join(name if text == "on" else f"{name} {text}" for name, text in self.describe().items())


def is_product_name(wanted: str, product: str) -> bool:
    """True if a product is of the named model: the product has all words of the name, in order and each as a whole.

    ``A100`` is ``NVIDIA A100-SXM4-40GB`` and so is ``a100-40gb``; ``A10`` and ``SXM4-A100`` are not.
    """
    words = iter(_words(product))
    asked = _words(wanted)
    return bool(asked) and all(word in words for word in asked)


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word]


def format_gib(amount: int) -> str:
    """Bytes as ``10Gi``, ``7.5Gi``."""
    return f"{amount / GIB:.4g}Gi"
