"""A small cluster with a card of each kind, leases in each state, broken cards and nodes, and pods that wait."""

from typing import Any

import msgspec
from tests.dashboard.test_documents import GATED, pod
from tests.explain.test_node_startup import record
from tests.explain.test_pods import GPU, agents_of
from tests.explain.test_pods import cards as recorded
from tests.explain.test_pods import node as sliced
from tests.observe.conftest import GIB, lease
from tests.provisioning.conftest import T0, driver, make_node, offering

from tessera.access.agent_pages import FleetUsage
from tessera.api.instaslice import Instaslice
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, encode_cards
from tessera.api.nodes.health import CardHealth, Evidence, Finding, Holder
from tessera.api.nodes.node_marks import DriverPhase, DriverStrategy
from tessera.api.nodes.silence import Silence, SilentNode
from tessera.api.nodes.usage import CardUsage, DeviceUsage, LeaseUsage, NodeUsage
from tessera.clock import rfc3339
from tessera.dashboard.answers import NOT_MIRRORED, explain_waiting, node_documents, waiting_pods
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.documents import Document
from tessera.dashboard.history import CARD_STEP, History
from tessera.explain.explanation import Explanation
from tessera.explain.snapshot import Snapshot
from tessera.forecast.queue_page import ExpectedStart, QueuedPod, QueuePage
from tessera.kube.resources import Node, Pod
from tessera.observe.service_rows import service_rows
from tessera.provisioning.history import encode_record
from tessera.provisioning.milestones import PROVISIONING_ANNOTATION
from tessera.reasons.reason import OldPods, UpdateStep
from tessera.signals.page import JOULES, REQUESTS, ROOM, WAITING, Service, SignalsPage

#: The time in the browser.
NOW = T0 + 100
A100, H100, T4 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "Tesla T4"
BROKEN = CardHealth(
    state="needs_reset",
    since=T0 - 600,
    evidence=(Evidence(source="XID 48", text="XID 48, a double-bit ECC error", asks="reset", since=T0 - 600, count=2),),
    next="the card is reset once nobody holds it",
    holders=(Holder(namespace="research", pod="trainer-0"),),
)
BY_HAND = CardHealth(
    state="cordoned",
    since=T0 - 3000,
    evidence=(Evidence(source="cordon", text="cordoned by hand: fan is loud", asks="uncordon", since=T0 - 3000),),
    next="not allocated until it is uncordoned; the pods on it keep running",
    holders=(Holder(namespace="team", pod="web-1"),),
)

#: Kubelet says that the node is well.
READY = ({"type": "Ready", "status": "True"},)
SLOWED = Finding(
    kind="throttled",
    text="its card is slowed down by heat or power supply, in 96% of the samples",
    advice="Ask the administrator: tessera health NODE.",
    window=600,
    lasts=1500,
)


def measured(total: float, used: float, busy: float | None = None, **more: float) -> dict[str, float]:
    """Values of a card or a MIG device, in GiB."""
    values = {"memory_total": total * GIB, "memory_used": used * GIB, **more}
    return values if busy is None else {**values, "gpu_utilization": busy}


def device(name: str, profile: str, start: int, size: int, *use: float) -> DeviceUsage:
    """A MIG device of a card with 8 memory slots of 5 GiB; ``use`` is its memory in GiB, and its activity."""
    values = measured(5.0 * size, *(use or [0.0]))
    return DeviceUsage(uuid=name, profile=profile, start=start, size=size, share=size / 8, values=values)


#: Values of a card that is slowed down by heat.
HOT = measured(80, 60, 0.98, temperature=88, power=402)


def card(uuid: str, index: int, model: str, **more: Any) -> CardUsage:
    """A card that is warm and draws power."""
    values = measured(80.0, 0.0, power=90.0 + 60 * index, temperature=38.0 + 7 * index)
    return CardUsage(uuid=uuid, index=index, model=model, **{"values": values, **more})


def on_demand(*more: DeviceUsage, pod_name: str) -> NodeUsage:
    """A card that is cut on demand, and one in time slices."""
    cut = card(GPU, 0, A100, mig=True, slots=8, devices=(device("MIG-1", "3g.20gb", 4, 4, 12.0, 0.6), *more))
    cut = msgspec.structs.replace(cut, values=measured(40, 12, 0.6, power=210.0, temperature=51.0))
    shared = card("GPU-s", 1, T4, kind="time-slicing", replicas=4, values=measured(16, 5, 0.35, power=44.0))
    leases = (
        lease(pod_name, "MIG-1", kind="slice", share=0.5, memory=12 * GIB, busy=0.6, held=5400.0),
        lease("notebook", "GPU-s", kind="time-slicing", share=0.25, memory=3.4 * GIB, busy=0.3, held=900.0),
        lease("demo", "GPU-s", kind="time-slicing", share=0.25, state="resident", memory=1.2 * GIB, held=7000.0),
    )
    return NodeUsage(node="gpu-1", cards=(cut, shared), leases=leases, simulated=True)


def wholes() -> NodeUsage:
    """Whole cards: one that is held and not used, one that needs a reset, a free one, one that is not offered."""
    whole = card("GPU-w", 0, H100, kind="whole", values=measured(80, 2, 0.0, power=71.0, temperature=33.0))
    sick = card("GPU-x", 1, H100, kind="whole", health=BROKEN, values={})
    hot = card("GPU-h", 2, H100, kind="whole", throttled=("hw_thermal",), values=HOT)
    shut = card("GPU-n", 3, H100)
    never = lease(
        "forgotten", "GPU-w", state="never_used", wasted=7200.0, held=7200.0, evidence="no process in the 120 min"
    )
    works = lease(
        "trainer-7",
        "GPU-h",
        owner="StatefulSet/trainer",
        power=402.0,
        memory=60 * GIB,
        busy=0.98,
        held=86000.0,
        findings=(SLOWED,),
    )
    fault = "its card needs a reset: XID 48, a double-bit ECC error"
    dead = lease("trainer-0", "GPU-x", namespace="research", state="unknown", held=4000.0, fault=fault)
    return NodeUsage(node="gpu-2", cards=(whole, sick, hot, shut), leases=(never, works, dead), simulated=True)


def withheld() -> tuple[NodeUsage, Node]:
    """A node whose cards pods hold that are cordoned and failing, and of whose free cards one goes to no pod."""
    errors = (Evidence(source="nvlink-errors", text="links send packets again", asks="drain", since=T0 - 200),)
    loud = card("GPU-l", 0, H100, kind="whole", health=BY_HAND)
    fails = card("GPU-e", 1, H100, kind="whole", health=CardHealth(state="withheld", since=T0 - 200, evidence=errors))
    free = [card(f"GPU-{n}", n, H100, kind="whole") for n in (2, 3)]
    leases = (lease("web-1", "GPU-l", busy=0.4, held=52000.0), lease("train-1", "GPU-e", held=5200.0))
    cards = encode_cards((), (), {"nvidia.com/gpu": 1})
    annotations = {**offering(), CARDS_ANNOTATION: cards}
    node = make_node("gpu-7", conditions=READY, annotations=annotations, allocatable={"nvidia.com/gpu": "3"})
    status = msgspec.structs.replace(node.status, capacity={"nvidia.com/gpu": "4"})
    usage = NodeUsage(node="gpu-7", cards=(loud, fails, *free), leases=leases, simulated=True)
    return usage, msgspec.structs.replace(node, status=status)


def fixed() -> NodeUsage:
    """Cards of a layout: each MIG device for one pod, in time slices; and a card in MPS shares."""
    layout = (
        device("MIG-b", "3g.20gb", 0, 4),
        device("MIG-a", "2g.10gb", 4, 2, 9.0, 0.8),
        device("MIG-c", "1g.5gb", 6, 1),
    )
    blind = {"gpu_utilization": "mig_mode"}
    cut = card("GPU-f", 0, A100, mig=True, slots=8, kind="mig", devices=layout, absent=blind)
    halves = (device("MIG-d", "3g.20gb", 0, 4, 6.0, 0.5), device("MIG-e", "3g.20gb", 4, 4))
    sliced_mig = card("GPU-g", 1, A100, mig=True, slots=8, kind="time-slicing", replicas=4, devices=halves)
    mps = card("GPU-m", 2, A100, kind="mps", replicas=5, values=measured(40, 11, 0.7, power=260.0, temperature=60.0))
    leases: list[LeaseUsage] = [
        lease("bert", "MIG-a", kind="mig", share=0.25, memory=9 * GIB, busy=0.8, held=1800.0),
        lease("old-notebook", "MIG-c", kind="mig", share=0.125, state="idle", wasted=9000.0, held=80000.0),
        *(
            lease(f"student-{n}", "MIG-d", kind="time-slicing", share=0.125, memory=2 * GIB, held=2400.0)
            for n in (1, 2)
        ),
        lease(
            "student-3",
            "MIG-d",
            kind="time-slicing",
            share=0.125,
            memory=2 * GIB,
            state="unknown",
            busy=0.0,
            held=480.0,
            evidence="held for 8 min, at most 0.0% busy so far",
            counts_from=1800.0,
        ),
        *(
            lease(
                f"api-{n}",
                "GPU-m",
                owner="Deployment/api",
                power=90.0,
                kind="mps",
                share=0.2,
                memory=3 * GIB,
                busy=0.3,
                held=6e5,
            )
            for n in (1, 2)
        ),
    ]
    return NodeUsage(node="gpu-4", cards=(cut, sliced_mig, mps), leases=tuple(leases), simulated=True)


def fleet(*more: DeviceUsage, pod_name: str = "vllm") -> FleetUsage:
    """The agents' pages; ``more`` are further MIG devices of the first card."""
    silent = SilentNode(
        node="gpu-3",
        kind=Silence.NO_AGENT,
        reason="no pod of DaemonSet tessera-system/tessera-agent is on it",
        since=NOW - 720,
        next="compare the DaemonSet's selector and tolerations with the node's labels and taints",
    )
    return FleetUsage(nodes=(on_demand(*more, pod_name=pod_name), wholes(), fixed()), failures=(silent,))


def records() -> list[Instaslice]:
    """The slices of the first card: one is held, one is being made; and of a node whose agent does not answer."""
    known = recorded(("vllm", "3g.20gb", 4, 4, "created"), ("new-pod", "1g.5gb", 0, 1, "creating"), name="gpu-1")
    text = msgspec.json.encode(recorded(("batch-3", "3g.20gb", 0, 4, "created"), name="gpu-3"))
    return [known, msgspec.json.decode(text.replace(f'"{GPU}"'.encode(), b'"GPU-silent"'), type=Instaslice)]


def waiting() -> list[Pod]:
    """Pods that wait, the oldest first."""
    asks = [("big", "mig-7g.40gb", 720, GATED), ("sweep-9", "mig-4g.20gb", 260, GATED), ("llama", "gpu", 40, {})]
    pods = [(pod(name, {f"nvidia.com/{resource}": "1"}, **spec), age) for name, resource, age, spec in asks]
    return [
        msgspec.structs.replace(
            each, metadata=msgspec.structs.replace(each.metadata, creation_timestamp=rfc3339(NOW - age))
        )
        for each, age in pods
    ]


def nodes() -> list[Node]:
    """A node on its way, one whose driver failed, one whose driver is ready, and one that does not answer."""
    way = encode_record(record(ready=20, labelled=30))
    pulling = driver(phase=DriverPhase.PULLING, reason="an image", version="570")
    failed = driver(phase=DriverPhase.FAILED, reason="no image for kernel 5.14.0-284 in the registry", version="570")
    ready = driver(DriverStrategy.PRECOMPILED, phase=DriverPhase.READY, version="570")
    return [
        make_node("gpu-5", conditions=READY, annotations={PROVISIONING_ANNOTATION: way, **pulling}),
        make_node("gpu-6", conditions=READY, annotations=failed),
        make_node("gpu-4", conditions=READY, annotations=ready),
        make_node("gpu-3", conditions=READY, annotations=offering()),
    ]


def holding(name: str, node: str, resource: str) -> Pod:
    """A pod that runs with a card or a slice."""
    found = pod(name, {f"nvidia.com/{resource}": "1"}, nodeName=node)
    status = msgspec.structs.replace(found.status, phase="Running", start_time=rfc3339(NOW - 5400))
    return msgspec.structs.replace(found, status=status)


def queue() -> QueuePage:
    """The controller's queue: one pod has a range, of the next nothing is known."""
    start = ExpectedStart(p50=NOW + 250, p90=NOW + 570, basis="history", starts=4, waits=True)
    big = QueuedPod(namespace="team", name="big", position=1, of=2, start=start)
    sweep = QueuedPod(namespace="team", name="sweep-9", position=2, of=2, start=ExpectedStart(starts=2))
    return QueuePage(leads=True, taken=NOW, pods=(big, sweep, *updating("team", "api"), *updating("research", "chat")))


def updating(namespace: str, name: str) -> tuple[QueuedPod, ...]:
    """New pods of an update: of ``api`` the images are pulled, and ``chat`` waits for its own old pod."""
    step = UpdateStep.PULL if name == "api" else UpdateStep.STAY
    why = OldPods(namespace, name, (f"{namespace}/{name}-1",), step, since=NOW - 95)
    return (QueuedPod(namespace=namespace, name=f"{name}-9", why=why),)


def services() -> SignalsPage:
    """What the controller tells of services: one works, one is slowed down, one waits, one is on a dead node."""
    load = {REQUESTS: 41.5, WAITING: 2.0, ROOM: 3.0, JOULES: 4337.0}
    return SignalsPage(
        leads=True,
        services=(
            Service(namespace="research", kind="Deployment", name="chat", wanted=2, placed=2, values={ROOM: 0.0}),
            Service(namespace="team", kind="Deployment", name="api", wanted=2, placed=2, ready=2, values=load),
            Service(namespace="team", kind="Deployment", name="llm", wanted=1, values={ROOM: 64.0}, waiting=("big",)),
            Service(namespace="team", kind="StatefulSet", name="trainer", wanted=1, placed=1, ready=1),
        ),
    )


def explanations() -> dict[str, Explanation]:
    """Why pods wait, by ``namespace/name``: of the cards that the scene has."""
    held = [holding("vllm", "gpu-1", "mig-3g.20gb"), holding("new-pod", "gpu-1", "mig-1g.5gb")]
    held += [holding(name, "gpu-2", "gpu") for name in ("forgotten", "trainer-7")]
    whole = make_node("gpu-2", conditions=READY, annotations=offering(), allocatable={"nvidia.com/gpu": "2"})
    nodes = [sliced("gpu-1"), whole]
    pods = [*waiting(), *held, *agents_of(nodes)]
    mirrored = Snapshot(now=NOW, pods=pods, nodes=nodes, instaslices=records()[:1], forbidden=NOT_MIRRORED)
    return explain_waiting(waiting_pods(pods), mirrored)


def scene(*more: DeviceUsage, pod_name: str = "vllm", history: bool = True) -> dict[str, Document]:
    """All documents of the page."""
    pods, known = waiting(), records()
    usage = fleet(*more, pod_name=pod_name)
    documents: dict[str, Document] = {**make_documents(usage, pods, known, explanations(), nodes(), queue=queue())}
    documents |= {f"service/{each.key}": each for each in service_rows(services(), usage, queue())}
    documents |= {f"node/{each.node}": each for each in node_documents(nodes(), T0 + 100)}
    if history:
        past = History()
        for number in range(30):
            busy = 0.2 + 0.02 * ((number * 7) % 20)
            summary = msgspec.structs.replace(documents["summary"], busy=busy, power=300 + 15.0 * number)
            past.record(NOW - (29 - number) * CARD_STEP, {**documents, "summary": summary})
        documents |= past.documents
    return documents
