"""The live page of a lab: ``tessera dashboard`` as a process of its own, which ends with the lab."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_URL = re.compile(r"http://\S+/")


@asynccontextmanager
async def serve_live_page(kubeconfig: Path) -> AsyncIterator[str]:
    """Serves the page inside the block, and gives its address.

    Raises:
        ConnectionError: the page did not start; the lab's log says why.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tessera", "dashboard", "--port", "0", "--kubeconfig", str(kubeconfig)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        url = _URL.search((await process.stdout.readline()).decode(errors="replace"))
        if url is None:
            raise ConnectionError("the live page did not start; the lines above say why")
        yield url[0]
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
