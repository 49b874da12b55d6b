"""Lets one pod get a card of a node, run a computation on it, and go: what every user of the node will do."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from tessera.accept.checks import Finding, Status
from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.resources import PODS, Pod
from tessera.kube.trial_pod import TRIAL_POLL, TRIAL_SECONDS, trial_spec
from tessera.text import one_line

#: Name and label of the pods of an acceptance.
APP = "tessera-accept"
#: The namespace of the pod: one without exceptions for Tessera.
NAMESPACE = "default"
#: NVML answers, and two vectors are added on the card that the pod got. It leaves no marker.
_SCRIPT = "tessera validate --markers-dir /nonexistent; exit $?"
_WHOLE = "nvidia.com/gpu"


class PodTrial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a trial.

    Attributes:
        resource: the resource of which the pod asked for one.
        bound: seconds until the pod had its node.
        ended: seconds until its program had ended well.
        gone: seconds from the deletion until the pod was gone.
        error: what went wrong; empty if nothing did.
    """

    resource: str
    bound: float = 0.0
    ended: float = 0.0
    gone: float = 0.0
    error: str = ""


def choose_resource(capacity: Mapping[str, str]) -> str:
    """The resource to ask for: a whole card, else what the node offers first by name; empty if it offers nothing."""
    offered = sorted(name for name, amount in capacity.items() if name.startswith("nvidia.com/") and amount != "0")
    return _WHOLE if _WHOLE in offered else next(iter(offered), "")


def trial_pod(agent: Mapping[str, Any], *, hostname: str, resource: str) -> dict[str, Any]:
    """The pod.

    Args:
        agent: the spec of a pod of the agent, for the image.
        hostname: the node's label ``kubernetes.io/hostname``; the scheduler places the pod as any other.
        resource: the resource that it asks for.
    """
    image = agent["containers"][0]["image"]
    secrets = {"imagePullSecrets": agent["imagePullSecrets"]} if "imagePullSecrets" in agent else {}
    return {
        "metadata": {
            "generateName": f"{APP}-pod-",
            "labels": {"app.kubernetes.io/name": f"{APP}-pod", "app.kubernetes.io/part-of": "tessera"},
        },
        "spec": {
            **secrets,
            "nodeSelector": {"kubernetes.io/hostname": hostname},
            "tolerations": [{"operator": "Exists"}],
            **trial_spec("compute", image, ["sh", "-c", _SCRIPT], resources={"limits": {resource: "1"}}),
        },
    }


async def run_pod_trial(client: Client, clock: Clock, pod: dict[str, Any]) -> PodTrial:
    """Makes the pod, follows it to its end, and deletes it, also when the user stops the command.

    Raises:
        ApiError: the pod cannot be made.
    """
    ((resource, _),) = pod["spec"]["containers"][0]["resources"]["limits"].items()
    began = clock.monotonic()
    name: str = (await client.create(PODS.as_dicts(), pod, NAMESPACE))["metadata"]["name"]
    found = PodTrial(resource=resource)
    try:
        found = await _follow(client, clock, name, found, began)
    finally:
        gone, error = await asyncio.shield(_delete(client, clock, name))
    return msgspec.structs.replace(found, gone=gone, error=found.error or error)


async def _follow(client: Client, clock: Clock, name: str, found: PodTrial, began: float) -> PodTrial:
    while True:
        pod = await client.get(PODS, name, NAMESPACE)
        passed = round(clock.monotonic() - began, 3)
        if pod.spec.node_name and not found.bound:
            found = msgspec.structs.replace(found, bound=passed)
        if pod.status.phase == "Succeeded":
            return msgspec.structs.replace(found, ended=passed)
        if pod.status.phase == "Failed" or passed > TRIAL_SECONDS:
            return msgspec.structs.replace(found, error=f"the pod is {_words(pod)} after {passed:.0f} s")
        await clock.sleep(TRIAL_POLL)


def _words(pod: Pod) -> str:
    """Why the pod has not ended well, in Kubernetes' words."""
    conditions = [each.message for each in pod.status.conditions if each.status == "False" and each.message]
    return one_line(" ".join(filter(None, (pod.status.phase or "Pending", pod.status.message, *conditions[:1]))))


async def _delete(client: Client, clock: Clock, name: str) -> tuple[float, str]:
    """Seconds until the pod was gone; or why it is not."""
    began = clock.monotonic()
    try:
        with suppress(NotFound):
            await client.delete(PODS, name, NAMESPACE)
            while clock.monotonic() - began < TRIAL_SECONDS:
                await client.get(PODS, name, NAMESPACE)
                await clock.sleep(TRIAL_POLL)
            return 0.0, f"pod {NAMESPACE}/{name} is still there {TRIAL_SECONDS:g} s after its deletion"
    except (ApiError, OSError) as error:
        return 0.0, f"pod {NAMESPACE}/{name} cannot be deleted: {one_line(error)}"
    return round(clock.monotonic() - began, 3), ""


def judge_pod(trial: PodTrial) -> Finding:
    """The pod got a card, computed on it, and is gone."""
    if trial.error:
        return Finding(Status.FAILED, f"one {trial.resource}: {trial.error}")
    text = f"a pod got one {trial.resource}: bound after {trial.bound:g} s, ended well after {trial.ended:g} s, gone"
    return Finding(Status.OK, f"{text} {trial.gone:g} s after its deletion")
