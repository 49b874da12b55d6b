"""``tessera resize``: gives a running pod a bigger slice from the next start of its container on."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tessera.api.names import PAUSE_IMAGE
from tessera.cli.base.connection import cluster_options, connect, own_namespace, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.durations import Duration
from tessera.cli.base.process import run_command
from tessera.text import UserError

if TYPE_CHECKING:
    from tessera.kube.client import Client
    from tessera.kube.resources import Pod

#: Longest name of a pod (DNS subdomain, RFC 1123), and what the lender's has after that of the pod.
_LONGEST, _SUFFIX = 253, "-slice"
#: Fields of the pod's spec that the lender has too, so that it may run on the node and is of equal rank.
_COPIED = ("tolerations", "priorityClassName", "imagePullSecrets", "schedulerName")
#: Seconds between two looks at the lender, and the looks after which one that may wait is left alone.
_LOOK, _QUEUED = 1.0, 2


@click.command(no_args_is_help=True)
@click.argument("pod", metavar="POD")
@click.argument("memory", required=False, metavar="[MEMORY]")
@click.option("--back", is_flag=True, help="Give the bigger slice back; ends a process of the pod that uses it.")
@click.option("--queue", is_flag=True, help="Let the request wait in the queue if there is no room.")
@click.option("--wait", default="30s", type=Duration(), show_default=True, help="Time to wait for room.")
@click.option("--image", default=PAUSE_IMAGE, show_default=True, help="What the lender runs.")
@click.option("-n", "--namespace", metavar="NAME", help="The pod's namespace.  [default: the context's, or default]")
@cluster_options
@report_errors
def command(
    *,
    pod: str,
    memory: str | None,
    back: bool,
    queue: bool,
    wait: float,
    image: str,
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Give a running pod a bigger slice from the next start of its container on.

    For pods that state their GPU memory (annotation tessera.dev/gpu-memory). The pod keeps its name, address and
    volumes. Kubernetes lets nobody change what a pod requests, so a second pod, POD-slice, requests the bigger slice on
    the same node, and lends it: quotas, limits and the queue treat it like any other. The pod keeps its own slice too,
    which Kubernetes counts until it ends. Without room the second pod is removed again, and nothing has changed.

    End the process yourself when it suits. --back ends a process that uses the bigger slice. You need the rights to
    read, create and delete pods in the namespace.

    \b
    Examples:
      tessera resize web-0 20Gi
      kubectl exec web-0 -- kill 1
      tessera resize web-0 --back
    """
    if back == (memory is not None):
        raise click.UsageError("write either the memory, such as 20Gi, or --back")
    home = own_namespace(namespace, kubeconfig, context)

    async def run() -> None:
        async with connect("tessera-resize", kubeconfig, context) as client:
            if memory is None:
                await end(client, home, pod)
            else:
                await begin(client, (home, pod), memory, image, None if queue else wait)

    run_command(run())


async def begin(client: "Client", at: tuple[str, str], memory: str, image: str, wait: float | None) -> None:
    """Makes the lender of a pod, and removes it again if it gets no room.

    Args:
        client: the user's client.
        at: namespace and name of the pod.
        memory: the memory, as a quantity.
        image: what the lender runs.
        wait: seconds to wait for room; None to let it wait in the queue.

    Raises:
        UserError: the pod cannot borrow a slice, or there is no room.
        ApiError: the server refuses the lender: a quota, a wrong quantity, or a missing right.
    """
    import msgspec

    from tessera.kube.errors import ApiError
    from tessera.kube.resources import PODS

    namespace, name = at
    whole = await client.get(PODS.as_dicts(), name, namespace)
    pod = msgspec.convert(whole, PODS.type, strict=False)
    container = _check(pod)
    body = make_lender(whole, memory, image)
    lender = body["metadata"]["name"]
    await _clear(client, namespace, lender, name)
    resource = await _try(client, pod, body)
    made = await client.create(PODS.as_dicts(), body, namespace)
    try:
        found = await _wait_for_place(client, namespace, lender, wait)
    except BaseException:  # somebody ends the command, or the server is away: no lender that nobody knows of
        with suppress(ApiError, OSError):
            await _remove(client, namespace, lender, made["metadata"]["uid"])
        raise
    if found is not None and wait is None and not found.spec.node_name:
        say(f"pod {lender} waits in the queue: {_why(found)}", f"See it: tessera why {lender} -n {namespace}")
        return
    if found is None or not found.spec.node_name or found.status.has_ended:
        await _remove(client, namespace, lender, made["metadata"]["uid"])
        again = f"tessera resize {name} {memory} -n {namespace}"
        refused = found is not None and bool(found.spec.node_name)
        step = (
            f"A node refuses pods while its agent restarts; again: {again}"
            if refused
            else f"To wait for room: {again} --queue"
        )
        raise UserError(
            f"pod {namespace}/{name} gets no {resource} on node {pod.spec.node_name}: {_why(found)}; nothing has"
            f" changed. {step}"
        )
    say(
        f"pod {lender} holds {resource} on node {pod.spec.node_name} for pod {name}.",
        f"Container {container} has it from its next start on. End its process when it suits, such as by"
        f" kubectl exec -n {namespace} {name} -c {container} -- kill 1",
        f"To give it back: tessera resize {name} --back -n {namespace}",
    )


async def _clear(client: "Client", namespace: str, lender: str, name: str) -> None:
    """Removes a lender that has ended, as one that its node refused.

    Raises:
        UserError: there is one that has not ended.
    """
    from tessera.kube.errors import NotFound
    from tessera.kube.resources import PODS

    try:
        found = await client.get(PODS, lender, namespace)
    except NotFound:
        return
    if found.metadata.deletion_timestamp is not None:
        raise UserError(f"pod {namespace}/{lender} is still being deleted: run the command again once it is gone")
    if not found.status.has_ended:
        raise UserError(
            f"pod {namespace}/{lender} exists already; give its slice back first:"
            f" tessera resize {name} --back -n {namespace}"
        )
    await _remove(client, namespace, lender, found.metadata.uid)


async def _remove(client: "Client", namespace: str, lender: str, uid: str) -> None:
    from tessera.kube.errors import NotFound
    from tessera.kube.resources import PODS

    with suppress(NotFound):
        await client.delete(PODS, lender, namespace, uid=uid, grace_seconds=0)


async def end(client: "Client", namespace: str, name: str) -> None:
    """Deletes the lender of a pod.

    Raises:
        UserError: there is none.
    """
    from tessera.kube.errors import NotFound
    from tessera.kube.resources import PODS

    lender = _lender_name(name)
    try:
        await client.delete(PODS, lender, namespace)
    except NotFound as error:
        raise UserError(f"there is no pod {namespace}/{lender}: pod {name} has its own slice") from error
    say(
        f"pod {lender} ends. A container of pod {name} that has its slice is ended then, and starts again with the"
        " pod's own slice."
    )


def _lender_name(pod: str) -> str:
    return pod[: _LONGEST - len(_SUFFIX)].rstrip("-.") + _SUFFIX


def _check(pod: "Pod") -> str:
    """Returns the container that has the pod's slice.

    Raises:
        UserError: the pod cannot borrow a slice.
    """
    from tessera.api.names import LENDS_ANNOTATION, MIG_RESOURCE_PREFIX
    from tessera.api.pod_annotations import CHOSEN, MEMORY

    meta, spec = pod.metadata, pod.spec
    key, chosen = f"pod {meta.namespace}/{meta.name}", meta.annotations.get(CHOSEN, "")
    if LENDS_ANNOTATION in meta.annotations:
        raise UserError(f"{key} lends its slice to pod {meta.annotations[LENDS_ANNOTATION]}: resize that one")
    if MEMORY not in meta.annotations or not chosen:
        raise UserError(
            f"{key} does not state its GPU memory (annotation {MEMORY}), so its size is fixed; create another pod"
        )
    if not chosen.startswith(MIG_RESOURCE_PREFIX):
        raise UserError(f"{key} holds {chosen}, and only slices on demand can be exchanged; create another pod")
    if pod.status.phase != "Running" or meta.deletion_timestamp is not None:
        raise UserError(f"{key} does not run: see tessera why {meta.name} -n {meta.namespace}")
    if spec.restart_policy != "Always":
        raise UserError(
            f"{key} has restartPolicy {spec.restart_policy}: its container ends for good; create another pod"
        )
    container = next((each.name for each in spec.containers if chosen in each.resources.limits), None)
    if container is None:
        raise UserError(f"no container of {key} requests {chosen}, which its annotation {CHOSEN} names")
    return container


def make_lender(pod: dict[str, Any], memory: str, image: str) -> dict[str, Any]:
    """Returns the pod that holds a slice of so much memory for another pod.

    Args:
        pod: the other pod; it runs.
        memory: the memory, as a quantity.
        image: what the lender runs.
    """
    from tessera.api.names import HOSTNAME_LABEL, LENDS_ANNOTATION
    from tessera.api.pod_annotations import MEMORY
    from tessera.kube.trial_pod import CONFINED
    from tessera.kueue.objects import QUEUE_LABEL

    meta, spec = pod["metadata"], pod["spec"]
    hostname = (spec.get("nodeSelector") or {}).get(HOSTNAME_LABEL, spec["nodeName"])
    amounts = {"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}}
    labels = {key: text for key, text in (meta.get("labels") or {}).items() if key == QUEUE_LABEL}
    return {
        "metadata": {
            "name": _lender_name(meta["name"]),
            "labels": labels,
            "annotations": {MEMORY: memory, LENDS_ANNOTATION: meta["name"]},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}],
        },
        "spec": {
            **{key: spec[key] for key in _COPIED if key in spec},
            "nodeSelector": {HOSTNAME_LABEL: hostname},
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [{"name": "slice", "image": image, "resources": amounts, "securityContext": dict(CONFINED)}],
        },
    }


async def _try(client: "Client", pod: "Pod", body: dict[str, Any]) -> str:
    """Asks what the lender would get, without making it; returns its resource.

    Raises:
        UserError: that is no slice on demand, or no bigger one.
    """
    from tessera.api.names import MIG_RESOURCE_PREFIX, QUOTA_RESOURCE
    from tessera.api.pod_annotations import CHOSEN, CHOSEN_REASON
    from tessera.kube.quantity import parse_quantity
    from tessera.kube.resources import PODS

    made = await client.create(PODS, body, pod.metadata.namespace, dry_run=True)
    chosen = made.metadata.annotations.get(CHOSEN, "")
    if not chosen.startswith(MIG_RESOURCE_PREFIX):
        reason = made.metadata.annotations.get(CHOSEN_REASON, "the admission webhook does not answer")
        raise UserError(f"node {pod.spec.node_name} offers no slice on demand for this: {reason}")
    amounts = [
        sum(parse_quantity(each.resources.limits.get(QUOTA_RESOURCE, "0")) for each in one.spec.containers)
        for one in (pod, made)
    ]
    if amounts[1] <= amounts[0]:
        raise UserError(
            f"pod {pod.metadata.namespace}/{pod.metadata.name} holds {pod.metadata.annotations[CHOSEN]} already, and"
            f" {chosen} is no bigger. Kubernetes counts what a pod requests until it ends, so a smaller slice would"
            " free nothing: create another pod"
        )
    return chosen


async def _wait_for_place(client: "Client", namespace: str, name: str, seconds: float | None) -> "Pod | None":
    """Returns the lender once it runs or has ended, or as it is after ``seconds``; None if it is gone."""
    from tessera.clock import SystemClock
    from tessera.kube.errors import NotFound
    from tessera.kube.resources import PODS

    left = _QUEUED if seconds is None else int(seconds / _LOOK)
    while True:
        try:
            found = await client.get(PODS, name, namespace)
        except NotFound:
            return None
        if found.status.phase not in {"", "Pending"} or left <= 0:
            return found
        left -= 1
        await SystemClock().sleep(_LOOK)


def _why(pod: "Pod | None") -> str:
    """Why a lender does not run, by the controller's condition or by kubelet."""
    from tessera.api.names import SLICE_PROMISED_CONDITION

    if pod is None:
        return "somebody deleted its lender"
    if pod.status.has_ended:
        return f"the node refused its lender: {pod.status.message or pod.status.reason}"
    told = pod.status.condition(SLICE_PROMISED_CONDITION)
    return told.message if told is not None and told.message else "nothing says yet why it waits"
