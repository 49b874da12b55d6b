"""Images that kubelets could not pull lately. They count as missing, whatever their registry says."""

from collections.abc import Mapping

from tessera.clock import Clock

#: Seconds for which an image counts as not there after a kubelet could not pull it.
PULL_FAILURE_SECONDS = 600.0


class ImagePullFailures:
    """Such images, each for a while.

    Args:
        clock: the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[str, float]] = {}  # image -> kubelet's words, and until when, monotonic

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why an image cannot be pulled, in kubelet's words, by image."""
        self._expire()
        return {image: text for image, (text, _) in self._known.items()}

    def add(self, image: str, text: str) -> bool:
        """A kubelet could not pull an image; whether that is news."""
        self._expire()
        news = image not in self._known
        self._known[image] = (text, self._clock.monotonic() + PULL_FAILURE_SECONDS)
        return news

    def forget(self, image: str) -> None:
        """A node runs the image, so it can be pulled."""
        self._known.pop(image, None)

    def seconds_until_due(self) -> float | None:
        """Seconds until an image counts again; None if all do."""
        self._expire()
        now = self._clock.monotonic()
        return min((until - now for _, until in self._known.values()), default=None)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        self._known = {image: known for image, known in self._known.items() if known[1] > now}
