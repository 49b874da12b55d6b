"""vGPUs are detected by the host's text in their PCI configuration space."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.agent.node_status.label_facts import read_vgpu, vgpu_of
from tessera.agent.node_status.labels import VgpuFacts


def config(*capabilities: tuple[int, bytes], listed: bool = True) -> bytes:
    """A configuration space with capabilities of an id and a content each, one behind the other."""
    space = bytearray(256)
    space[0x06] = 0x10 if listed else 0
    at = 0x34
    free = 0x40
    for id_, content in capabilities:
        space[at] = free
        space[free] = id_
        space[free + 2 : free + 2 + len(content)] = content
        at, free = free + 1, free + 2 + len(content)
    return bytes(space)


def own(*records: tuple[int, bytes], signature: bytes = b"VF") -> tuple[int, bytes]:
    """NVIDIA's capability; length and signature stand before the records, a record's own length counts its head."""
    data = b"".join(bytes([kind, len(content) + 2]) + content for kind, content in records)
    return 0x09, bytes([5 + len(data)]) + signature + data


def driver(version: bytes, branch: bytes) -> tuple[int, bytes]:
    return 0, version.ljust(10, b"\0") + branch.ljust(10, b"\0")


HOST = driver(b"535.54", b"r535_54")
POWER = (0x01, bytes(6))


@pytest.mark.parametrize(
    "space",
    [
        pytest.param(config(own(HOST)), id="alone"),
        pytest.param(config(POWER, own(HOST)), id="behind another capability"),
        pytest.param(config(own((3, b"abc"), HOST)), id="behind another record"),
        pytest.param(config(own((3, b"ab"), signature=b"XX"), own(HOST)), id="behind another of the vendor's own"),
    ],
)
def test_a_vgpu_names_the_hosts_driver(space: bytes) -> None:
    assert vgpu_of(space) == VgpuFacts("535.54", "r535_54")


@pytest.mark.parametrize(
    "space",
    [
        pytest.param(config(), id="no capability"),
        pytest.param(config(POWER), id="none of the vendor's own"),
        pytest.param(config(own(HOST, signature=b"XX")), id="a card that is passed through"),
        pytest.param(config(own(HOST), listed=False), id="no list of capabilities"),
        pytest.param(config(own(HOST))[:64], id="read without privileges"),
        pytest.param(config(own((0, b"535.54"))), id="a record that is cut off"),
        pytest.param(config(own((3, b"abc"))), id="no record of the driver"),
    ],
)
def test_everything_else_is_none(space: bytes) -> None:
    assert vgpu_of(space) is None


@given(st.binary(min_size=256, max_size=256))
def test_no_configuration_space_is_a_trap(space: bytes) -> None:
    vgpu_of(bytes([*space[:6], 0x10, *space[7:]]))


def test_cards_are_found_among_the_machines_devices(tmp_path: Path) -> None:
    for address, vendor, space in (
        ("0000:00:01.0", "0x8086", config(own(driver(b"1.1", b"r1")))),
        ("0000:00:02.0", "0x10de", config(POWER)),
        ("0000:00:03.0", "0x10de", config(own(HOST))),
    ):
        (tmp_path / address).mkdir()
        (tmp_path / address / "vendor").write_text(vendor + "\n")
        (tmp_path / address / "config").write_bytes(space)
    (tmp_path / "0000:00:04.0").mkdir()
    assert read_vgpu(tmp_path) == VgpuFacts("535.54", "r535_54")
    assert read_vgpu(tmp_path / "none") is None
