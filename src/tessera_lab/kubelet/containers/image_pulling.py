"""Provides a container's image before its start, in kubelet's order and with its texts.

The order is that of ``EnsureImageExists`` (``pkg/kubelet/images/image_manager.go``): name, present, pull, back-off. An
image with an invalid name, or one that may not be pulled and is not there, is looked at again without back-off.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from tessera.api.image_reference import ReferenceFormatError, parse
from tessera.clock import Clock
from tessera_lab.kubelet.images.node_images import NodeImages, PullError
from tessera_lab.kubelet.pod_status import ContainerRecord
from tessera_lab.simulation.supervision import CREATE_RETRY, PullBackoff


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
