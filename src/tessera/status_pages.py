"""The HTTP pages of every process: ``/metrics``, ``/healthz`` and ``/readyz``, and pages of JSON of its own.

:mod:`tessera.serving.status_server` serves them. The server of ``prometheus_client`` has no probes.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from prometheus_client.exposition import CONTENT_TYPE_LATEST

#: Receives (address, port) of a server once it listens.
OnListening = Callable[[str, int], None]

#: Makes the text of a process's own pages of JSON, by path.
JsonDocuments = Mapping[str, Callable[[], bytes]]

NO_DOCUMENTS: JsonDocuments = {}
TEXT, JSON = "text/plain", "application/json"
METRICS_PATH = "/metrics"


class ProcessStatus(Protocol):
    """The state of a process that the pages show."""

    def metrics_text(self) -> bytes | None:
        """The text of ``/metrics``; None for a process that has no such page."""
        ...

    def unready_reason(self) -> str:
        """Reason that the process is not ready: ``/readyz`` answers 503 with it; empty for 200. Any thread may ask."""
        ...


class Guard(Protocol):
    """Decides who may read pages that name pods: ``/metrics`` and pages of JSON."""

    def guards(self, path: str) -> bool:
        """Whether a reader of the page needs a token; any thread may ask."""
        ...

    def token(self, headers: Mapping[str, str]) -> str:
        """The token that a reader shows in its headers; empty if it shows none. Any thread may ask."""
        ...

    async def refuse(self, path: str, token: str, address: str) -> "Page | None":
        """Returns the refusal that a reader gets, or None if it may read the page.

        Args:
            path: of the page.
            token: that the reader shows.
            address: of the reader.
        """
        ...


class Page(NamedTuple):
    """The answer to a request."""

    status: int
    content_type: str
    body: bytes


_OK = Page(200, TEXT, b"ok\n")


def unavailable(reason: str) -> Page:
    """The page that says why a process is not ready or not alive."""
    return Page(503, TEXT, f"{reason}\n".encode())


def status_page(path: str, process: ProcessStatus, documents: JsonDocuments = NO_DOCUMENTS) -> Page:
    """Returns the page of a path. ``/healthz`` answers 200 as long as the process runs."""
    if path in documents:
        return Page(200, JSON, documents[path]())
    match path:
        case "/metrics" if (text := process.metrics_text()) is not None:
            return Page(200, CONTENT_TYPE_LATEST, text)
        case "/healthz":
            return _OK
        case "/readyz":
            reason = process.unready_reason()
            return unavailable(reason) if reason else _OK
        case _:
            return Page(404, TEXT, b"there is no such page here\n")
