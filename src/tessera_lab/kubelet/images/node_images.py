"""The images of one node, how kubelet provides them to containers, and their pulls.

Without a catalogue every image that is missing takes the same fixed time, and pulls go side by side. With one, an image
takes as long as its size and its registry say, one pull after the other (kubelet's ``serializeImagePulls``, on by
default), and an image that no registry has cannot be pulled. Layers that images of one repository share come once.

A registry below ``.invalid`` never exists (RFC 6761), with and without a catalogue. What else the internet's registries
have the lab cannot know: a repository that no catalogue names has every tag. So has Tessera's own: nobody publishes its
image, and each user pushes it under a name and tag of theirs.

An image is provided before its container's start, in kubelet's order and with its texts. The order is that of
``EnsureImageExists`` (``pkg/kubelet/images/image_manager.go``): name, present, pull, back-off. An image with an invalid
name, or one that may not be pulled and is not there, is looked at again without back-off.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

import msgspec

from tessera.api.image_reference import ReferenceFormatError, parse
from tessera.api.names import SIMULATED_RUNTIME
from tessera.clock import Clock
from tessera.driver.images import Outcome
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, SimulatedImage, host_of, repository_of
from tessera_lab.kubelet.pod_status import ContainerRecord
from tessera_lab.simulation.supervision import CREATE_RETRY, PullBackoff
from tessera_lab.simulation.virtual_time import CountedClock

#: Images in the status of a Node (kubelet, ``nodeStatusMaxImages``).
LISTED_IMAGES = 50
#: containerd's text for each refusal, after ``failed to resolve reference "…":``.
_REFUSALS = {
    Outcome.NOT_FOUND: "not found",
    Outcome.UNAUTHORIZED: "pull access denied, repository does not exist or may require authorization: "
    "authorization failed: no basic auth credentials",
    Outcome.UNREACHABLE: "dial tcp: i/o timeout",
    Outcome.WRONG_ARCHITECTURE: "no match for platform in manifest: not found",
}


class PullError(Exception):
    """The image cannot be pulled; the text is the runtime's."""


class ImagePull(msgspec.Struct, frozen=True, kw_only=True):
    """A finished pull.

    Attributes:
        seconds: how long the runtime took.
        waited: ``seconds`` and the time in kubelet's queue.
        size_bytes: the image's size; None if images have no sizes.
    """

    seconds: float
    waited: float
    size_bytes: int | None = None


class NodeImages:
    """The images of one node.

    Args:
        clock: counts the waits; its ``pending`` are pulls in progress.
        images: images that the node already has.
        pull_seconds: duration of a pull without a catalogue.
        catalogue: images of all registries; None for images that have neither size nor program.
        architecture: the node's architecture, as registries name it.
        serialised: with a catalogue, the node pulls one image after the other.

    Attributes:
        on_pulled: called when another image is on the node.
    """

    def __init__(
        self,
        clock: CountedClock,
        *,
        images: Iterable[str] = (),
        pull_seconds: float = 0.0,
        catalogue: ImageCatalogue | None = None,
        architecture: str = "amd64",
        serialised: bool = True,
    ) -> None:
        self._clock = clock
        self._pull_seconds = pull_seconds
        self._catalogue = catalogue
        self._architecture = architecture
        self._serialised = serialised
        self._digests = dict.fromkeys(images, "")  # of images on the node; empty if no registry was asked
        self._repositories = {repository_of(each) for each in self._digests}
        self._pulls: dict[str, asyncio.Task[ImagePull]] = {}
        self._turn = asyncio.Lock()
        self.on_pulled: Callable[[], None] = lambda: None

    def has(self, image: str) -> bool:
        """True if the image is on the node."""
        return image in self._digests

    def listed(self) -> list[dict[str, Any]]:
        """The images with a size as kubelet lists them in the Node's status, the largest first."""
        found: list[dict[str, Any]] = [
            {"names": [f"{repository_of(each)}@{digest}", each], "sizeBytes": image.size_bytes}
            for each, digest in self._digests.items()
            if digest and (image := self.image(each)) is not None
        ]
        return sorted(found, key=lambda each: (-each["sizeBytes"], each["names"]))[:LISTED_IMAGES]

    def image(self, reference: str) -> SimulatedImage | None:
        """The catalogue's entry for an image."""
        return self._catalogue.find(reference) if self._catalogue is not None else None

    def image_id(self, reference: str) -> str:
        """Returns ``imageID`` of a container: repository and digest if a registry gave one."""
        digest = self._digests.get(reference)
        if digest or (digest == "" and self._catalogue is not None):
            assert self._catalogue is not None
            return f"{repository_of(reference)}@{digest or self._catalogue.digest(reference)}"
        return f"{SIMULATED_RUNTIME}{reference}"

    async def pull(self, image: str) -> ImagePull:
        """Fetches an image; pods that wait for the same one share the pull.

        Raises:
            PullError: no registry gives it.
        """
        began = self._clock.monotonic()
        running = self._pulls.get(image)
        if running is None:
            running = self._pulls[image] = asyncio.create_task(self._fetch(image))
            running.add_done_callback(lambda task: self._finish_pull(image, task))
        pull = await asyncio.shield(running)
        return msgspec.structs.replace(pull, waited=self._clock.monotonic() - began)

    def forget_pulls(self) -> None:
        """Drops pulls in progress, as the machine goes down."""
        for task in list(self._pulls.values()):
            task.cancel()

    def _finish_pull(self, image: str, task: asyncio.Task[ImagePull]) -> None:
        if self._pulls.get(image) is task:
            del self._pulls[image]
        if not task.cancelled():
            task.exception()  # waiting pods have got the error; without waiters nobody needs it

    async def _fetch(self, image: str) -> ImagePull:
        host = host_of(image).partition(":")[0]
        if host.endswith(".invalid"):
            raise _pull_error(image, f"dial tcp: lookup {host}: no such host")
        if self._catalogue is None:
            seconds = 0.0 if image in self._digests else self._pull_seconds
            if seconds:
                await self._clock.sleep(seconds)
            self._digests[image] = ""
            return ImagePull(seconds=seconds, waited=seconds)
        if not self._serialised:
            return await self._fetch_from(self._catalogue, image)
        async with self._turn:
            return await self._fetch_from(self._catalogue, image)

    async def _fetch_from(self, catalogue: ImageCatalogue, reference: str) -> ImagePull:
        began = self._clock.monotonic()
        if catalogue.latency:
            await self._clock.sleep(catalogue.latency)
        outcome = catalogue.answer(reference, self._architecture)
        if outcome is not Outcome.FOUND:
            raise _pull_error(reference, _REFUSALS[outcome])
        image = catalogue.find(reference)
        assert image is not None, "a registry that has it found it"
        digest, repository = catalogue.digest(reference), repository_of(reference)
        if digest not in {self._digests.get(reference), *self._digests.values()}:
            missing = image.size_mib - (image.shared_mib if repository in self._repositories else 0.0)
            seconds = catalogue.transfer_seconds(reference, missing)
            if seconds:
                await self._clock.sleep(seconds)
        self._digests[reference] = digest
        self.on_pulled()
        self._repositories.add(repository)
        took = self._clock.monotonic() - began
        return ImagePull(seconds=took, waited=took, size_bytes=image.size_bytes)


def _pull_error(reference: str, why: str) -> PullError:
    """Containerd's text."""
    return PullError(f'failed to pull and unpack image "{reference}": failed to resolve reference "{reference}": {why}')


class EventSink(Protocol):
    """Records events about the pod."""

    def record_event(
        self,
        reason: str,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",  # noqa: A002 - an event's own word
    ) -> None:
        """Records an event about the pod."""
        ...


class ImagePuller:
    """Pulls the images of one pod's containers.

    Args:
        teller: records events about the pod.
        images: the node's images.
        clock: for back-off.
        wait: sets a container to waiting, with reason and message.
    """

    def __init__(
        self, teller: EventSink, images: NodeImages, clock: Clock, wait: Callable[[ContainerRecord, str, str], None]
    ) -> None:
        self._teller = teller
        self._images = images
        self._clock = clock
        self._wait = wait
        self._backoffs: dict[str, PullBackoff] = {}

    async def pull(self, record: ContainerRecord) -> bool:
        """Pulls the container's image if needed; False if that failed."""
        image, policy = record.spec.get("image", ""), record.spec.get("imagePullPolicy") or "IfNotPresent"
        if problem := _name_problem(image):
            self._refuse(record, "InspectFailed", "InvalidImageName", problem)
            return False
        if not self._images.has(image) and policy == "Never":
            problem = f'Container image "{image}" is not present with pull policy of Never'
            self._refuse(record, "ErrImageNeverPull", "ErrImageNeverPull", problem)
            return False
        if self._images.has(image) and policy != "Always":
            self._teller.record_event("Pulled", f'Container image "{image}" already present on machine')
            return True
        self._teller.record_event("Pulling", f'Pulling image "{image}"')
        try:
            pull = await self._images.pull(image)
        except PullError as error:
            self._fail(record, image, str(error))
            return False
        if pull.size_bytes is None:
            took = format_pull_duration(pull.waited)
        else:  # the text of kubelet 1.30 and later
            waited = f"({format_pull_duration(pull.waited)} including waiting)"
            took = f"{format_pull_duration(pull.seconds)} {waited}. Image size: {pull.size_bytes} bytes."
        self._teller.record_event("Pulled", f'Successfully pulled image "{image}" in {took} (simulated)')
        self._backoffs.pop(record.name, None)
        return True

    async def back_off(self, record: ContainerRecord) -> None:
        """Returns when the container's image may be pulled again."""
        image, backoff = record.spec.get("image", ""), self._backoffs.get(record.name)
        while backoff is not None and self._clock.monotonic() < backoff.due:
            self._teller.record_event("BackOff", f'Back-off pulling image "{image}"')
            self._wait(record, "ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {backoff.why}')
            self._teller.record_event("Failed", "Error: ImagePullBackOff", type="Warning")
            await self._clock.sleep(CREATE_RETRY)

    def _refuse(self, record: ContainerRecord, event: str, reason: str, message: str) -> None:
        self._teller.record_event(event, message, type="Warning")
        self._wait(record, reason, message)
        self._teller.record_event("Failed", f"Error: {reason}", type="Warning")

    def _fail(self, record: ContainerRecord, image: str, message: str) -> None:
        self._backoffs.setdefault(record.name, PullBackoff()).record_failure(self._clock.monotonic(), message)
        self._teller.record_event("Failed", f'Failed to pull image "{image}": {message}', type="Warning")
        self._wait(record, "ErrImagePull", message)
        self._teller.record_event("Failed", "Error: ErrImagePull", type="Warning")


def _name_problem(image: str) -> str:
    """Kubelet's message for an invalid name; empty for a valid one."""
    first, slash, after = image.partition("/")
    on_host = slash and ("." in first or ":" in first or first == "localhost" or first != first.lower())
    path = (after if on_host else image if slash else f"library/{image}").partition(":")[0]
    problem = "" if path == path.lower() else f": repository name ({path}) must be lowercase"
    try:
        parse(image)
    except ReferenceFormatError:
        pass
    else:
        if "://" not in image:
            return ""
    parsing = f'couldn\'t parse image name "{image}": invalid reference format{problem}'
    return f'Failed to apply default image tag "{image}": {parsing}'


def format_pull_duration(seconds: float) -> str:
    """Prints a duration as Go does: ``10s``, ``1m20s``, ``1.5s``."""
    minutes, rest = divmod(seconds, 60)
    text = f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{int(minutes)}m{text}" if minutes else text
