"""Every way to offer cards, over kubelet's real sockets: what a node offers, and a container that gets it."""

from typing import Any

import pytest
import yaml

PROFILES: dict[str, dict[str, Any]] = {
    "default": {},
    "slices": {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}},
    "renamed": {
        "sharing": {
            "timeSlicing": {"renameByDefault": True, "resources": [{"name": "nvidia.com/gpu", "replicas": 10}]},
        }
    },
    "mps": {"sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 8}]}}},
    "by-count": {
        "sharing": {
            "timeSlicing": {
                "resources": [{"name": "nvidia.com/gpu", "rename": "gpu.half", "replicas": 2, "devices": 2}]
            }
        }
    },
    "three-kinds": {
        "sharing": {
            "timeSlicing": {
                "resources": [{"name": "nvidia.com/gpu", "rename": "gpu.slice", "replicas": 4, "devices": [0]}]
            },
            "mps": {"resources": [{"name": "nvidia.com/gpu", "rename": "gpu.mps", "replicas": 2, "devices": [1]}]},
        }
    },
    "of-mig": {
        "sharing": {
            "timeSlicing": {
                "renameByDefault": True,
                "resources": [{"name": "nvidia.com/mig-1g.5gb", "replicas": 2}],
            }
        }
    },
    "single": {"flags": {"migStrategy": "single"}},
    "none": {"flags": {"migStrategy": "none"}},
    "by-pattern": {"resources": {"gpus": [{"pattern": "*A100*", "name": "nvidia.com/a100"}]}},
}
LAYOUTS: dict[str, list[dict[str, Any]]] = {
    "mixed-sizes": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 3, "2g.10gb": 2}}],
    "last-card": [
        {"devices": [0, 1, 2], "mig-enabled": False},
        {"devices": [3], "mig-enabled": True, "mig-devices": {"3g.20gb": 2}},
    ],
    "dynamic-half": [
        {"devices": [0, 1], "mig-enabled": True, "mig-devices": {}},
        {"devices": [2, 3], "mig-enabled": False},
    ],
}


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "4xA100-40GB", "--mig-config", ""]


@pytest.fixture(scope="module")
def cluster(cluster: Any) -> Any:
    """A lab with the profiles and layouts of this file."""
    profiles = {name: yaml.safe_dump({"version": "v1", **body}) for name, body in PROFILES.items()}
    layouts = {"config.yaml": yaml.safe_dump({"version": "v1", "mig-configs": LAYOUTS})}
    for name, data in (("sharing-profiles", profiles), ("mig-layouts", layouts)):
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        cluster.apply(manifest, "tessera-system")
    return cluster


@pytest.mark.parametrize(
    ("profile", "layout", "offered"),
    [
        ("", "", {"gpu": 4}),
        pytest.param("slices", "", {"gpu": 16}, marks=pytest.mark.soak),
        ("renamed", "", {"gpu.shared": 40}),
        ("mps", "", {"gpu": 32}),
        pytest.param("by-count", "", {"gpu": 2, "gpu.half": 4}, marks=pytest.mark.soak),
        pytest.param("by-pattern", "", {"a100": 4}, marks=pytest.mark.soak),
        ("three-kinds", "last-card", {"gpu": 1, "gpu.slice": 4, "gpu.mps": 2, "mig-3g.20gb": 2}),
        pytest.param("", "mixed-sizes", {"mig-1g.5gb": 12, "mig-2g.10gb": 8}, marks=pytest.mark.soak),
        ("of-mig", "mixed-sizes", {"mig-1g.5gb.shared": 24, "mig-2g.10gb": 8}),
        ("single", "all-1g.5gb", {"gpu": 28}),
        pytest.param("none", "all-1g.5gb", {"gpu": 4}, marks=pytest.mark.soak),
        pytest.param("", "7x1g.5gb", {"mig-1g.5gb": 28}, marks=pytest.mark.soak),
        pytest.param("", "all-balanced", {"mig-1g.5gb": 8, "mig-2g.10gb": 4, "mig-3g.20gb": 4}, marks=pytest.mark.soak),
        ("", "all-disabled", {"gpu": 4}),
    ],
)
def test_a_node_offers_what_its_labels_say_and_containers_get_it(
    cluster: Any, profile: str, layout: str, offered: dict[str, int]
) -> None:
    _label(cluster, profile, layout)
    wanted = {f"nvidia.com/{name}": count for name, count in offered.items()}
    cluster.eventually(lambda: _gpus(cluster) == wanted)
    for resource in wanted:
        cluster.apply(cluster.pod("one", {resource: 1}))
        cluster.kubectl("wait", "pod/one", "--for=condition=Ready", "--timeout=180s")
        cluster.kubectl("delete", "pod", "one", "--wait", "--timeout=180s")


def test_half_of_the_cards_may_be_cut_on_demand(cluster: Any) -> None:
    _label(cluster, "slices", "dynamic-half")
    cluster.eventually(
        lambda: (_gpus(cluster).get("nvidia.com/gpu"), _gpus(cluster).get("nvidia.com/mig-7g.40gb")) == (8, 2)
    )
    for name, resource in (("share", "nvidia.com/gpu"), ("slice", "nvidia.com/mig-3g.20gb")):
        cluster.apply(cluster.pod(name, {resource: 1}))
        cluster.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=180s")
    assert cluster.tessera("lab", "smi", "node-1").count("MIG 3g.20gb") == 1
    cluster.kubectl("delete", "pods", "--all", "--wait", "--timeout=180s")


def _label(cluster: Any, profile: str, layout: str) -> None:
    """Asks for a profile and a layout; without a layout cards stay as they are, so they are made whole first."""
    if not layout and "nvidia.com/mig.config" in cluster.get("node", "node-1")["metadata"]["labels"]:
        _label(cluster, "", "all-disabled")
        cluster.eventually(lambda: _gpus(cluster) == {"nvidia.com/gpu": 4})
    labels = {"nvidia.com/device-plugin.config": profile, "nvidia.com/mig.config": layout}
    texts = [f"{key}={value}" if value else f"{key}-" for key, value in labels.items()]
    cluster.kubectl("label", "node", "node-1", "--overwrite", *texts)


def _gpus(cluster: Any) -> dict[str, int]:
    told = cluster.get("node", "node-1")["status"]["allocatable"]
    return {name: int(text) for name, text in told.items() if name.startswith("nvidia.com/") and text != "0"}
