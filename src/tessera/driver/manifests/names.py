"""Names and labels of what is made, and how it is recognised again.

Nothing of a kernel's name ends in a name or a label: both have alphabets and lengths of their own. What a DaemonSet is
for stands whole in an annotation, from which a controller that has just started learns it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.api.driver.node_status import DRIVER_APP, DRIVER_SET_LABEL, TOOLKIT_APP, VALIDATION_APP
from tessera.driver.driver_sets import DriverSet
from tessera.kube.resources.meta import ObjectMeta

NAMESPACE = "tessera-system"
APP_LABEL = "app.kubernetes.io/name"
PART_OF = {"app.kubernetes.io/part-of": "tessera"}
#: Whose driver a pod brings; upstream's label, by which its tools find driver pods.
COMPONENT = {"app.kubernetes.io/component": "nvidia-driver"}

#: Annotation of a DaemonSet: its :class:`~tessera.driver.driver_sets.DriverSet` as JSON.
SET_ANNOTATION = "tessera.dev/driver-set"
#: Annotation of a DaemonSet: stands for all of its spec, so that it is written only when it differs.
SPEC_ANNOTATION = "tessera.dev/spec"

#: The account of driver pods; the driver manager pauses and labels nodes with it.
DRIVER_ACCOUNT = "tessera-driver"
RUNTIME_CLASS = "nvidia"

#: Containers of a driver pod.
DRIVER_CONTAINER = "nvidia-driver-ctr"
MANAGER_CONTAINER = "k8s-driver-manager"
BUILD_CONTAINER = "openshift-driver-toolkit-ctr"

#: The container of the toolkit's pod.
TOOLKIT_CONTAINER = "nvidia-container-toolkit-ctr"

#: What a driver pod's label of :data:`DRIVER_SET_LABEL` and the nodes' have in common.
Labels = Mapping[str, str]


def set_labels(made: DriverSet) -> dict[str, str]:
    """Labels of a driver set's pods and of its DaemonSet."""
    return {APP_LABEL: DRIVER_APP, **PART_OF, **COMPONENT, DRIVER_SET_LABEL: made.id}


def app_labels(app: str) -> dict[str, str]:
    """Labels of the pods of another part."""
    return {APP_LABEL: app, **PART_OF}


def set_of(meta: ObjectMeta) -> DriverSet | None:
    """The driver set that a DaemonSet is for; None if it is not one of ours, or cannot be read."""
    if meta.labels.get(APP_LABEL) != DRIVER_APP:
        return None
    try:
        found = msgspec.json.decode(meta.annotations.get(SET_ANNOTATION, ""), type=DriverSet)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if found.name == meta.name else None


def set_text(made: DriverSet) -> str:
    """The annotation's value."""
    return msgspec.json.encode(made).decode()


def validation_name(node_uid: str) -> str:
    """The name of a node's validation pod: the same after every restart, another one for another life of the node."""
    return f"{VALIDATION_APP}-{node_uid}"


def secrets(*names: str) -> dict[str, Any]:
    """The pod's ``imagePullSecrets``; nothing without names."""
    found = [{"name": name} for name in dict.fromkeys(names) if name]
    return {"imagePullSecrets": found} if found else {}


__all__ = [
    "APP_LABEL",
    "BUILD_CONTAINER",
    "COMPONENT",
    "DRIVER_ACCOUNT",
    "DRIVER_APP",
    "DRIVER_CONTAINER",
    "MANAGER_CONTAINER",
    "NAMESPACE",
    "PART_OF",
    "RUNTIME_CLASS",
    "SET_ANNOTATION",
    "SPEC_ANNOTATION",
    "TOOLKIT_APP",
    "TOOLKIT_CONTAINER",
    "VALIDATION_APP",
    "app_labels",
    "secrets",
    "set_labels",
    "set_of",
    "set_text",
    "validation_name",
]
