"""How the controller comes to trust a site's registries: the authorities in a ConfigMap, mounted into its Deployment.

The controller reads the file when it starts, so other certificates have to start another pod: their hash stands among
the pod's annotations, as charts have it for what a pod is configured by.

Nothing here reads a file or a cluster.
"""

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

from tessera.api.gpu_operator.settings import SYSTEM_NAMESPACE

#: The ConfigMap and its key. Builds mount the same one, and trust what is called ``*.crt`` in it.
CONFIG_MAP = "tessera-registry-ca"
KEY = "ca.crt"

_VOLUME = "registry-ca"
_FOLDER = "/etc/tessera/registry-ca"
_CHECKSUM = "checksum/registry-ca"


def config_map(authorities: str) -> dict[str, Any]:
    """The ConfigMap of certificates in PEM."""
    labels = {"app.kubernetes.io/part-of": "tessera"}
    metadata = {"name": CONFIG_MAP, "namespace": SYSTEM_NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: authorities}}


def builds_mount_it(manifest: Mapping[str, Any]) -> bool:
    """Whether this is the controller, and it is told that builds trust registries by the ConfigMap."""
    if manifest["kind"] != "Deployment":
        return False
    containers = manifest["spec"]["template"]["spec"]["containers"]
    return any(f"--build-ca-config-map={CONFIG_MAP}" in each.get("args", ()) for each in containers)


def trust_authorities(template: Mapping[str, Any], authorities: str) -> dict[str, Any]:
    """A pod template whose only container has the certificates, and is told where."""
    changed = copy.deepcopy(dict(template))
    pod = changed["spec"]
    (container,) = pod["containers"]
    container["args"] = [*container.get("args", ()), f"--registry-ca={_FOLDER}/{KEY}"]
    mount = {"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True}
    container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]
    pod["volumes"] = [*pod.get("volumes", ()), {"name": _VOLUME, "configMap": {"name": CONFIG_MAP}}]
    checksum = hashlib.sha256(authorities.encode()).hexdigest()
    changed["metadata"]["annotations"] = {**changed["metadata"].get("annotations", {}), _CHECKSUM: checksum}
    return changed
