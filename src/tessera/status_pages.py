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
_PATHS = ("/healthz", "/metrics", "/readyz")


class ProcessStatus(Protocol):
    """The state of a process that the pages show."""

    def metrics_text(self) -> bytes:
        """The text of ``/metrics``."""
        ...

    def unready_reason(self) -> str:
        """Reason that the process is not ready: ``/readyz`` answers 503 with it; empty for 200. Any thread may ask."""
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
        case "/metrics":
            return Page(200, CONTENT_TYPE_LATEST, process.metrics_text())
        case "/healthz":
            return _OK
        case "/readyz":
            reason = process.unready_reason()
            return unavailable(reason) if reason else _OK
        case _:
            return Page(404, TEXT, b"there are " + ", ".join(sorted((*documents, *_PATHS))).encode() + b"\n")
