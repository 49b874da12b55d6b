"""Images that kubelets recently failed to pull. They count as missing, even if their registry has them."""

from collections.abc import Mapping

from tessera.clock import Clock

#: Seconds for which an image counts as missing after a kubelet failed to pull it.
PULL_FAILURE_SECONDS = 600.0


class ImagePullFailures:
    """Images that could not be pulled, each for a limited time.

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
        """Records that a kubelet could not pull an image; returns True if that is new."""
        self._expire()
        news = image not in self._known
        self._known[image] = (text, self._clock.monotonic() + PULL_FAILURE_SECONDS)
        return news

    def forget(self, image: str) -> None:
        """Forgets an image's failure, since a node runs it."""
        self._known.pop(image, None)

    def seconds_until_due(self) -> float | None:
        """Seconds until a failure expires; None if there is none."""
        self._expire()
        now = self._clock.monotonic()
        return min((until - now for _, until in self._known.values()), default=None)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        self._known = {image: known for image, known in self._known.items() if known[1] > now}
