"""Gives nodes back to NVIDIA's programs that ``tessera install --adopt`` stopped.

The labels ``nvidia.com/gpu.deploy.*`` are Tessera's fields of the Node, so they go with the others. NVIDIA's operator
sets missing ones to true, and its pods come back. This module does the rest: the ClusterPolicy and DaemonSets.
"""

from collections.abc import AsyncIterator
from contextlib import suppress

from tessera.cli.install.apply import list_objects
from tessera.cli.uninstall.results import Done, Result
from tessera.gpu_operator.policies.assignment import CLUSTER_POLICIES
from tessera.gpu_operator.settings.adoption import STOPPED_KEY, restore_patch
from tessera.kube.client.client import Client
from tessera.kube.client.errors import NotFound
from tessera.kube.resources import DAEMONSETS


async def give_back(client: Client, *, dry: bool) -> AsyncIterator[Result]:
    """Lets NVIDIA's programs run again; yields what changes."""
    for policy in await list_objects(client, CLUSTER_POLICIES):
        metadata = policy["metadata"]
        if patch := restore_patch(policy):
            if not dry:
                with suppress(NotFound):
                    version = metadata["resourceVersion"]
                    await client.merge_patch(CLUSTER_POLICIES, metadata["name"], patch, resource_version=version)
            yield Done(f"clusterpolicy.nvidia.com/{metadata['name']}", "given back")
    for item in (await client.list(DAEMONSETS.as_dicts())).items:
        metadata = item["metadata"]
        if STOPPED_KEY in (item["spec"]["template"]["spec"].get("nodeSelector") or {}):
            if not dry:
                patch = {"spec": {"template": {"spec": {"nodeSelector": {STOPPED_KEY: None}}}}}
                with suppress(NotFound):
                    await client.merge_patch(DAEMONSETS, metadata["name"], patch, metadata["namespace"])
            yield Done(f"daemonset.apps/{metadata['name']} in {metadata['namespace']}", "given back")
