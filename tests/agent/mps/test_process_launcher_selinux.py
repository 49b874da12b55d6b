"""Labels where SELinux is enforced; the kernel's call is recorded, since few machines of a test have SELinux."""

import os
from pathlib import Path
from typing import Any

import pytest

from tessera.agent.mps.process_launcher import label_for_containers


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> dict[Path, tuple[str, bytes]]:
    found: dict[Path, tuple[str, bytes]] = {}

    def setxattr(path: Any, name: str, value: bytes) -> None:
        found[Path(path)] = (name, value)

    monkeypatch.setattr(os, "setxattr", setxattr)
    return found


def test_an_enforcing_kernel_lets_containers_use_a_labelled_folder(
    tmp_path: Path, labels: dict[Path, tuple[str, bytes]]
) -> None:
    (tmp_path / "enforce").write_text("1")
    label_for_containers(tmp_path, tmp_path / "enforce")

    assert labels == {tmp_path: ("security.selinux", b"system_u:object_r:container_file_t:s0\0")}


@pytest.mark.parametrize("enforce", ["0", None])
def test_nothing_is_labelled_where_selinux_is_not_enforced(
    tmp_path: Path, labels: dict[Path, tuple[str, bytes]], enforce: str | None
) -> None:
    if enforce is not None:
        (tmp_path / "enforce").write_text(enforce)
    label_for_containers(tmp_path, tmp_path / "enforce")

    assert labels == {}
