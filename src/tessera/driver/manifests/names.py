"""Names, labels and annotations of the objects that the controller makes for drivers.

No part of a kernel's name becomes part of an object's name or label: both restrict characters and length. An annotation
of the DaemonSet holds the whole driver set; a controller that has just started reads it there.
"""

from typing import Any

import msgspec

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.api.nodes.node_marks import DRIVER_APP, DRIVER_SET_LABEL, VALIDATION_APP
from tessera.driver.driver_sets import DriverSet
from tessera.kube.resources.meta import ObjectMeta

NAMESPACE = SYSTEM_NAMESPACE
APP_LABEL = "app.kubernetes.io/name"
PART_OF = {"app.kubernetes.io/part-of": "tessera"}
#: The gpu-operator's label that says which driver a pod brings; its tools find driver pods by it.
COMPONENT = {"app.kubernetes.io/component": "nvidia-driver"}

#: Annotation of a DaemonSet: its :class:`~tessera.driver.driver_sets.DriverSet` as JSON.
SET_ANNOTATION = "tessera.dev/driver-set"
#: Annotation of a DaemonSet: hash of its whole spec. The controller writes the DaemonSet only if the hash differs.
SPEC_ANNOTATION = "tessera.dev/spec"

#: The service account of driver pods; the driver manager uses it to pause and label nodes.
DRIVER_ACCOUNT = "tessera-driver"
RUNTIME_CLASS = "nvidia"

#: Containers of a driver pod.
DRIVER_CONTAINER = "nvidia-driver-ctr"
MANAGER_CONTAINER = "k8s-driver-manager"
BUILD_CONTAINER = "openshift-driver-toolkit-ctr"

#: The container in the toolkit's pod.
TOOLKIT_CONTAINER = "nvidia-container-toolkit-ctr"

#: A value of the API, as JSON.
Json = dict[str, Any]


def set_labels(made: DriverSet) -> dict[str, str]:
    """Labels of a driver set's pods and of its DaemonSet."""
    return {APP_LABEL: DRIVER_APP, **PART_OF, **COMPONENT, DRIVER_SET_LABEL: made.id}


def app_labels(app: str) -> dict[str, str]:
    """Labels of the pods of another component."""
    return {APP_LABEL: app, **PART_OF}


def set_of(meta: ObjectMeta) -> DriverSet | None:
    """The driver set of a DaemonSet; None if the DaemonSet is not Tessera's, or its annotation cannot be read."""
    if meta.labels.get(APP_LABEL) != DRIVER_APP:
        return None
    try:
        found = msgspec.json.decode(meta.annotations.get(SET_ANNOTATION, ""), type=DriverSet)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if found.name == meta.name else None


def set_text(made: DriverSet) -> str:
    """The annotation's value for a driver set."""
    return msgspec.json.encode(made).decode()


def validation_name(node_uid: str) -> str:
    """The name of a node's validation pod: constant over restarts, different if the Node object is made anew."""
    return f"{VALIDATION_APP}-{node_uid}"


def secrets(*names: str) -> Json:
    """The pod's ``imagePullSecrets``; an empty dict without names."""
    found = [{"name": name} for name in dict.fromkeys(names) if name]
    return {"imagePullSecrets": found} if found else {}
