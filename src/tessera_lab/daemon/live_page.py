"""The live page of a lab: ``tessera dashboard`` as a process of its own, which ends with the lab."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_URL = re.compile(r"http://\S+/")


@asynccontextmanager
async def serve_live_page(kubeconfig: Path) -> AsyncIterator[str]:
    """Serves the page inside the block, and gives its address.

    The process is started by the standard library and not by uvloop: its vfork runs none of gRPC's fork handlers, which
    complain while gRPC's threads run. A page that uvloop started ended once without a word.

    Raises:
        ConnectionError: the page did not start; the lab's log says why.
    """
    process = await asyncio.to_thread(_start, kubeconfig)
    try:
        assert process.stdout is not None
        url = _URL.search((await asyncio.to_thread(process.stdout.readline)).decode(errors="replace"))
        if url is None:
            raise ConnectionError("the live page did not start; the lines above say why")
        yield url[0]
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


def _start(kubeconfig: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tessera", "dashboard", "--port", "0", "--kubeconfig", str(kubeconfig)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)  # noqa: S603 - our own program
