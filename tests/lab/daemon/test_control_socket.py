"""Questions to a running lab over its socket."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from tessera_lab.daemon.lab_folder import SOCKET, send_request, serve_control_socket
from tessera_lab.limits import LAB_QUESTION


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a short name, as sockets need it."""
    monkeypatch.chdir(tmp_path)
    return Path()


def smi(node: str) -> str:
    if node != "node-1":
        raise ValueError(f"no node {node!r}")
    return "GPU 0\nGPU 1"


async def test_an_answer_may_have_many_lines(folder: Path) -> None:
    async with serve_control_socket(folder, {"smi": smi}):
        assert await asyncio.to_thread(send_request, folder, "smi", "node-1") == "GPU 0\nGPU 1"


async def test_what_is_wrong_with_a_request_is_told(folder: Path) -> None:
    async with serve_control_socket(folder, {"smi": smi, "also": str}):
        with pytest.raises(ValueError, match="no node 'node-2'"):
            await asyncio.to_thread(send_request, folder, "smi", "node-2")
        with pytest.raises(ValueError, match="'dance' is no request; known are also, smi"):
            await asyncio.to_thread(send_request, folder, "dance")


async def test_a_line_that_is_too_long_ends_its_own_connection_only(folder: Path) -> None:
    async with serve_control_socket(folder, {"smi": smi}):
        reader, writer = await asyncio.open_unix_connection(folder / SOCKET)
        writer.write(b"x" * (4 * LAB_QUESTION))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert await asyncio.to_thread(send_request, folder, "smi", "node-1") == "GPU 0\nGPU 1"


async def test_nobody_answers_in_a_folder_without_a_lab(folder: Path) -> None:
    with pytest.raises(ConnectionError, match=r"no lab runs in .*; start one with: tessera lab up"):
        await asyncio.to_thread(send_request, folder, "smi", "node-1")
