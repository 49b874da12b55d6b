"""What decides on the slices of ResourceClaims: claims, DeviceClasses, and the devices that nodes publish.

They are read only for pods that have claims, or for a claim in question. What the user may not read stays unknown: then
nobody plans for claims here, since without the published devices every claim would look as if nobody served it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tessera.claims.controller.claim_profiles import ClaimProfiles, ProfileReader
from tessera.claims.controller.published_devices import PublishedDevices
from tessera.controller.objects.pod_constraints import read_device_claims
from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIMS, DeviceClass, ResourceClaim
from tessera.dra.driver_objects import is_ours
from tessera.dra.node_devices import DRIVER, NVIDIA_DRIVER
from tessera.dra.resource_slices import RESOURCE_SLICES, ResourceSlice
from tessera.kube.client import Client
from tessera.kube.resources import Pod
from tessera.kube.resources.meta import key_of


@dataclass(frozen=True)
class ClaimObjects:
    """What was read.

    Attributes:
        driver: the name under which Tessera publishes devices.
        claims: the ResourceClaims.
        classes: the DeviceClasses.
        slices: the ResourceSlices of the driver.
        forbidden: plural names of the kinds that the user may not list, or that the API server did not answer.
    """

    driver: str = DRIVER
    claims: Sequence[ResourceClaim] = ()
    classes: Sequence[DeviceClass] = ()
    slices: Sequence[ResourceSlice] = ()
    forbidden: frozenset[str] = frozenset()

    @cached_property
    def by_key(self) -> dict[str, ResourceClaim]:
        """The claims by ``namespace/name``."""
        return {key_of(each): each for each in self.claims}

    @cached_property
    def _reader(self) -> ProfileReader:
        published = PublishedDevices(self.driver)
        for item in self.slices:
            published.put(item, 0.0, deleted=False)
        reader = ProfileReader(self.driver, published)
        reader.classes.update({each.metadata.name: each for each in self.classes})
        return reader

    def profiles(self, claim: ResourceClaim) -> ClaimProfiles:
        """What a claim asks for."""
        return self._reader.read(claim)


def claim_keys(pod: Pod) -> Iterator[tuple[str, str]]:
    """Yields for each claim of a pod its name in the pod and its key; the key of one still to be made is empty."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    needed = read_device_claims(pod)
    for each in pod.spec.resource_claims:
        name = each.resource_claim_name or made.get(each.name, "")
        key = f"{pod.metadata.namespace}/{name}" if name else ""
        if key in needed:
            yield each.name, key


async def read_all_claim_objects(client: Client, namespace: str, failed: dict[str, str]) -> ClaimObjects:
    """Reads the objects, whoever uses them; ``failed`` takes what the API server does not answer, and why."""
    claims = await client.list_allowed(RESOURCE_CLAIMS, failed=failed)
    if claims is None:
        claims = await client.list_allowed(RESOURCE_CLAIMS, namespace, failed=failed)
    classes = await client.list_allowed(DEVICE_CLASSES, failed=failed)
    driver, slices = DRIVER, await _list_slices(client, DRIVER, failed)
    if slices is not None and not slices:
        found = await _list_slices(client, NVIDIA_DRIVER, failed)
        slices = None if found is None else [each for each in found if is_ours(each)]
        driver = NVIDIA_DRIVER if slices else DRIVER
    listed = {RESOURCE_CLAIMS.plural: claims, DEVICE_CLASSES.plural: classes, RESOURCE_SLICES.plural: slices}
    forbidden = frozenset(name for name, found in listed.items() if found is None)
    return ClaimObjects(
        driver=driver, claims=claims or (), classes=classes or (), slices=slices or (), forbidden=forbidden
    )


async def _list_slices(client: Client, driver: str, failed: dict[str, str]) -> Sequence[ResourceSlice] | None:
    return await client.list_allowed(RESOURCE_SLICES, field_selector=f"spec.driver={driver}", failed=failed)
