"""The answers of simulated cards as whole cards: attributes, links, and the processes that may compute on them."""

from tessera.nvml.attributes import CardAttributes, ComputeMode, MigAttributes, NvLink
from tessera.nvml.errors import GpuLost, InUse, NotFound, NotSupported
from tessera.nvml.interface import DeviceFile, GpuUuid, MigUuid
from tessera.nvml.simulated.boards import attributes_of, common_ancestor, mig_attributes, nvlinks_of
from tessera.nvml.simulated.calls import SimulatedCalls
from tessera.nvml.simulated.hardware import find_card

#: Compute slices of each compute-instance profile (nvml.h, ``NVML_COMPUTE_INSTANCE_PROFILE_*``).
CI_SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6, 7: 1}


class SimulatedCards(SimulatedCalls):
    """The calls of :class:`~tessera.nvml.interface.Nvml` that concern a card as a whole."""

    def card_files(self, gpu: GpuUuid) -> list[DeviceFile]:
        """Returns no file: a simulated card has none."""
        with self._card("card_files", gpu):
            return []

    def attributes(self, gpu: GpuUuid) -> CardAttributes:
        """See :meth:`.Nvml.attributes`; changed with :meth:`set_attributes`."""
        with self._card("attributes", gpu) as card:
            return attributes_of(card)

    def mig_attributes(self, device: MigUuid) -> MigAttributes:
        """See :meth:`.Nvml.mig_attributes`."""
        with self._device("mig_attributes", device) as (card, instance, ci_id):
            if instance is None:
                raise NotFound(f"MIG device {device}: it is a card")
            slices = next(one.slices for one in instance.compute_instances if one.ci_id == ci_id)
            return mig_attributes(card, card.geometry.profile(instance.profile), slices)

    def nvlinks(self, gpu: GpuUuid) -> list[NvLink]:
        """See :meth:`.Nvml.nvlinks`; changed with :meth:`set_nvlinks`."""
        with self._call("nvlinks", gpu) as machine:
            card = find_card(machine, gpu)
            if card.lost:
                raise GpuLost(f"NVLinks of {gpu}")
            return nvlinks_of(card, machine.cards)

    def common_ancestor(self, gpu: GpuUuid, other: GpuUuid) -> int:
        """See :meth:`.Nvml.common_ancestor`."""
        with self._call("common_ancestor", gpu) as machine:
            cards = find_card(machine, gpu), find_card(machine, other)
            for card in cards:
                if card.lost:
                    raise GpuLost(f"PCIe topology of {card.uuid}")
            return common_ancestor(*cards, len(machine.cards))

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        """See :meth:`.Nvml.compute_mode`."""
        with self._card("compute_mode", gpu) as card:
            return card.compute_mode

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """See :meth:`.Nvml.set_compute_mode`."""
        with self._card("set_compute_mode", gpu, changes=True) as card:
            if card.mig_enabled:
                raise NotSupported(f"compute mode of {gpu}: the card is in MIG mode, where it is always DEFAULT")
            card.compute_mode = mode

    def reset(self, gpu: GpuUuid) -> None:
        """See :meth:`.Nvml.reset`."""
        with self._card("reset", gpu, changes=True) as card:
            if card.processes:
                raise InUse(f"reset of {gpu}: process {card.processes[0].pid} computes on it")
            card.restart()
