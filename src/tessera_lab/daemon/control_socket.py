"""The control socket of a running lab: requests to a machine (smi, reboot), which no API server answers.

A unix socket in the lab's folder; one request a connection, one line in, text out. Only the folder's owner reaches it.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

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
