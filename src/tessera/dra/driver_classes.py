"""The driver's name, its DeviceClasses, and claims that the driver cannot serve.

By default the driver is ``gpu.tessera.dev``. Where NVIDIA's DRA driver is not installed it can take that driver's name,
``gpu.nvidia.com``, and then has its classes, so NVIDIA's claims run unchanged. Both are never on one node: a node with
slices of NVIDIA's driver is left alone.

The classes that an installation makes have a guard, an expression that no device fulfils; only the controller leaves it
out. So kube-scheduler's allocator is kept away by a server too that drops taints of devices (Kubernetes 1.34 and 1.35).
"""

from collections.abc import Iterable
from typing import Any

from tessera.dra.claims import GROUP, ClaimSpec
from tessera.dra.node_devices import DRIVER, NVIDIA_DRIVER
from tessera.dra.requests import GUARD, ClaimRefused
from tessera.dra.resource_slices import ResourceSlice
from tessera.dra.slice_writer import is_ours

Json = dict[str, Any]

#: Prefix of each driver's classes: ``mig.nvidia.com``.
_DOMAINS = {DRIVER: "tessera.dev", NVIDIA_DRIVER: "nvidia.com"}


def find_rival(driver: str, node: str, slices: Iterable[ResourceSlice]) -> str:
    """Returns why the driver must not publish on a node, as another program does under its name; empty if none does.

    Args:
        driver: our driver's name.
        node: the node.
        slices: the ResourceSlices of the cluster or node.
    """
    for each in slices:
        if each.spec.driver == driver and each.spec.node_name == node and not is_ours(each):
            return (
                f"node {node}: ResourceSlice {each.metadata.name} of driver {driver} is another program's; remove that"
                f" driver from the node, or choose --claim-driver {DRIVER}"
            )
    return ""


def device_classes(driver: str, *, guarded: bool = False) -> list[Json]:
    """Returns the driver's classes: whole cards, MIG devices, and for our own name shares.

    Args:
        driver: the driver's name.
        guarded: the server keeps no taints of devices.
    """
    domain = _DOMAINS[driver]
    whole = _typed(driver, "gpu")
    if driver == NVIDIA_DRIVER:
        wanted = {"gpu": whole, "mig": _typed(driver, "mig"), "vfio.gpu": _typed(driver, "vfio")}
    else:
        shared = "device.allowMultipleAllocations"
        wanted = {"gpu": f"{whole} && !{shared}", "mig": _typed(driver, "mig"), "gpu-shares": f"{whole} && {shared}"}
    found = [_class(f"{name}.{domain}", expression, guarded) for name, expression in wanted.items()]
    if not guarded:  # else kube-scheduler would look for a device that it never finds, for every pod with cards
        found[0]["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    return found


def _typed(driver: str, kind: str) -> str:
    return f"device.driver == '{driver}' && device.attributes['{driver}'].type == '{kind}'"


def _class(name: str, expression: str, guarded: bool) -> Json:
    selectors = [{"cel": {"expression": each}} for each in (expression, *([GUARD] if guarded else []))]
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": selectors},
    }


def check_served(name: str, spec: ClaimSpec, driver: str) -> None:
    """Refuses a claim for devices that the driver never has.

    Args:
        name: ``claim namespace/name``, for messages.
        spec: the claim.
        driver: the driver's name.

    Raises:
        ClaimRefused: a request is for a card for a virtual machine.
    """
    for index, request in enumerate(spec.devices.requests):
        queries = [("exactly", request.exactly)] if request.exactly is not None else []
        queries += [(f"firstAvailable[{number}]", each) for number, each in enumerate(request.first_available)]
        for place, query in queries:
            if query is not None and query.device_class_name == f"vfio.{driver}":
                raise ClaimRefused(
                    f"{name}: spec.devices.requests[{index}].{place}.deviceClassName is {query.device_class_name}:"
                    " cards are not given to virtual machines"
                )
