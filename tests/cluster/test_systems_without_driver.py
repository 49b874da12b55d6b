"""Nodes of a system or an architecture for which no registry has a driver: each says why, and others are served."""

from pathlib import Path

import msgspec
from tests.cluster.driverlab import K1, Drivers, builder, play, precompiled

from tessera.api.nodes.node_marks import DriverPhase
from tessera_lab.cluster.options import parse_nodes

IMAGES = {name: msgspec.structs.replace(image, architectures=("amd64",)) for name, image in precompiled(K1).items()}


def test_a_node_without_an_image_for_it_says_what_was_tried(tmp_path: Path) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        await lab.served("node-3")
        said = {}
        for name in ("node-1", "node-2"):
            status = lab.told(name)
            assert status is not None
            assert status.phase is DriverPhase.BLOCKED
            said[name] = status.reason
        assert "fedora41" in said["node-1"]
        assert "arm64" in said["node-2"]
        assert lab.never_pulled == []

    nodes = parse_nodes(f"1xT4@fedora41,1xT4@ubuntu22.04/arm64:{K1},1xT4@ubuntu22.04:{K1}")
    play(tmp_path, scenario, nodes, {**IMAGES, **builder(system="ubuntu24.04")})
