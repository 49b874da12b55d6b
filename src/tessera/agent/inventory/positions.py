"""Positions of slices on a node: card, profile, first memory slot; and the device plugin's ID of each."""

import msgspec

from tessera.api.names import PodUid, device_id


class SlicePosition(msgspec.Struct, frozen=True, order=True):
    """One legal position of a slice. ``profile`` has the resource's spelling (``1g.5gb.me``) in all of the agent."""

    gpu: str
    profile: str
    start: int

    @property
    def device_id(self) -> str:
        """The device plugin's ID; at most 57 characters (kubelet allows 63)."""
        return device_id(self.gpu, self.profile, self.start)


class SliceLease(msgspec.Struct, frozen=True):
    """A slice on demand that a pod holds: its MIG device, and kubelet's id of it if kubelet gave one."""

    pod: PodUid
    device: str
    device_id: str = ""


def parse_device_id(text: str) -> SlicePosition:
    """The position that a device ID names.

    Raises:
        ValueError: the text is not ``<card>:<profile>:<start>``.
    """
    gpu, _, rest = text.partition(":")
    profile, _, start = rest.rpartition(":")
    if not (gpu and profile and start.isascii() and start.isdigit()):
        raise ValueError(f"device ID {text!r}: not of the form GPU-UUID:PROFILE:START")
    return SlicePosition(gpu, profile, int(start))
