"""Times from the promise of slices to the start of the containers, by image: the pull, and what else kubelet does.

A pod starts later than it gets its slices. How much later depends on its image, and on whether the node has it.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping

from tessera.forecast.crowding import EVERY, note_use
from tessera.forecast.survival import quantile
from tessera.limits.forecast import START_IMAGES, START_SAMPLES

#: The key of all images together.
EVERY_IMAGE = EVERY
#: A start that takes longer says nothing of the next one: its cause was no pull.
_MOST_SECONDS = 3600.0


class StartTimes:
    """The last starts of each image, and of all images.

    Attributes:
        by_image: seconds from the promise to the start, the oldest first; the image that started last at the end.
        brought_by: by image of these, the namespace that brought it; of more images than are kept, the namespace with
            the most loses one (:mod:`tessera.forecast.crowding`).
    """

    def __init__(
        self, by_image: Iterable[tuple[str, Iterable[int]]] = (), brought_by: Mapping[str, str] | None = None
    ) -> None:
        self.by_image: OrderedDict[str, deque[int]] = OrderedDict(
            (image, deque(seconds, maxlen=START_SAMPLES)) for image, seconds in by_image
        )
        self.brought_by = {image: by for image, by in (brought_by or {}).items() if image in self.by_image}

    def add(self, image: str, seconds: float, namespace: str) -> None:
        """Takes in a start of a namespace's pod."""
        if not 0 <= seconds <= _MOST_SECONDS:
            return
        for key in dict.fromkeys((image, EVERY_IMAGE)):
            self.by_image.setdefault(key, deque(maxlen=START_SAMPLES)).append(round(seconds))
            note_use(self.by_image, self.brought_by, key, namespace, START_IMAGES)

    def seconds(self, image: str, share: float) -> float:
        """Returns the seconds within which this share of the starts of an image came; 0 while nothing is known."""
        known = self.by_image.get(image) or self.by_image.get(EVERY_IMAGE)
        return float(quantile(known, share)) if known else 0.0
