"""`tessera map` shows each card's slices where they are, whose they are, and what is free."""

import re

import msgspec
import pytest

from tessera.api.instaslice import Instaslice
from tessera.api.nodes.health import CardHealth
from tessera.api.nodes.usage import CardUsage, LeaseUsage, NodeUsage
from tessera.cli.base.tiles import draw, draw_summary
from tessera.explain.card_map import cards_of, pending_nodes
from tessera.explain.fleet_map import ModelSummary, map_fleet, summarize
from tessera.kube.resources import Node
from tessera.mig.names import CLAIMED_SHARE

DEGRADED = CardHealth(state="degraded")
GPU = "GPU-42db43a1-526e-626d-ff2d-456bf26d9df0"
A100 = {
    "1g.5gb": {"placements": [{"start": s, "size": 1} for s in range(7)], "giProfileId": 0, "ciProfileId": 0},
    "3g.20gb": {"placements": [{"start": s, "size": 4} for s in (0, 4)], "giProfileId": 2, "ciProfileId": 2},
    "7g.40gb": {"placements": [{"start": 0, "size": 8}], "giProfileId": 4, "ciProfileId": 4},
}


def node(*slices: tuple[str, str, int, int], foreign: tuple[tuple[int, int], ...] = ()) -> Instaslice:
    """One node with one A100 whose slices are (pod, profile, start, size)."""
    requests = {
        f"uid-{pod}": {
            "profile": profile,
            "resources": {},
            "podRef": {"kind": "Pod", "namespace": "default", "name": pod, "uid": f"uid-{pod}"},
            "slices": [{"id": "0", "profile": profile, "gpuUUID": GPU, "start": start, "size": size}],
        }
        for pod, profile, start, size in slices
    }
    results = {
        f"uid-{pod}": {
            "allocationStatus": {"allocationStatusController": "ungated", "allocationStatusDaemonset": "created"},
            "configMapResourceIdentifier": "a",
            "gpuUUID": GPU,
            "migPlacement": {"start": start, "size": size},
            "nodename": "n1",
        }
        for pod, _, start, size in slices
    }
    return msgspec.convert(
        {
            "metadata": {"name": "n1", "namespace": "instaslice-system"},
            "spec": {"podAllocationRequests": requests},
            "status": {
                "podAllocationResults": results,
                "nodeResources": {
                    "nodeGpus": [{"gpuUuid": GPU, "gpuName": "NVIDIA A100-SXM4-40GB", "gpuMemory": "40Gi"}],
                    "migPlacement": A100,
                    "foreign": [{"gpuUUID": GPU, "start": s, "size": z} for s, z in foreign],
                },
            },
        },
        Instaslice,
    )


def test_a_slice_is_drawn_as_wide_as_its_memory() -> None:
    lines = list(draw(cards_of([node(("vllm", "3g.20gb", 0, 4))]), colour=False))
    assert lines[0] == "n1   1 x NVIDIA A100-SXM4-40GB   4 of 8 memory slots used"
    assert max(map(len, lines)) <= 80, "a terminal's usual width"
    assert lines[1] == f" GPU 0  [{'a 3g.20gb':34}]" + "[       ]" * 4
    assert lines[2].split() == ["a", "3g.20gb", "GPU", "0", "start", "0", "size", "4", "created", "default/vllm"]


def test_a_slice_that_others_made_is_marked() -> None:
    lines = list(draw(cards_of([node(foreign=((4, 4),))]), colour=False))
    assert "[- foreign" in lines[1]
    assert "not made by Tessera" in lines[2]


def test_a_slice_of_a_running_pod_without_a_record_is_told_apart() -> None:
    item = node(foreign=((4, 4),))
    (kept,) = item.status.node_resources.foreign
    resources = msgspec.structs.replace(
        item.status.node_resources, foreign=(msgspec.structs.replace(kept, pod_uid="uid-a"),)
    )
    status = msgspec.structs.replace(item.status, node_resources=resources)
    lines = list(draw(cards_of([msgspec.structs.replace(item, status=status)]), colour=False))
    assert "kept" in lines[2]
    for fact in ("in use by a running pod", "the controller writes its record again"):
        assert fact in lines[2]


def test_a_card_that_only_records_name_has_its_place_and_every_line_a_name() -> None:
    """While a node with a lost card reboots: its agent lists the others, and a pod's request is removed already."""
    item = node(("vllm", "3g.20gb", 0, 4), ("gone", "1g.5gb", 5, 1))
    (lost,) = item.status.node_resources.node_gpus
    others = tuple(msgspec.structs.replace(lost, gpu_uuid=f"GPU-{n}", index=n) for n in (1, 2))
    resources = msgspec.structs.replace(item.status.node_resources, node_gpus=others)
    status = msgspec.structs.replace(item.status, node_resources=resources)
    requests = {uid: each for uid, each in item.spec.pod_allocation_requests.items() if uid != "uid-gone"}
    spec = msgspec.structs.replace(item.spec, pod_allocation_requests=requests)
    lines = list(draw(cards_of([msgspec.structs.replace(item, status=status, spec=spec)]), colour=False))
    assert lines[0].startswith("n1   1 x unknown model, 2 x NVIDIA A100-SXM4-40GB   5 of 24 memory slots used")
    assert [line.split()[:2] for line in lines[1:4]] == [["GPU", "0"], ["GPU", "1"], ["GPU", "2"]]
    assert "[b 1g.5 ]" in lines[1]
    assert lines[4].split() == ["a", "3g.20gb", "GPU", "0", "start", "0", "size", "4", "created", "default/vllm"]
    assert " ".join(lines[5].split()) == "b 1g.5gb GPU 0 start 5 size 1 deleting its pod is gone"
    model = ModelSummary(model="", cards=1, kinds={"slice": 1}, held=0.5, possible={})
    summary = list(draw_summary([model], nodes=1, waiting=None))
    assert "1 x unknown model: 1 on demand" in summary[1]


def test_a_wide_terminal_shows_whole_profiles_and_a_narrow_one_leaves_the_unit_out() -> None:
    nodes = cards_of([node(("a", "1g.5gb", 0, 1), ("b", "3g.20gb", 4, 4))])
    wide = list(draw(nodes, colour=False, width=100))
    assert "[a 1g.5gb]" in wide[1]
    assert "[b 3g.20gb " in wide[1]
    narrow = list(draw(nodes, colour=False, width=80))
    assert "[a 1g.5 ]" in narrow[1]
    assert len(narrow[1]) <= 80


def test_plain_text_has_no_escapes_and_colour_has() -> None:
    nodes = cards_of([node(("vllm", "3g.20gb", 4, 4))])
    assert "\x1b" not in "\n".join(draw(nodes, colour=False))
    assert "\x1b[" in "\n".join(draw(nodes, colour=True))


@pytest.mark.parametrize(
    ("slices", "possible"),
    [
        ((), {"1g.5gb": 7, "3g.20gb": 2, "7g.40gb": 1}),
        ((("a", "3g.20gb", 0, 4),), {"1g.5gb": 3, "3g.20gb": 1, "7g.40gb": 0}),
        ((("a", "1g.5gb", 3, 1), ("b", "1g.5gb", 4, 1)), {"1g.5gb": 5, "3g.20gb": 0, "7g.40gb": 0}),
    ],
)
def test_what_still_fits_is_counted(slices: tuple[tuple[str, str, int, int], ...], possible: dict[str, int]) -> None:
    assert cards_of([node(*slices)])[0].cards[0].possible == possible


def labelled(name: str, layout: str, *conditions: tuple[str, str, str]) -> Node:
    status = {"conditions": [{"type": kind, "status": truth, "message": text} for kind, truth, text in conditions]}
    metadata = {"name": name, "labels": {"nvidia.com/mig.config": layout}}
    return msgspec.convert({"metadata": metadata, "status": status}, Node)


def test_a_node_that_has_the_label_and_no_card_yet_is_not_advised_to_take_the_label() -> None:
    nodes = [
        labelled("n3", "dynamic"),
        labelled("n2", "dynamic", ("GpuNodeReady", "True", ""), ("GpuMigLayoutApplied", "Unknown", "GPU 0: a reset")),
        labelled("n1", "dynamic-half", ("GpuNodeReady", "False", "no driver"), ("GpuMigLayoutApplied", "False", "old")),
        labelled("n4", "all-disabled"),
        labelled("n5", "dynamic"),
    ]
    pending = pending_nodes(nodes, {"n5"})
    assert [(each.node, each.why) for each in pending] == [
        ("n1", "no driver"),
        ("n2", "GPU 0: a reset"),
        ("n3", "its agent has not reported its cards yet"),
    ]
    reason, step = draw([], pending[:1], colour=False)
    assert reason.startswith("n1   ")
    for fact in ("labelled for slices on demand", "has no cards yet", ": no driver"):
        assert fact in reason
    assert step == "  see tessera why node/n1"


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_every_kind_of_card_fits_the_terminal(width: int) -> None:
    long = "a-pod-of-a-deployment-with-a-long-name-6d5c7b8f9-x2x4q"
    leases = (
        LeaseUsage(namespace="team", pod=long, uid="1", device="w", kind="whole", share=1.0),
        LeaseUsage(namespace="team", pod="b", uid="2", device="s", kind="mps", share=0.02),
        LeaseUsage(namespace="team", pod="c", uid="3", device="t", kind="time-slicing", share=0.5),
    )
    cards = (
        CardUsage(uuid="v", index=4, model="NVIDIA A100", kind="mig", mig=True, slots=8, health=DEGRADED),
        CardUsage(uuid="x", index=5, model="NVIDIA A100", kind="whole", health=CardHealth(state="needs_reboot")),
        CardUsage(uuid="w", model="NVIDIA RTX PRO 6000 Blackwell Server Edition", kind="whole"),
        CardUsage(uuid="s", index=1, model="Tesla T4", kind="mps", replicas=48),
        CardUsage(uuid="t", index=2, model="Tesla T4", kind="time-slicing", replicas=4),
        CardUsage(uuid="u", index=3, model="Tesla T4"),
    )
    usage = NodeUsage(node="n2", cards=cards, leases=leases)
    lines = list(draw(map_fleet([node((long, "3g.20gb", 4, 4))], [usage]), colour=False, width=width))
    assert [line for line in lines if line.startswith(" GPU") and len(line) > width] == []
    if width < 80:
        assert max(map(len, lines)) <= width
    shown = "\n".join(lines)
    assert "[a whole card" in shown
    assert "1 of 48 shares held: b" in shown
    assert "c time slice"[:9] in shown
    assert "not offered" in shown
    assert "a 3g.20gb" in shown


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_summary_of_a_fleet_fits_the_terminal(width: int) -> None:
    room = {f"{size}g.{10 * size}gb": 100 * size for size in (1, 2, 3, 4, 7)}
    kinds = {"": 300, "whole": 400, "time-slicing": 50, "mig": 50}
    model = ModelSummary(model="NVIDIA H100 80GB HBM3", cards=800, kinds=kinds, held=400.0, possible=room)
    lines = list(draw_summary([model], nodes=100, waiting=3, width=width))
    assert max(map(len, lines)) <= width
    assert not any(line.rstrip().endswith(" x") or line.lstrip().startswith("x ") for line in lines)
    words = " ".join(" ".join(lines).split())
    assert "100 nodes, 800 cards, 3 pods waiting for cards" in words
    assert "50% held" in words
    assert "700 x 7g.70gb (each alone)" in words


def test_a_kind_that_only_a_newer_agent_knows_is_shown_by_its_word() -> None:
    card = CardUsage(uuid="GPU-1", model="Tesla T4", kind="fabric\x1b[2J")
    lease = LeaseUsage(namespace="team", pod="a", device="GPU-1", kind="fabric", share=1.0)
    nodes = map_fleet([], [NodeUsage(node="n1", cards=(card,), leases=(lease,))])
    text = "\n".join([*draw(nodes, colour=False), *draw_summary(summarize(nodes), nodes=1, waiting=0)])
    assert "a fabric" in text
    assert "1 x Tesla T4: 1 fabric" in text
    assert "\x1b" not in text


def test_shares_of_claims_are_counted_by_pod_where_no_page_can_be_read() -> None:
    places = [{"start": start, "size": 1} for start in range(4)]
    table = {CLAIMED_SHARE: {"placements": places, "giProfileId": -1, "ciProfileId": -1}}
    held = msgspec.to_builtins(node(("web", CLAIMED_SHARE, 0, 1), ("api", CLAIMED_SHARE, 1, 1)))
    held["status"]["nodeResources"]["migPlacement"] = table
    api = held["spec"]["podAllocationRequests"]["uid-api"]
    api["slices"] = [*api["slices"], {**api["slices"][0], "start": 2}]
    text = "\n".join(draw(cards_of([msgspec.convert(held, Instaslice)]), colour=False))
    assert "3 of 4 shares held" in text
    assert re.findall(r"shares (\d) of 4 +held +(\S+)", text) == [("1", "default/web"), ("2", "default/api")]
