"""How long pods with cards take from their node to Ready, by image: pull, initialization and loading, without waiting.

Only changes that this process has seen count, since the condition of a pod that was listed as ready may be of a later
moment than its first. So a new leader knows nothing until pods start. Times are whole seconds, as kubelet writes them.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping

from tessera.clock import parse_time_or_zero
from tessera.kube.resources import Pod

#: Most images with times of their own; of more, that of the start the longest ago is forgotten.
IMAGES = 200
#: Starts of an image that count, the last ones.
_STARTS = 50
#: Most characters of an image that name it (RFC 3986 sets no bound; registries have shorter ones).
_NAME = 255
_PREFIX = "nvidia.com/"


class ReadyTimes:
    """Takes in pods."""

    def __init__(self) -> None:
        #: Pods with cards that are on a node and have not been ready, by UID, with their image. No other pod is here.
        self._starting: dict[str, str] = {}
        self._seconds: OrderedDict[str, deque[float]] = OrderedDict()

    def observe(self, pod: Pod) -> None:
        """Takes in a pod that came or changed."""
        uid, ready = pod.metadata.uid, pod.status.condition("Ready")
        if ready is None or ready.status != "True":
            if pod.spec.node_name and uid not in self._starting and (image := image_of(pod)):
                self._starting[uid] = image
            return
        image = self._starting.pop(uid, "")
        scheduled = pod.status.condition("PodScheduled")
        if not image or scheduled is None:
            return
        seconds = parse_time_or_zero(ready.last_transition_time) - parse_time_or_zero(scheduled.last_transition_time)
        self._seconds.setdefault(image, deque(maxlen=_STARTS)).append(max(0.0, seconds))
        self._seconds.move_to_end(image)
        while len(self._seconds) > IMAGES:
            self._seconds.popitem(last=False)

    def drop(self, pod: Pod) -> None:
        """Takes in that a pod is gone."""
        self._starting.pop(pod.metadata.uid, None)

    def quantiles(self) -> Mapping[str, tuple[float, float]]:
        """By image, the seconds within which half and nine tenths of its last starts were ready."""
        return {image: (_quantile(each, 0.5), _quantile(each, 0.9)) for image, each in self._seconds.items()}


def image_of(pod: Pod) -> str:
    """The image of the container that asks for cards; empty for a pod without one, or one too long to name."""
    found = next((each for each in pod.spec.containers if any(map(_is_card, each.resources.limits))), None)
    if found is None and pod.spec.resource_claims and pod.spec.containers:
        found = pod.spec.containers[0]
    return "" if found is None or len(found.image) > _NAME else found.image


def _is_card(resource: str) -> bool:
    return resource.startswith(_PREFIX)


def _quantile(values: "deque[float]", share: float) -> float:
    """The smallest value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
