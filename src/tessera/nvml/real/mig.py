"""Reads the possible and the present instances of a real card.

The functions walk over NVML's handles with the array protocols of its C interface: the caller passes the size of the
array to be filled. They take handles from their caller, :mod:`tessera.nvml.real.real_nvml`, and pass them nowhere else.
"""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from ctypes import byref, c_uint
from typing import Any

from tessera.mig.names import profile_gb
from tessera.nvml.errors import InvalidArgument, NotSupported, NvmlNotFound, translate_errors
from tessera.nvml.interface import ComputeInstance, GiProfileInfo, GpuUuid, MigUuid
from tessera.nvml.real.events import decode_text

_PROFILE = re.compile(r"\d+g\.\d+gb\S*")
#: Suffixes of profiles with equal size, by NVML's index (nvml.h, ``NVML_GPU_INSTANCE_PROFILE_*``).
_SUFFIX = {
    7: "+me",
    8: "+me",
    10: "+gfx",
    11: "+gfx",
    12: "+gfx",
    13: "-me",
    14: "-me",
    15: "+me.all",
    16: "+me.all",
    17: "+gfx",
}
#: NVML's errors for a profile index that a card does not have.
_NO_SUCH_PROFILE = (NotSupported, InvalidArgument)


class MigReader:
    """Reads the MIG side of cards.

    Args:
        binding: the module ``pynvml``, with NVML open.
    """

    def __init__(self, binding: Any) -> None:
        self._nvml = binding

    def profiles(self, gpu: GpuUuid, handle: Any, card_mib: int) -> list[GiProfileInfo]:
        """The card's table, by NVML's index; empty when MIG mode is off."""
        rows = (
            self._profile(gpu, handle, index, card_mib) for index in range(self._nvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
        )
        return [row for row in rows if row]

    def _profile(self, gpu: GpuUuid, handle: Any, index: int, card_mib: int) -> GiProfileInfo | None:
        """One row of the card's table; ``None`` if the card has no profile of that index."""
        try:
            with self._errors(f"GPU instance profile {index} of {gpu}"):
                info = self._profile_info(handle, index)
                starts, size = self._placements(handle, info.id)
        except _NO_SUCH_PROFILE:
            return None
        name = getattr(info, "name", "")
        return GiProfileInfo(
            name=profile_name(decode_text(name), index, info.sliceCount, info.memorySizeMB, card_mib),
            index=index,
            id=info.id,
            compute_slices=info.sliceCount,
            size=size,
            starts=starts,
            max_count=info.instanceCount,
            memory_mib=info.memorySizeMB,
            multiprocessors=info.multiprocessorCount,
            copy_engines=info.copyEngineCount,
            decoders=info.decoderCount,
            encoders=info.encoderCount,
            jpeg_engines=info.jpegCount,
            ofa_engines=info.ofaCount,
        )

    def _profile_info(self, handle: Any, index: int) -> Any:
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index, version=2)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            return nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index, version=1)  # drivers before R470

    def _placements(self, handle: Any, profile_id: int) -> tuple[tuple[int, ...], int]:
        """Legal starts, ascending, and the size."""
        nvml, count = self._nvml, c_uint(0)
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, byref(count))
        if not count.value:
            raise NotSupported(f"GPU instance profile {profile_id}: no placement")
        placements = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, placements, byref(count))
        used = placements[: count.value]
        return tuple(sorted(one.start for one in used)), used[0].size

    def gpu_instances(self, gpu: GpuUuid, handle: Any, row: GiProfileInfo) -> list[Any]:
        """Handles of the card's GPU instances of one profile."""
        count = c_uint(row.max_count)
        found = (self._nvml.c_nvmlGpuInstance_t * row.max_count)()
        with self._errors(f"GPU instances {row.name} of {gpu}"):
            self._nvml.nvmlDeviceGetGpuInstances(handle, row.id, found, byref(count))
        return list(found[: count.value])

    def ci_profile(self, instance: Any, index: int) -> Any:
        """NVML's description of a compute-instance profile within a GPU instance."""
        shared = self._nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        return self._nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, index, shared, version=1)

    def compute_instances(
        self, gpu: GpuUuid, instance: Any, gi_id: int, uuids: dict[tuple[int, int], MigUuid]
    ) -> Iterator[ComputeInstance]:
        """The compute instances of a GPU instance that are MIG devices by now."""
        for index in range(self._nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            with suppress(*_NO_SUCH_PROFILE), self._errors(f"compute instances of GPU instance {gi_id} of {gpu}"):
                profile = self.ci_profile(instance, index)
                count = c_uint(profile.instanceCount)
                found = (self._nvml.c_nvmlComputeInstance_t * max(profile.instanceCount, 1))()
                self._nvml.nvmlGpuInstanceGetComputeInstances(instance, profile.id, found, byref(count))
                ids = [self._nvml.nvmlComputeInstanceGetInfo(one).id for one in found[: count.value]]
                for ci_id in ids:
                    if (gi_id, ci_id) in uuids:
                        yield ComputeInstance(ci_id=ci_id, profile_index=index, mig_uuid=uuids[gi_id, ci_id])

    def mig_uuids(self, gpu: GpuUuid, handle: Any) -> dict[tuple[int, int], MigUuid]:
        """The card's MIG devices by GPU instance and compute instance."""
        nvml, found = self._nvml, {}
        with self._errors(f"MIG devices of {gpu}"):
            count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        for index in range(count):
            with suppress(NvmlNotFound, InvalidArgument), self._errors(f"MIG device {index} of {gpu}"):
                device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                ids = nvml.nvmlDeviceGetGpuInstanceId(device), nvml.nvmlDeviceGetComputeInstanceId(device)
                found[ids] = MigUuid(decode_text(nvml.nvmlDeviceGetUUID(device)))
        return found

    def find_device(self, handle: Any, uuid: str) -> Any:
        """The handle of a card's MIG device; ``None`` if the card has no such device."""
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(nvml.NVMLError):
                device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                if decode_text(nvml.nvmlDeviceGetUUID(device)) == uuid:
                    return device
        return None

    def _errors(self, call: str) -> AbstractContextManager[None]:
        return translate_errors(self._nvml.NVMLError, call)


def profile_name(named: str, index: int, slices: int, memory_mib: int, card_mib: int) -> str:
    """A profile's name: NVML's own without its ``MIG``, or computed by NVIDIA's rule where NVML gives none.

    Args:
        named: NVML's name of it, if NVML has one.
        index: NVML's index of the profile.
        slices: compute slices.
        memory_mib: memory of an instance.
        card_mib: memory of the card.
    """
    match = _PROFILE.search(named)
    if match:
        return match[0]
    eighths = -(-8 * memory_mib // card_mib)
    return f"{slices}g.{profile_gb(card_mib, eighths)}gb{_SUFFIX.get(index, '')}"
