"""The control socket of a running lab: requests to a machine (smi, reboot), which no API server answers.

A unix socket in the lab's folder; one request a connection, one line in, text out. Only the folder's owner reaches it.
The answer to ``smi`` lists the cards as ``nvidia-smi -L`` does (:func:`format_gpu_list`).
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tessera.mig.names import ci_profile_index, parse_profile_name
from tessera.nvml.interface import GpuInstance, Nvml
from tessera_lab.limits import LAB_QUESTION

SOCKET = "control.sock"

#: Answers a request's argument; the client gets the text of a ``ValueError``.
RequestHandler = Callable[[str], str]


@asynccontextmanager
async def serve_control_socket(folder: Path, answers: Mapping[str, RequestHandler]) -> AsyncIterator[None]:
    """Answers requests inside the block; ``answers`` is by the request's first word."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(_handle_request(answers, (await reader.readline()).decode()).encode())
            await writer.drain()
        except (ConnectionError, ValueError):
            pass  # the client went away, or sent a line that is too long: nobody gets an answer
        finally:
            writer.close()

    server = await asyncio.start_unix_server(handle, folder / SOCKET, limit=LAB_QUESTION)
    async with server:
        yield


def _handle_request(answers: Mapping[str, RequestHandler], line: str) -> str:
    word, _, argument = line.strip().partition(" ")
    if word not in answers:
        return f"error: {word!r} is no request; known are {', '.join(sorted(answers))}"
    try:
        return "ok\n" + answers[word](argument)
    except ValueError as error:
        return f"error: {error}"


def send_request(folder: Path, word: str, argument: str = "") -> str:
    """Asks the lab in the folder.

    Raises:
        ValueError: what the lab says is wrong with the request.
        ConnectionError: no lab answers there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(folder / SOCKET))
        except OSError as error:
            raise ConnectionError(f"no lab runs in {folder}; start one with: tessera lab up") from error
        connection.sendall(f"{word} {argument}\n".encode())
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    status, _, text = b"".join(parts).decode().partition("\n")
    if status != "ok":
        raise ValueError(status.removeprefix("error: "))
    return text


def format_gpu_list(nvml: Nvml) -> str:
    """One line per card and, below it, one per MIG device; without a final line break.

    Raises:
        NvmlError: the instances of a card could not be read.
    """
    lines: list[str] = []
    for gpu in nvml.devices():
        if not gpu.readable:
            why = "GPU is lost. Reboot to recover this GPU" if gpu.lost else gpu.error
            lines.append(f"Unable to determine the device handle for GPU {gpu.pci_bus_id}: {why}")
            continue
        lines.append(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})")
        lines += _format_mig_lines(nvml.instances(gpu.uuid) if gpu.mig_enabled else [])
    return "\n".join(lines)


def _format_mig_lines(instances: Iterable[GpuInstance]) -> Iterator[str]:
    devices = [
        (_device_name(instance.profile, compute.profile_index), compute.mig_uuid)
        for instance in sorted(instances, key=lambda one: one.gi_id)
        for compute in instance.compute_instances
    ]
    for index, (name, mig_uuid) in enumerate(devices):
        yield f"  MIG {name:<11} Device {index:>2}: (UUID: {mig_uuid})"


def _device_name(profile: str, ci_profile: int) -> str:
    """``3g.20gb``, or ``1c.3g.20gb`` for a compute instance that leaves a part of its GPU instance.

    NVIDIA MIG user guide, MIG device names.
    """
    slices = parse_profile_name(profile).slices
    if ci_profile == ci_profile_index(slices):
        return profile
    smaller = [
        count for count in range(1, slices) if count in (1, 2, 3, 4, 6) and ci_profile_index(count) == ci_profile
    ]
    return f"{smaller[0] if smaller else 1}c.{profile}"
