"""What decides on the slices of ResourceClaims: claims, DeviceClasses, and the devices that nodes publish.

They are read only for pods that have claims, or for a claim in question. What the user may not read stays unknown: then
nobody plans for claims here, since without the published devices every claim would look as if nobody served it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from tessera.claims.controller.claim_profiles import ClaimProfiles, ProfileReader
from tessera.claims.controller.published_devices import PublishedDevices
from tessera.controller.objects.pod_constraints import read_device_claims
from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIMS, DeviceClass, ResourceClaim
from tessera.dra.driver_objects import is_ours
from tessera.dra.node_devices import DRIVER, NVIDIA_DRIVER
from tessera.dra.resource_slices import RESOURCE_SLICES, ResourceSlice
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden, NotFound, note_unanswered
from tessera.kube.resources import Pod
from tessera.kube.resources.meta import Resource, key_of

T = TypeVar("T")


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
    forbidden = set[str]()
    claims = await _list(client, RESOURCE_CLAIMS, forbidden, failed)
    if forbidden:
        forbidden.clear()
        claims = await _list(client, RESOURCE_CLAIMS, forbidden, failed, namespace=namespace)
    classes = await _list(client, DEVICE_CLASSES, forbidden, failed)
    driver, slices = DRIVER, await _list(client, RESOURCE_SLICES, forbidden, failed, fields=f"spec.driver={DRIVER}")
    if not slices and RESOURCE_SLICES.plural not in forbidden:
        found = await _list(client, RESOURCE_SLICES, forbidden, failed, fields=f"spec.driver={NVIDIA_DRIVER}")
        slices = [each for each in found if is_ours(each)]
        driver = NVIDIA_DRIVER if slices else DRIVER
    return ClaimObjects(driver=driver, claims=claims, classes=classes, slices=slices, forbidden=frozenset(forbidden))


async def _list(
    client: Client,
    resource: Resource[T],
    forbidden: set[str],
    failed: dict[str, str],
    *,
    namespace: str | None = None,
    fields: str | None = None,
) -> Sequence[T]:
    try:
        return (await client.list(resource, namespace, field_selector=fields)).items
    except NotFound:
        return ()
    except (ApiError, OSError) as error:
        if not isinstance(error, Forbidden):
            note_unanswered(resource.plural, error, failed)
        forbidden.add(resource.plural)
    return ()
