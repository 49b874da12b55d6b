"""What of a cluster matters to an installation before it begins: what it needs, and what would get in its way."""

from collections.abc import AsyncIterator

from tessera.api.driver.assignment import CLUSTER_POLICIES
from tessera.cli.install.apply import driver_objects, list_objects
from tessera.cli.install.manifests import InstallChoices
from tessera.kube.client.client import Client
from tessera.kube.client.errors import Forbidden, NotFound
from tessera.kube.resources import CONFIGMAPS, DAEMONSETS, NAMESPACES, DaemonSet

#: Parts of image names of NVIDIA's programs that do what Tessera's agent does, and what they do.
RIVALS = {
    "k8s-device-plugin": "offers the same cards to kubelet",
    "k8s-mig-manager": "changes the same MIG layouts",
    "gpu-feature-discovery": "writes the same labels",
}

#: What holds while a ConfigMap of profiles, or of layouts, does not exist.
_MEANWHILE = ("cards are offered whole", "only the generated layouts are known (all-disabled, all-1g.5gb, ...)")


async def missing_namespace(client: Client, choices: InstallChoices) -> str:
    """The namespace of the ConfigMaps if it is not there; empty if it is, or if nothing is to be written into it."""
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


async def warnings(client: Client, choices: InstallChoices) -> AsyncIterator[str]:
    """What the user should know about the cluster; silent about what may not be read."""
    try:
        for each in (await client.list(DAEMONSETS)).items:
            rival = _rival(each)
            if rival:
                name = f"{each.metadata.namespace}/{each.metadata.name}"
                yield f"DaemonSet {name} {rival}; keep it off the nodes of Tessera's agent, or remove it"
    except Forbidden:
        pass
    async for told in _about_drivers(client, choices):
        yield told
    if choices.settings is None:
        return
    named = (choices.settings.sharing, choices.settings.layouts)
    for config, (namespace, name), meanwhile in zip(named, choices.followed, _MEANWHILE, strict=True):
        if not config.name:  # Tessera's own, which nobody has to write
            continue
        try:
            await client.get(CONFIGMAPS, name, namespace)
        except NotFound:
            if not _made(choices, name):
                yield f"ConfigMap {namespace}/{name} is not there; {meanwhile} until it is"
        except Forbidden:
            continue


async def _about_drivers(client: Client, choices: InstallChoices) -> AsyncIterator[str]:
    try:
        if not choices.drivers and choices.ask_for_drivers is None:
            async for _, metadata in driver_objects(client):
                yield (
                    f"{metadata['name']} of an earlier installation stays, and the nodes' drivers with it;"
                    " tessera install --no-drivers takes it away"
                )
        names = await _cluster_policies(client, choices)
        if choices.drivers and len(names) > 1:
            yield f"there are {len(names)} ClusterPolicies, {', '.join(sorted(names))}; the oldest counts"
    except Forbidden:
        pass


async def _cluster_policies(client: Client, choices: InstallChoices) -> set[str]:
    """The names of those that there are, or after a trial would be."""
    there = {each["metadata"]["name"] for each in await list_objects(client, CLUSTER_POLICIES)}
    wanted = {each["metadata"]["name"] for each in choices.drivers if each["kind"] == CLUSTER_POLICIES.kind}
    ours = {metadata["name"] async for kind, metadata in driver_objects(client) if kind is CLUSTER_POLICIES}
    return (there - ours) | wanted


def _made(choices: InstallChoices, name: str) -> bool:
    settings = choices.settings
    return settings is not None and any(
        each.data and each.name == name for each in (settings.sharing, settings.layouts)
    )


def _rival(daemon_set: DaemonSet) -> str:
    images = [container.image for container in daemon_set.spec.template.spec.containers]
    return next((what for part, what in RIVALS.items() if any(part in image for image in images)), "")
