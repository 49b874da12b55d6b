"""Names that fit, leftovers that go."""

import os
import socket
from pathlib import Path

import pytest

from tessera.kubelet.sockets import (
    PLUGIN_DIR,
    file_identity,
    list_plugin_sockets,
    make_newest,
    plugin_socket,
    remove_leftovers,
)

LONGEST = "nvidia.com/mig-1g.24gb.me.all"


def test_a_socket_is_named_after_its_resource_and_never_the_same() -> None:
    names = {plugin_socket(PLUGIN_DIR, LONGEST).name for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("tessera-mig-1g.24gb.me.all-") and name.endswith(".sock") for name in names)


@pytest.mark.parametrize("length", [10, 40, 60, 71])
def test_a_path_fits_into_a_socket_address(length: int) -> None:
    folder = Path("/" + "d" * (length - 1))
    path = plugin_socket(folder, "nvidia.com/" + "r" * 63)
    assert path.parent == folder
    assert len(str(path)) <= 107
    assert len(str(PLUGIN_DIR / path.name)) <= 107


def test_a_folder_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="a socket path may have 107 bytes"):
        plugin_socket(Path("/" + "d" * 80), LONGEST)


def test_sockets_of_one_resource_know_each_other(folder: Path) -> None:
    mine, other = plugin_socket(folder, "nvidia.com/mig-1g.5gb"), plugin_socket(folder, "nvidia.com/mig-1g.5gb")
    for path in (mine, other, plugin_socket(folder, "nvidia.com/mig-1g.5gb.me"), plugin_socket(folder, LONGEST)):
        path.touch()
    assert list_plugin_sockets(mine) == {other.name}


@pytest.mark.parametrize("ahead", [-3600, 0, 3600])
def test_a_new_socket_is_the_newest_also_within_a_tick_and_after_the_clock_was_set_back(
    folder: Path, ahead: int
) -> None:
    older, newer = folder / "z.sock", folder / "a.sock"
    for path in (older, newer):
        path.touch()
    made = newer.stat().st_mtime_ns
    before = made + ahead * 10**9
    os.utime(older, ns=(before, before))
    assert make_newest(newer) == newer.stat().st_mtime_ns == max(made, before + 1)


def test_sockets_that_nobody_listens_on_are_removed(folder: Path) -> None:
    dead, live, foreign = folder / "tessera-dead.sock", folder / "tessera-live.sock", folder / "nvidia-gpu.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        for path in (dead, foreign):
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
        listening.bind(str(live))
        listening.listen()
        assert remove_leftovers(folder) == [dead]
    assert sorted(folder.iterdir()) == [foreign, live]


def test_a_file_made_again_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    assert file_identity(path) is None
    path.touch()
    first = file_identity(path)
    assert file_identity(path) == first
    path.unlink()
    path.touch()
    assert file_identity(path) != first
