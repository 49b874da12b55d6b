"""Checks a cluster before an installation: a missing namespace, and programs that would conflict with Tessera."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera import __version__
from tessera.api.names import LAB_SUFFIX
from tessera.cli.base.simulated_cluster import server_version
from tessera.cli.install.apply import driver_objects
from tessera.cli.install.manifests import InstallChoices
from tessera.cli.install.ownership import get_object, list_objects
from tessera.doctor.manifests import BUILD_IMAGE, UNPUBLISHED
from tessera.doctor.platform_checks import REMOVE_IT, is_instaslice
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.client import Client
from tessera.kube.errors import Forbidden, NotFound
from tessera.kube.resources import CONFIGMAPS, CRDS, DAEMONSETS, DEPLOYMENTS, NAMESPACES, DaemonSet
from tessera.kube.resources.meta import FORMAT_ANNOTATION

#: The group and version of OpenShift's security context constraints.
_CONSTRAINTS = "/apis/security.openshift.io/v1"

#: NVIDIA's programs that do the same work as Tessera's agent: part of the image's name, and the conflict.
CONFLICTS = {
    "k8s-device-plugin": "offers the same cards to kubelet",
    "k8s-mig-manager": "changes the same MIG layouts",
    "gpu-feature-discovery": "writes the same labels",
}

#: The agents' behaviour while the ConfigMap of profiles, or of layouts, does not exist.
_UNTIL_THEN = ("cards are offered whole", "only the generated layouts are known (all-disabled, all-1g.5gb, ...)")


async def ask_cluster(client: Client, choices: InstallChoices) -> InstallChoices:
    """The choices with the cluster's own answer where the user left it open: if it is OpenShift."""
    if choices.openshift is not None:
        return choices
    try:
        await client.request("GET", _CONSTRAINTS)
    except NotFound:
        return msgspec.structs.replace(choices, openshift=False)
    return msgspec.structs.replace(choices, openshift=True)


async def refuse_image(client: Client, choices: InstallChoices) -> str:
    """Why no node could pull the image; empty if one may have it: the user named it, or a lab runs it."""
    if choices.image or LAB_SUFFIX in await server_version(client):
        return ""
    return (
        f"{BUILD_IMAGE}; then: tessera install --image REGISTRY/{UNPUBLISHED}:{__version__}. If it was loaded into"
        f" every node, name it as the nodes do: --image docker.io/library/{UNPUBLISHED}:{__version__}"
    )


async def missing_namespace(client: Client, choices: InstallChoices) -> str:
    """The namespace of the ConfigMaps if it is missing; empty if it exists or no ConfigMap is written into it."""
    if choices.settings is None:
        return ""
    try:
        await client.get(NAMESPACES, choices.namespace)
    except NotFound:
        used = any(namespace == choices.namespace for namespace, _ in choices.followed)
        return choices.namespace if used else ""
    except Forbidden:
        return ""
    return ""


async def newer_definition(client: Client, objects: Sequence[Mapping[str, Any]]) -> str:
    """The reason not to replace a definition of the cluster whose format is newer; empty if none is newer."""
    for each in objects:
        if each["kind"] != CRDS.kind:
            continue
        name, own = each["metadata"]["name"], _format(each)
        try:
            found = await client.get(CRDS.as_dicts(), name)
        except (NotFound, Forbidden):
            continue
        if (there := _format(found)) > own:
            return (
                f"CustomResourceDefinition {name}: the cluster has format {there}, this version knows formats up to"
                f" {own}: a newer version of Tessera installed it; install that version or a newer one"
            )
    return ""


async def immutable_config_map(client: Client, objects: Sequence[Mapping[str, Any]]) -> str:
    """The reason why a ConfigMap of the cluster cannot get its new content; empty if each can."""
    for each in objects:
        if each["kind"] != CONFIGMAPS.kind or not each.get("data"):
            continue
        name, namespace = each["metadata"]["name"], each["metadata"]["namespace"]
        try:
            found = await get_object(client, CONFIGMAPS.as_dicts(), name, namespace)
        except Forbidden:
            continue
        if found and found.get("immutable") and not each["data"].items() <= (found.get("data") or {}).items():
            return (
                f"ConfigMap {namespace}/{name} is immutable, so {', '.join(each['data'])} cannot be replaced; nothing"
                f" was changed; delete it, then run this again: kubectl delete configmap {name} -n {namespace}"
            )
    return ""


def _format(definition: Mapping[str, Any]) -> int:
    text = str((definition["metadata"].get("annotations") or {}).get(FORMAT_ANNOTATION, "1"))
    return int(text) if text.isascii() and text.isdigit() else 1


async def refuse_instaslice(client: Client) -> str:
    """The reason not to install beside InstaSlice; empty if it does not run, or cannot be seen."""
    found: list[str] = []
    for resource in (DEPLOYMENTS, DAEMONSETS):
        try:
            items = (await client.list(resource.as_dicts())).items
        except Forbidden:
            continue
        places = [(each["metadata"]["name"], each["metadata"]["namespace"]) for each in items if is_instaslice(each)]
        found += [f"{resource.kind.lower()}/{name} in {namespace}" for name, namespace in places]
    return f"InstaSlice slices the same cards: {', '.join(found)}; nothing was changed; {REMOVE_IT}" if found else ""


async def warnings(client: Client, choices: InstallChoices) -> AsyncIterator[str]:
    """Warnings about the cluster; objects that the user may not read are left out."""
    try:
        for each in (await client.list(DAEMONSETS)).items:
            conflict = _conflict(each)
            if conflict:
                name = f"{each.metadata.namespace}/{each.metadata.name}"
                yield (
                    f"DaemonSet {name} {conflict}; tessera install --adopt stops it, or keep it off the nodes"
                    " of Tessera's agent"
                )
    except Forbidden:
        pass
    async for warning in _driver_warnings(client, choices):
        yield warning
    if choices.settings is None:
        return
    named = (choices.settings.sharing, choices.settings.layouts)
    for config, (namespace, name), until_then in zip(named, choices.followed, _UNTIL_THEN, strict=True):
        if not config.name:  # Tessera's own, which is optional
            continue
        try:
            await client.get(CONFIGMAPS, name, namespace)
        except NotFound:
            if not _is_created(choices, name):
                yield f"ConfigMap {namespace}/{name} does not exist; until it does, {until_then}"
        except Forbidden:
            continue


async def _driver_warnings(client: Client, choices: InstallChoices) -> AsyncIterator[str]:
    try:
        if not choices.drivers and choices.ask_for_drivers is None:
            async for _, metadata in driver_objects(client):
                yield (
                    f"{metadata['name']} of an earlier installation stays, and with it the nodes' drivers;"
                    " to remove both: tessera install --no-drivers"
                )
        names = await _cluster_policies(client, choices)
        if choices.drivers and len(names) > 1:
            yield f"there are {len(names)} ClusterPolicies, {', '.join(sorted(names))}; Tessera follows the oldest"
    except Forbidden:
        pass


async def _cluster_policies(client: Client, choices: InstallChoices) -> set[str]:
    """The names of the ClusterPolicies after the installation, also in a dry run."""
    present = {each["metadata"]["name"] for each in await list_objects(client, CLUSTER_POLICIES)}
    wanted = {each["metadata"]["name"] for each in choices.drivers if each["kind"] == CLUSTER_POLICIES.kind}
    applied = {metadata["name"] async for kind, metadata in driver_objects(client) if kind is CLUSTER_POLICIES}
    return (present - applied) | wanted


def _is_created(choices: InstallChoices, name: str) -> bool:
    settings = choices.settings
    return settings is not None and any(
        each.data and each.name == name for each in (settings.sharing, settings.layouts)
    )


def _conflict(daemon_set: DaemonSet) -> str:
    images = [container.image for container in daemon_set.spec.template.spec.containers]
    return next((text for part, text in CONFLICTS.items() if any(part in image for image in images)), "")
