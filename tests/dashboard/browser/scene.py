"""A small cluster with a card of each kind, pods in each state, one broken card and a pod that waits."""

from typing import Any

import msgspec
from tests.cli.base.test_tiles import GPU
from tests.cli.base.test_tiles import node as sliced
from tests.dashboard.test_documents import GATED, pod
from tests.explain.test_node_startup import record
from tests.observe.conftest import GIB, lease
from tests.provisioning.conftest import T0, driver, make_node

from tessera.api.driver.node_status import DriverPhase
from tessera.api.nodes.health import CardHealth, Evidence, Holder
from tessera.api.nodes.usage import CardUsage, DeviceUsage, NodeUsage
from tessera.clock import rfc3339
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.documents import Document
from tessera.dashboard.history import CARD_STEP, History
from tessera.dashboard.node_documents import node_documents
from tessera.dashboard.waiting_reasons import explain_waiting
from tessera.provisioning.history import encode_record
from tessera.provisioning.milestones import PROVISIONING_ANNOTATION
from tessera.usage.agent_pages import FleetUsage, NodeFailure

#: The time in the browser.
NOW = T0 + 100
A100 = "NVIDIA A100-SXM4-40GB"
VALUES = {
    "memory_total": 40 * GIB,
    "memory_used": 12 * GIB,
    "power": 210.0,
    "temperature": 51.0,
    "gpu_utilization": 0.6,
}
BROKEN = CardHealth(
    state="needs_reset",
    since=T0 - 600,
    evidence=(Evidence(source="XID 48", text="XID 48, a double-bit ECC error", asks="reset", since=T0 - 600, count=2),),
    next="the card is reset once nobody holds it",
    holders=(Holder(namespace="research", pod="trainer-0"),),
)


def fleet(*more: Any, pod_name: str = "vllm") -> FleetUsage:
    """The agents' pages; ``more`` are further MIG devices of the first card."""
    device = DeviceUsage(uuid="MIG-1", profile="3g.20gb", start=4, size=4, share=0.5, values=VALUES)
    on_demand = CardUsage(uuid=GPU, model=A100, mig=True, slots=8, values=VALUES, devices=(device, *more))
    shared = CardUsage(uuid="GPU-s", index=1, model="Tesla T4", kind="time-slicing", replicas=4, values=VALUES)
    whole = CardUsage(uuid="GPU-w", model="NVIDIA H100 80GB HBM3", kind="whole", values=VALUES)
    sick = CardUsage(uuid="GPU-x", index=1, model="NVIDIA H100 80GB HBM3", kind="whole", health=BROKEN)
    leases = (
        lease(pod_name, "MIG-1", kind="slice", share=0.5),
        lease("notebook", "GPU-s", kind="time-slicing", share=0.25),
    )
    idle = lease(
        "forgotten", "GPU-w", state="never_used", wasted=7200.0, held=7200.0, evidence="no process in the 120 min"
    )
    return FleetUsage(
        nodes=(
            NodeUsage(node="gpu-1", cards=(on_demand, shared), leases=leases, simulated=True),
            NodeUsage(node="gpu-2", cards=(whole, sick), leases=(idle,), simulated=True),
        ),
        failures=(NodeFailure(node="gpu-3", reason="its agent does not answer: connection refused"),),
    )


def scene(*more: Any, pod_name: str = "vllm", history: bool = True) -> dict[str, Document]:
    """All documents of the page."""
    waits = pod("big", {"nvidia.com/mig-7g.40gb": "1"}, **GATED)
    created = msgspec.structs.replace(waits.metadata, creation_timestamp=rfc3339(NOW - 720))
    waits = msgspec.structs.replace(waits, metadata=created)
    instaslices = [sliced(("vllm", "3g.20gb", 4, 4))]
    way = encode_record(record(ready=20, labelled=30))
    node = make_node(annotations={PROVISIONING_ANNOTATION: way, **driver(phase=DriverPhase.PULLING, reason="an image")})
    documents: dict[str, Document] = {
        **make_documents(
            fleet(*more, pod_name=pod_name), [waits], instaslices, explain_waiting(T0, [waits], [], instaslices)
        )
    }
    documents |= {f"node/{each.node}": each for each in node_documents([node], T0 + 100)}
    if history:
        past = History()
        for number in range(30):
            busy = 0.2 + 0.02 * ((number * 7) % 20)
            summary = msgspec.structs.replace(documents["summary"], busy=busy, power=300 + 15.0 * number)
            past.record(NOW - (29 - number) * CARD_STEP, {**documents, "summary": summary})
        documents |= past.documents
    return documents
