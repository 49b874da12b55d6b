"""Options of the access to registries."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class RegistryOptions:
    """Options of the access to registries of driver images.

    Attributes:
        ca: PEM certificates of the authorities that are trusted beside the system's.
        plain_http: hosts (with port) that the controller asks without TLS.
    """

    ca: Path | None = None
    plain_http: tuple[str, ...] = ()
