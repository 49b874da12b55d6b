"""Brings images to nodes before the pods come that get slots there, by pods that pull and never run.

These are new pods that get the slots of old ones, pods with reserved slots, and the next pods of services for which a
slice is kept spare.

A pull pod has the new pod's images, each with a command that no image has: kubelet pulls, and the container cannot
start. So nothing of the image runs, on any version of Kubernetes. Images that the new pod mounts as volumes, such as a
model, are volumes of the pull pod too: kubelet pulls them before it starts a container. A pull pod is made in Tessera's
own namespace, where the controller may make pods anyway, and has the pull credentials of the node only. So it names a
secret that does not exist: to a pod that names none the API server adds those of the namespace's account, and a tenant
would get images that only Tessera may pull. An image that needs a secret of the new pod's namespace is pulled by that
pod: for more, the controller would have to make pods in all namespaces.

Rules:

- The cluster is the record: a pull pod is named after the new pod. A new controller finds it, or makes it again.
- It is deleted when its images are there, and when nobody waits for it. At its own deadline it is made anew.
- A refused image of a new pod with pull secrets may come after the switch, so nobody waits for it, unless the registry
  says that there is none. One of a new pod without secrets does not come then either: the name is wrong or the registry
  is away. The update is told so, and the old pod serves on.
- It holds no card, mounts no token, and has no right on the node.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any

from tessera.api.names import NodeName, PodUid
from tessera.controller.informers import ClusterInput
from tessera.controller.satellite import Term
from tessera.controller.slicing.proposals import Proposer
from tessera.controller.slicing.state.events import ImagesPulled
from tessera.handover.updates import PULL_SECONDS
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.errors import AlreadyExists, ApiError, NotFound
from tessera.kube.resources import PODS, ContainerStateWaiting, ContainerStatus, Pod
from tessera.kube.trial_pod import CONFINED

#: Label of a pull pod: UID of the new pod.
PULL_LABEL = "tessera.dev/pulls-for"
#: Most pods: pull pods at the same time, and images of one.
PULLS, PULLED_IMAGES = 16, 8
#: Most of them for one namespace, whose registry may be slow, or refuse: a pull lasts ten minutes at most.
NAMESPACE_PULLS = 4
#: Name of a Secret that nobody makes.
_NO_CREDENTIALS = "none"
#: Seconds until a request without an answer is sent again.
_AGAIN = 5.0
#: Why a container waits while its image may still come.
_COMING = frozenset({"", "ContainerCreating", "PodInitializing"})
#: Why it waits while kubelet does not get the image, and tries again (kubelet, ``pkg/kubelet/images/types.go``).
_REFUSED = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ImageInspectError", "RegistryUnavailable"}
    | {"SignatureValidationFailed"}
)


class ImagePulls(ClusterInput):
    """Makes and deletes pull pods.

    Args:
        term: the term of leadership, with all pods; its proposers say what to pull (:attr:`.Proposer.pulls`).

    Attributes:
        pods: the pull pods by their name.
    """

    def __init__(self, term: Term) -> None:
        super().__init__(term.runtime, term.slicer, term.wake)
        self._namespace = term.namespace
        self._informer = term.pods
        self._after_step = term.after_step
        self.pods: dict[str, Pod] = {}
        #: The pull pods whose refused image was told, by the new pod's UID.
        self._told: set[PodUid] = set()
        self._due = asyncio.Event()
        term.asked.add(self._due)

    def _is_pull(self, pod: Pod) -> bool:
        return PULL_LABEL in pod.metadata.labels and pod.metadata.namespace == self._namespace

    def _observe(self, event: WatchEvent[Pod]) -> None:
        if event.kind is EventKind.DELETED:
            self.pods.pop(event.object.metadata.name, None)
        else:
            self.pods[event.object.metadata.name] = event.object
        self._due.set()

    async def run(self) -> None:
        """Pulls until cancelled; looks at no pod before there is a pull pod, of an earlier controller or wanted."""
        if not any(map(self._is_pull, self._informer.cache.values())):
            await self._due.wait()
        self._informer.add_handler(self._observe, only=self._is_pull)
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._act()
                (self._after_step.add if self.pods else self._after_step.discard)(self._due)
            except (ApiError, OSError):
                await self._clock.sleep(_AGAIN)
                self._due.set()

    async def _act(self) -> None:
        wanted = find_wanted(self._slicer.proposers)
        self._told &= wanted.keys()
        for name, pod in list(self.pods.items()):
            uid, node = PodUid(pod.metadata.labels[PULL_LABEL]), NodeName(pod.spec.node_name)
            found = judge(pod, with_secrets=self._has_secrets(uid)) if wanted.get(uid) == node else PullState.GONE
            if found is PullState.REFUSED and uid not in self._told:
                self._told.add(uid)
                self._pass_on(ImagesPulled(uid, node, refusal_of(pod)))
            if found in {PullState.REFUSED, PullState.COMING}:
                continue
            await self._delete(name, pod)
            if found is PullState.DONE:
                self._pass_on(ImagesPulled(uid, node))
        pods = self._slicer.state.cluster.pods
        namespaces = {uid: pods[uid].namespace for uid in wanted if uid in pods}
        present = {uid for uid in namespaces if _name_of(uid) in self.pods}
        for uid in choose_yielding(namespaces, present, self._told):
            await self._delete(_name_of(uid), self.pods[_name_of(uid)])
            present.discard(uid)
        for uid in choose_next(namespaces, present, self._told):
            await self._create(uid, wanted[uid])

    def _new_pod(self, uid: PodUid) -> Pod | None:
        info = self._slicer.state.cluster.pods.get(uid)
        pod = self._informer.cache.get(info.key) if info is not None else None
        return pod if pod is not None and str(pod.metadata.uid) == uid else None

    def _has_secrets(self, uid: PodUid) -> bool:
        pod = self._new_pod(uid)
        return pod is not None and bool(pod.spec.image_pull_secrets)

    async def _create(self, uid: PodUid, node: NodeName) -> None:
        pod = self._new_pod(uid)
        if pod is None:
            return
        body = make_pull_pod(pod, node, secrets.token_hex(16))
        try:
            await self._client.create(PODS.as_dicts(), body, self._namespace)
        except AlreadyExists:
            return
        except ApiError as error:
            if error.code >= 500 or error.code in {401, 408, 429}:
                raise
            self._pass_on(ImagesPulled(uid, node))  # it is not allowed here: then after the switch

    async def _delete(self, name: str, pod: Pod) -> None:
        self.pods.pop(name, None)
        try:
            await self._client.delete(PODS, name, self._namespace, uid=pod.metadata.uid, grace_seconds=0)
        except NotFound:
            return


def find_wanted(proposers: Iterable[Proposer]) -> Mapping[PodUid, NodeName]:
    """Returns by new pod the node to which its images are to come, in the order in which they do.

    Images for which an old pod waits come first: of a pod that several proposers name, the last one's node counts.
    """
    wanted: dict[PodUid, NodeName] = {}
    for each in proposers:
        wanted = {**each.pulls, **{uid: node for uid, node in wanted.items() if uid not in each.pulls}}
    return wanted


def choose_yielding(
    namespaces: Mapping[PodUid, str], present: AbstractSet[PodUid], refused: AbstractSet[PodUid]
) -> list[PodUid]:
    """Returns the new pods whose pull pods end for others that were not tried: their own images are refused.

    Args:
        namespaces: by new pod whose images somebody waits for, its namespace.
        present: those of them that have a pull pod.
        refused: those of which an image was refused.
    """
    untried = {namespace for uid, namespace in namespaces.items() if uid not in present and uid not in refused}
    is_full = bool(untried) and len(present) >= PULLS
    return [uid for uid in present if uid in refused and (is_full or namespaces[uid] in untried)]


def choose_next(
    namespaces: Mapping[PodUid, str], present: AbstractSet[PodUid], refused: AbstractSet[PodUid] = frozenset()
) -> list[PodUid]:
    """Returns the new pods whose images are pulled next; arguments as of :func:`choose_yielding`."""
    counts = Counter(namespaces[uid] for uid in present)
    found: list[PodUid] = []
    for uid, namespace in sorted(namespaces.items(), key=lambda each: each[0] in refused):
        if uid not in present and counts[namespace] < NAMESPACE_PULLS and counts.total() < PULLS:
            counts[namespace] += 1
            found.append(uid)
    return found


class PullState(Enum):
    """What has become of a pull pod."""

    #: An image may still come.
    COMING = "coming"
    #: The node does not get an image that the new pod would not get either; it tries again.
    REFUSED = "refused"
    #: Nobody need wait for the images any more.
    DONE = "done"
    #: It has ended at its deadline, or nobody wants it.
    GONE = "gone"


def judge(pod: Pod, *, with_secrets: bool) -> PullState:
    """Returns what has become of a pull pod.

    Args:
        pod: the pull pod.
        with_secrets: the new pod has pull secrets, which the pull pod lacks: only that there is no such image says
            something of the new pod.
    """
    if pod.status.has_ended and pod.status.reason == "DeadlineExceeded":
        return PullState.GONE
    states = [_state_of(each, with_secrets=with_secrets) for each in pod.status.container_statuses]
    if PullState.REFUSED in states:
        return PullState.REFUSED
    are_all_done = len(states) >= len(pod.spec.containers) and PullState.COMING not in states
    return PullState.DONE if are_all_done or pod.status.has_ended else PullState.COMING


def _state_of(status: ContainerStatus, *, with_secrets: bool) -> PullState:
    if status.running is not None or status.terminated is not None:
        return PullState.DONE
    waiting = status.waiting or ContainerStateWaiting()
    if waiting.reason in _REFUSED and (not with_secrets or _is_absent(waiting.message)):
        return PullState.REFUSED
    return PullState.COMING if waiting.reason in _COMING else PullState.DONE


def _is_absent(message: str) -> bool:
    """True if a registry says that it has no such image, and not that it must know who asks."""
    text = message.lower()
    is_denied = any(word in text for word in ("denied", "authoriz", "401", "403"))
    return not is_denied and ("not found" in text or "manifest unknown" in text)


def refusal_of(pod: Pod) -> str:
    """Returns what kubelet says of the first image that it does not get; empty if it gets all."""
    waits = (each.waiting for each in pod.status.container_statuses)
    return next((each.message or each.reason for each in waits if each is not None and each.reason in _REFUSED), "")


def _name_of(uid: PodUid) -> str:
    return f"tessera-pull-{uid}"


def make_pull_pod(pod: Pod, node: NodeName, nonce: str) -> dict[str, Any]:
    """Returns the pod that pulls the images of another one to a node.

    Args:
        pod: the pod.
        node: the node.
        nonce: makes the command one that nobody can have put into an image.
    """
    images = dict.fromkeys(each.image for each in (*pod.spec.init_containers, *pod.spec.containers) if each.image)
    volumes = dict.fromkeys(each.image.reference for each in pod.spec.volumes if each.image and each.image.reference)
    artefacts = {f"artefact-{number}": each for number, each in enumerate(list(volumes)[:PULLED_IMAGES])}
    containers = [
        {
            "name": f"image-{number}",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": [f"/no-command-{nonce}"],
            "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
            "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"memory": "64Mi"}},
            "securityContext": dict(CONFINED),
            "volumeMounts": [{"name": name, "mountPath": f"/{name}", "readOnly": True} for name in artefacts],
        }
        for number, image in enumerate(list(images)[:PULLED_IMAGES])
    ]
    return {
        "metadata": {
            "name": _name_of(PodUid(pod.metadata.uid)),
            "labels": {"app.kubernetes.io/name": "tessera-pull", PULL_LABEL: pod.metadata.uid},
        },
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": int(PULL_SECONDS),
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "imagePullSecrets": [{"name": _NO_CREDENTIALS}],
            "tolerations": [{"operator": "Exists"}],
            "containers": containers,
            "volumes": [
                {"name": name, "image": {"reference": each, "pullPolicy": "IfNotPresent"}}
                for name, each in artefacts.items()
            ],
        },
    }
