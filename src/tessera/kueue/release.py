"""Which release of Kueue runs: the tag of its image, as Kueue's manifests and its Helm chart write it."""

import re

#: A major and a minor number.
Release = tuple[int, int]

_TAG = re.compile(r":v?(\d{1,4})\.(\d{1,4})(?:[.+-][\w.+-]*)?(?:@|$)")


def release_of(image: str) -> Release | None:
    """Returns the release by an image: ``(0, 18)`` of ``kueue/kueue:v0.18.1``; None if it has no tag that says it."""
    found = _TAG.search(image)
    return (int(found[1]), int(found[2])) if found else None
