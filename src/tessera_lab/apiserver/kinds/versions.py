"""Versions of Kubernetes that the lab can have. ``/version``, kubelets and ``resource.k8s.io`` follow from the choice.

All other kinds have the shape of 1.32 in every version. ``resource.k8s.io/v1`` comes with 1.34; which of its fields and
kinds a version serves follows from its feature gates (``pkg/features/kube_features.go``; for 1.37 the KEPs). 1.36 was
seen on a real server.
"""

from collections.abc import Mapping

#: The release that is imitated, by minor version.
RELEASES: Mapping[str, str] = {
    "1.32": "1.32.4",
    "1.34": "1.34.2",
    "1.35": "1.35.3",
    "1.36": "1.36.2",
    "1.37": "1.37.0",
}
DEFAULT = "1.36"


def has_claims(version: str) -> bool:
    """True if a minor version serves ``resource.k8s.io/v1``."""
    return version >= "1.34"


def has_taint_rules(version: str) -> bool:
    """True if a minor version serves DeviceTaintRules unasked: 1.36 has them as a beta that is off."""
    return version >= "1.37"


def needs_create_to_connect(version: str) -> bool:
    """True if ``exec`` over a WebSocket needs the right to create, not only to get, ``pods/exec``.

    Feature gate AuthorizePodWebsocketUpgradeCreatePermission, on since 1.35.
    """
    return version >= "1.35"


#: Versions of a whole cluster: the lab's scheduler and controllers watch ``resource.k8s.io/v1``.
CLUSTERS = tuple(filter(has_claims, RELEASES))
