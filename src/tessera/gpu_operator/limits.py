"""Limits on the texts of driver policies."""

from tessera.limits import Limit

POLICY_TEXT = Limit(
    1_024,
    "characters",
    "a text in a ClusterPolicy or NVIDIADriver, but for values of environment variables",
    "names, paths and versions are far shorter; they are written into driver pods",
)
IMAGE_MIRRORS = Limit(
    8,
    "repositories",
    "mirrors that a policy's annotation names",
    "each is asked for every image",
)
