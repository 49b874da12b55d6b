"""Conflicts between the users of one card."""

import pytest

from tessera.agent.sharing.occupancy import HeldEntry, find_blocked_entries
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, Advertisement, SharingKind

GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"
A, M, N = "GPU-a", "MIG-m", "MIG-n"
PARENTS = {M: A, N: A}


def whole(uuid: str, gpu: str = A) -> AdvertisedDevice:
    return AdvertisedDevice(id=uuid, uuid=uuid, gpu=gpu, index="0")


def share(number: int, uuid: str = A) -> AdvertisedDevice:
    return AdvertisedDevice(
        id=f"{uuid}::{number}", uuid=uuid, gpu=A, index="0", replicas=4, kind=SharingKind.TIME_SLICING
    )


def offer(resource: str, *devices: AdvertisedDevice) -> Advertisement:
    return Advertisement(resources={resource: AdvertisedResource(name=resource, devices=devices)})


@pytest.mark.parametrize(
    ("held", "offered", "waits"),
    [
        pytest.param((GPU, A), (GPU, whole(A)), False, id="the very entry"),
        pytest.param((GPU, A), (SHARED, share(0)), True, id="held whole, offered as shares"),
        pytest.param((GPU, A), (GPU, share(0)), True, id="likewise under the same name"),
        pytest.param((SHARED, f"{A}::1"), (GPU, whole(A)), True, id="held as a share, offered whole"),
        pytest.param((GPU, f"{A}::1"), (GPU, whole(A)), True, id="likewise under the same name"),
        pytest.param((SHARED, f"{A}::1"), (SHARED, share(0)), False, id="another share"),
        pytest.param((SHARED, f"{A}::1"), (SHARED, share(1)), False, id="the same share"),
        pytest.param((SHARED, f"{A}::1"), (GPU, share(1)), True, id="the same share under another name"),
        pytest.param((SHARED, f"{A}::1"), (GPU, share(2)), False, id="another share under another name"),
        pytest.param((GPU, A), ("nvidia.com/a100", whole(A)), True, id="held whole, offered whole by another name"),
        pytest.param((GPU, A), (MIG, whole(M)), True, id="the card is held, its MIG device offered"),
        pytest.param((MIG, M), (GPU, whole(A)), True, id="a MIG device is held, its card offered"),
        pytest.param((MIG, M), (SHARED, share(0)), True, id="a MIG device is held, its card offered as shares"),
        pytest.param((MIG, M), (MIG, whole(N)), False, id="another MIG device"),
        pytest.param((MIG, M), (MIG, share(0, M)), True, id="a MIG device is held whole, offered as shares"),
        pytest.param((GPU, "GPU-other"), (SHARED, share(0)), False, id="another card"),
        pytest.param((MIG, "MIG-gone"), (GPU, whole(A)), False, id="a MIG device that is no more"),
    ],
)
def test_an_entry_waits_for_whoever_has_its_device_otherwise(
    held: tuple[str, str], offered: tuple[str, AdvertisedDevice], waits: bool
) -> None:
    resource, entry = held
    found = find_blocked_entries(
        offer(offered[0], offered[1]), [HeldEntry(resource=resource, id=entry, pod="pod default/train")], PARENTS
    )
    expected = {(offered[0], offered[1].id): f"pod default/train holds {entry} as {resource}"}
    assert found == (expected if waits else {})
