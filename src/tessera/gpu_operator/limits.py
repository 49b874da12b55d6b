"""Limits on the texts of driver policies."""

from tessera.limits import Limit

POLICY_TEXT = Limit(
    1_024,
    "characters",
    "a text in a ClusterPolicy or NVIDIADriver, but for values of environment variables",
    "names, paths and versions are far shorter; they are written into driver pods",
)
IMAGE_REFERENCE = Limit(
    512,
    "characters",
    "the name of an image, with registry, tag and digest",
    "255 of a name, 128 of a tag and a digest fit",
)
IMAGE_MIRRORS = Limit(
    8,
    "repositories",
    "mirrors that a policy's annotation names",
    "each is asked for every image",
)
