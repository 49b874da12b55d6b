"""One GPU model: its names, its memory and, if the card can be cut, its table of profiles."""

import msgspec

from tessera.mig.geometry import Geometry


class PlacementsUnknown(ValueError):  # noqa: N818 - the name says what is wrong
    """A model without published legal starts; its table is read from NVML at run time."""


class MigUnsupported(ValueError):  # noqa: N818 - the name says what is wrong
    """A model that cannot be cut at all."""


class GpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of card.

    Attributes:
        short_name: the usual short name, ``A100-40GB``.
        other_short_names: other accepted names, ``A100-SXM4-40GB``.
        product_names: NVML's product names; the first is what a simulated card reports.
        memory_mib: memory of the card in MiB: as NVML reports it for A100, H100-80GB, B200, GB200 and GB300, else the
            nominal GB times 1024, which leads to the same profile names.
        pci_device_ids: hexadecimal PCI device ids (vendor 10DE).
        compute_capability: CUDA compute capability.
        min_driver: the first driver that cuts the card; ``None`` where NVIDIA's guide does not say.
        profile_names: the profiles by name.
        table: profiles with their placements; ``None`` where these are unknown or there are none.
    """

    short_name: str
    product_names: tuple[str, ...]
    memory_mib: int
    pci_device_ids: tuple[str, ...]
    compute_capability: tuple[int, int]
    min_driver: str | None
    profile_names: tuple[str, ...]
    table: Geometry | None
    other_short_names: tuple[str, ...] = ()

    @property
    def product_name(self) -> str:
        """NVML's product name, ``NVIDIA A100-SXM4-40GB``."""
        return self.product_names[0]

    @property
    def mig_capable(self) -> bool:
        """True if the model has a MIG mode."""
        return bool(self.profile_names)

    @property
    def geometry(self) -> Geometry:
        """The card's table.

        Raises:
            MigUnsupported: the model cannot be cut.
            PlacementsUnknown: the model's placements are not published.
        """
        if not self.mig_capable:
            raise MigUnsupported(f"{self.short_name}: the card has no MIG, so it cannot be cut")
        if self.table is None:
            raise PlacementsUnknown(
                f"{self.short_name}: the legal placements of its profiles ({', '.join(self.profile_names)}) are not"
                " published, so nothing can be planned for it beforehand; on a node the agent reads the table from NVML"
                " at run time"
            )
        return self.table
