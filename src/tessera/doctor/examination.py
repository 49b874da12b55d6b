"""All checks of a cluster, and the trial of an image.

:func:`try_image` lets a node pull an image and start it: what an installation needs before anything else. Its pod is
the only object that the examination makes; it is deleted again, also when the user stops the command.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tessera.clock import Clock
from tessera.doctor.card_checks import check_claims
from tessera.doctor.facts import Finding, Refusal, error, ok
from tessera.doctor.installation_checks import check_installation
from tessera.doctor.manifests import BUILD_IMAGE, UNPUBLISHED
from tessera.doctor.platform_checks import check_platform
from tessera.doctor.reading import read_facts
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.resources import PODS, Pod
from tessera.kube.resources.pods import NOT_PULLED
from tessera.kube.trial_pod import TRIAL_POLL, TRIAL_SECONDS, trial_spec
from tessera.text import one_line

CHECK = "image"


async def examine(client: Client, clock: Clock, trial_namespace: str = "default") -> Sequence[Finding]:
    """Returns the findings, in a fixed order.

    Args:
        client: the asker's.
        clock: the asker's clock.
        trial_namespace: namespace of a pod that the API server reviews and does not store.

    Raises:
        ConnectionError: the API server does not answer at all.
    """
    facts = await read_facts(client, clock, trial_namespace)
    found = [*check_platform(facts), *check_installation(facts), *check_claims(facts)]
    if isinstance(facts.kueue, Refusal) and facts.kueue.missing:
        return found
    from tessera.doctor.queue_checks import check_queues  # few clusters have Kueue

    return [*found, *check_queues(facts)]


async def try_image(client: Client, clock: Clock, image: str, namespace: str) -> Finding:
    """Makes a pod with the image, follows it until its container has started, and deletes it.

    Args:
        client: the asker's.
        clock: the asker's clock.
        image: the image's name.
        namespace: where the pod is made.
    """
    began = clock.monotonic()
    try:
        name: str = (await client.create(PODS.as_dicts(), _pod(image), namespace))["metadata"]["name"]
    except ApiError as refused:
        return error(CHECK, f"no pod could be made to try {image}: {one_line(refused, 300)}", "choose another -n")
    try:
        while clock.monotonic() - began < TRIAL_SECONDS:
            pod = await client.get(PODS, name, namespace)
            if finding := _judge(pod, image, clock.monotonic() - began):
                return finding
            await clock.sleep(TRIAL_POLL)
    finally:
        with suppress(NotFound):
            await asyncio.shield(client.delete(PODS, name, namespace))
    return error(CHECK, f"{image} did not start within {TRIAL_SECONDS:.0f} s", "try again, or look at the pod's events")


def _judge(pod: Pod, image: str, seconds: float) -> Finding | None:
    """The finding; None while nothing is decided."""
    node = pod.spec.node_name
    for container in pod.status.container_statuses:
        state = container.state
        if state is None:
            continue
        if state.waiting is not None and state.waiting.reason in NOT_PULLED:
            said = one_line(f"{state.waiting.reason}: {state.waiting.message}", 300)
            return error(CHECK, f"node {node} cannot pull {image}: {said}", _advice(image))
        if state.terminated is not None and state.terminated.exit_code != 0:
            text = f"{image} ends on node {node} with exit code {state.terminated.exit_code}"
            return error(CHECK, text, "check that it is Tessera's image, for the node's architecture")
        if state.running is not None or state.terminated is not None:
            return ok(CHECK, f"node {node} pulled {image} and started it after {seconds:.1f} s")
    return None


def _advice(image: str) -> str:
    if image.partition(":")[0] == UNPUBLISHED:
        return BUILD_IMAGE
    return f"push it (podman push {image}); if its registry asks for a login, give the nodes one"


def _pod(image: str) -> dict[str, Any]:
    return {
        "metadata": {"generateName": "tessera-image-", "labels": {"app.kubernetes.io/part-of": "tessera"}},
        "spec": trial_spec("version", image, ["tessera", "--version"]),
    }
