"""Copies images between registries: looks what is there, and has skopeo bring what is not."""

import asyncio
import os
import re
import shutil

from tessera.driver.registry.client import RegistryClient
from tessera.driver.registry.copies import Copy, Skopeo, Standing
from tessera.driver.registry.errors import NotThere, OtherArchitecture, Refused
from tessera.driver.registry.keyring import Keyring
from tessera.limits import COPY_WORDS


class CopyError(RuntimeError):
    """An image was not copied; the text says why."""


async def standing(client: RegistryClient, copy: Copy, keyring: Keyring) -> Standing:
    """What the other registry has under a copy's name.

    Raises:
        Unreachable: it gives no usable answer.
    """
    try:
        if copy.whole:
            there = await client.digest(copy.target, keyring)
            return Standing.SAME if there == copy.digest else Standing.OTHER
        found = await client.image(copy.target, copy.architectures[0], keyring)
    except (NotThere, Refused):
        # Several registries refuse to show a repository that will only come to be with the first push.
        return Standing.NOTHING
    except OtherArchitecture:
        return Standing.OTHER_ARCHITECTURES
    if found.digest == copy.digest:
        return Standing.SAME
    return Standing.OTHER_ARCHITECTURES if len(found.platforms) > 1 else Standing.OTHER


def skopeo_path() -> str:
    """Where skopeo is.

    Raises:
        CopyError: nowhere.
    """
    found = shutil.which("skopeo")
    if found is None:
        raise CopyError("skopeo is not in PATH: install the package skopeo; --dry-run shows the commands without it")
    return found


async def run(skopeo: Skopeo, copy: Copy) -> None:
    """Copies one image; ended with the caller.

    Raises:
        CopyError: skopeo is missing, or has not done it.
    """
    program, *arguments = skopeo_path(), *skopeo.arguments(copy)[1:]
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        env={**os.environ, **skopeo.environment},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise CopyError(f"skopeo has not copied {copy.source.text}: {_last_words(said.decode(errors='replace'))}")


def _last_words(said: str) -> str:
    """The message of skopeo's last line of log."""
    line = said.strip().rpartition("\n")[2]
    message = re.search(r'msg="(.*)"$', line)
    return (message[1].replace('\\"', '"') if message else line)[-COPY_WORDS:] or "it said nothing"
