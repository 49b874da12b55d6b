"""Runs containers of a named image as processes of their own, with the code of a wheel: another version of Tessera.

The lab's own version runs in the lab's process (:mod:`tessera_lab.installation.install`). Another version cannot, since
one process has one package ``tessera``. So its containers are programs of their image
(:mod:`tessera_lab.kubelet.images.catalogue`): a child process with the command, arguments and environment of the
container, and kubelet's probes. What a container would see by its mounts and its network namespace is passed by
options and variables that every version has: the folders of the node, the simulated cards' file, the pod's address, and
a kubeconfig with the token of the pod's service account.

A container ends with its process, and the process with its container: SIGTERM, then SIGKILL once kubelet waits no more.
"""

import asyncio
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import aiohttp

from tessera.kube.credentials import Credentials
from tessera_lab.kubelet.context import ContainerHost, GrpcPlugins, PodIdentity
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, ImageProgram, ProgramContext, SimulatedImage

#: Seconds between two checks of a process's /readyz; kubelet's probes read the last answer at their own times.
READY_INTERVAL = 0.2
#: Seconds between two writes of the file with the token.
TOKEN_INTERVAL = 60.0
#: Starts the command line with the code of the folder in the first argument.
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tessera.cli.main import main; sys.exit(main())"
_PASSED = ("PATH", "HOME", "LANG", "TMPDIR")


class LabAccess:
    """How containers of other versions reach the lab.

    Args:
        folder: the lab's folder, which gets the files of images and containers.

    Attributes:
        folder: the same.
        server: address of the API server.
        authority: file with the certificate of its authority.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = ""
        self.authority = folder / "authority.pem"
        self._credentials: Callable[[PodIdentity], Credentials] | None = None

    def open(self, credentials: Callable[[PodIdentity], Credentials], server: str, certificate: bytes) -> None:
        """Sets what is known once the API server listens."""
        self._credentials = credentials
        self.server = server
        self.authority.write_bytes(certificate)

    def credentials(self, pod: PodIdentity) -> Credentials:
        """The credentials of a pod's containers."""
        assert self._credentials is not None, "containers start after the API server"
        return self._credentials(pod)


def parse_image(text: str) -> tuple[str, Path]:
    """Reference and path of ``IMAGE=PATH``.

    Raises:
        ValueError: the text has another form, or the path is neither a wheel nor a folder with ``tessera``.
    """
    reference, equals, path = text.partition("=")
    found = Path(path).absolute()
    if not equals or not reference:
        raise ValueError(f"image {text!r}: write IMAGE=PATH, such as tessera:0.1.0=tessera-0.1.0-py3-none-any.whl")
    if not (found.suffix == ".whl" and found.is_file()) and not (found / "tessera").is_dir():
        raise ValueError(f"image {text!r}: {found} is neither a wheel nor a folder with the package tessera")
    return reference, found


def add_images(catalogue: ImageCatalogue, images: Sequence[str], access: LabAccess) -> None:
    """Adds images ``IMAGE=PATH`` to a catalogue; all other tags of their repositories are the lab's own version."""
    for text in images:
        reference, path = parse_image(text)
        catalogue.name(reference.rpartition(":")[0] or reference, SimulatedImage())
        code = path if path.is_dir() else _unpack(path, access.folder / "images" / reference.replace("/", "_"))
        catalogue.name(reference, SimulatedImage(program=_program(code, access), has_tessera=True))


def _unpack(wheel: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)  # a wheel that the user of the lab names
    return folder


def _program(code: Path, access: LabAccess) -> ImageProgram:
    async def run(context: ProgramContext) -> int:
        return await _run(code, access, context)

    return run


async def _run(code: Path, access: LabAccess, context: ProgramContext) -> int:
    credentials = access.credentials(context.pod)
    kubeconfig = await _write_access(access, context, credentials)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", _START, str(code)),
        *context.argv[1:],
        *mounted_folders(context.argv, context.host, kubeconfig),
        env=_environment(context),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    helpers = [
        asyncio.create_task(_renew_token(access, context, credentials)),
        asyncio.create_task(_follow_readiness(context)),
    ]
    try:
        return await _write_log(process, context)
    finally:
        for each in helpers:
            each.cancel()
        await _end(process, context)


async def _write_log(process: asyncio.subprocess.Process, context: ProgramContext) -> int:
    assert process.stdout is not None, "the output is a pipe"
    async for line in process.stdout:
        context.log(line.decode(errors="replace").rstrip("\n"))
    code = await process.wait()
    return code if code >= 0 else 128 - code


async def _end(process: asyncio.subprocess.Process, context: ProgramContext) -> None:
    """Ends the process as a runtime does; a second cancellation is kubelet's SIGKILL."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await _write_log(process, context)
    finally:
        if process.returncode is None:
            process.kill()


def mounted_folders(argv: Sequence[str], host: ContainerHost, kubeconfig: Path) -> list[str]:
    """Options in place of the mounts of a container of Tessera."""
    cluster = ["--kubeconfig", str(kubeconfig)]
    if list(argv[1:2]) != ["agent"] or not isinstance(host.plugins, GrpcPlugins):
        return cluster
    folders = host.plugins.directories
    cards = folders.state.parent / "cards.json"
    simulated = ["--simulate", host.machine.spec, "--simulated-state", str(cards)] if host.machine else []
    # Its folders of kubelet have these names, and only versions with this option read them.
    claims = ["--kubelet-root", str(folders.root)] if any(each.startswith("--claim-driver") for each in argv) else []
    return [
        *cluster,
        *simulated,
        *claims,
        *("--plugin-dir", str(folders.plugins), "--pod-resources-dir", str(folders.pod_resources)),
        *("--cdi-dir", str(folders.cdi), "--state-dir", str(folders.state)),
    ]


def _environment(context: ProgramContext) -> Mapping[str, str]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {**passed, **context.env, "TESSERA_HTTP_ADDRESS": context.pod.ip, "PYTHONUNBUFFERED": "1"}


async def _follow_readiness(context: ProgramContext) -> None:
    """Reports what /readyz answers, as a readiness probe would see it."""
    port = next((each.partition("=")[2] for each in context.argv if each.startswith("--http-port=")), "")
    if not port:
        context.ready()
        return
    url = f"http://{context.pod.ip}:{port}/readyz"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        while True:
            try:
                async with session.get(url) as answer:
                    context.ready(answer.status == 200)
            except (aiohttp.ClientError, TimeoutError):
                context.ready(ok=False)
            await asyncio.sleep(READY_INTERVAL)


async def _renew_token(access: LabAccess, context: ProgramContext, credentials: Credentials) -> None:
    while True:
        await asyncio.sleep(TOKEN_INTERVAL)
        await _write_access(access, context, credentials)


async def _write_access(access: LabAccess, context: ProgramContext, credentials: Credentials) -> Path:
    """Writes the kubeconfig of a container and the file with its token; returns the kubeconfig."""
    token = (await credentials.current()).authorization.removeprefix("Bearer ")
    folder = access.folder / "pods" / context.pod.uid
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = folder / "token.new"
    fresh.write_text(token, encoding="ascii")
    fresh.replace(folder / "token")
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        f"""apiVersion: v1
kind: Config
current-context: lab
contexts: [{{name: lab, context: {{cluster: lab, user: pod}}}}]
clusters: [{{name: lab, cluster: {{server: "{access.server}", certificate-authority: "{access.authority}"}}}}]
users: [{{name: pod, user: {{tokenFile: "{folder / "token"}"}}}}]
""",
        encoding="utf-8",
    )
    return kubeconfig
