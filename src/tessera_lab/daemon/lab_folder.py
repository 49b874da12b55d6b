"""A lab that runs in the background: one process, one folder, one control socket.

The folder holds everything: the lock that the running lab keeps (so a lab that was killed is known to be gone), what it
says of itself (``lab.json``), its kubeconfig, its log, and a subfolder a node. Ending the lab removes the folder. A
folder that is not a lab's is never touched.

The path of a socket has at most 107 bytes. If a folder's path is too long for the sockets in it, the folder is a link
to one of this user in the runtime folder, and all paths that a lab gives are below that one (:func:`files_of`).

The control socket takes what no API server answers, such as a reboot of a machine or its ``nvidia-smi``. It is a unix
socket in the lab's folder: one request a connection, one line in, text out. Only the folder's owner reaches it.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tessera.text import UserError
from tessera_lab.limits import LAB_QUESTION

#: Seconds within which a lab must have started, or ended.
PROCESS_TIMEOUT = 60.0

#: The longest name of a socket below a lab's folder; Linux allows 107 bytes in all.
_LONGEST_SOCKET = len("/n/gpugroup-abcde/dp/tessera-mig-1g.24gb.me.all-00.sock")
_SOCKET_LIMIT = 107
SOCKET = "control.sock"
#: Answers a request's argument; the client gets the text of a ``ValueError``.
RequestHandler = Callable[[str], str]


class LabError(UserError):
    """A lab cannot be started, found or ended; the text says why and what to do."""


class LabState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The published state of a running lab.

    Attributes:
        pid: its process.
        server: the API server's address.
        kubeconfig: file for kubectl.
        nodes: as given to ``--nodes``, and the files of ``--nodes-from``.
        virtual_time: true if time skips simulated waits.
        started: RFC 3339.
        registries: true if it has simulated registries, which ``resolve`` can query.
        groups: as given to ``--group``.
        kueue: true if the stand-in of Kueue runs in it.
        page: address of its live page; empty if it has none.
    """

    pid: int
    server: str
    kubeconfig: str
    nodes: str
    virtual_time: bool
    started: str
    registries: bool = False
    groups: tuple[str, ...] = ()
    kueue: bool = False
    page: str = ""


def default_folder() -> Path:
    """``$TESSERA_LAB``, or ``~/.tessera/lab``."""
    given = os.environ.get("TESSERA_LAB")
    return Path(given) if given else Path.home() / ".tessera" / "lab"


def resolve_folder(given: Path | None) -> Path:
    """Finds the folder of the running lab.

    It is the given one, that in ``$TESSERA_LAB``, that of the kubeconfig in use, or the default one. A folder that the
    user names always wins.

    Raises:
        LabError: the user names a folder, and no lab runs in it.
    """
    named = given or (Path(os.environ["TESSERA_LAB"]) if os.environ.get("TESSERA_LAB") else None)
    if named is not None:
        if find_running_lab(named) is None:
            source = "--dir" if given is not None else "$TESSERA_LAB"
            raise LabError(f"{source} is {named}: no lab runs there; start one with: tessera lab up, or name another")
        return files_of(named)
    beside = Path(os.environ.get("KUBECONFIG", "")).parent
    return beside if (beside / "control.sock").exists() else files_of(default_folder())


def files_of(folder: Path) -> Path:
    """The folder that has a lab's files: the given one, or the one to which a link leads if sockets do not fit.

    Raises:
        LabError: sockets fit into no folder of this machine.
    """
    if _fits(folder):
        return folder
    if folder.is_symlink() and folder.exists():
        return folder.readlink()
    name = f"tessera-lab-{os.geteuid()}-{hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:8]}"
    runtime = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]  # noqa: S108 - see make_folder
    for top in map(Path, filter(None, runtime)):
        if top.is_dir() and os.access(top, os.W_OK | os.X_OK) and _fits(top / name):
            return top / name
    raise LabError(
        f"lab folder {folder}: unix sockets do not fit below it, nor below {', '.join(filter(None, runtime))}; set"
        f" TESSERA_LAB to a folder whose path has at most {_SOCKET_LIMIT - _LONGEST_SOCKET} bytes"
    )


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder)) <= _SOCKET_LIMIT - _LONGEST_SOCKET


def make_folder(folder: Path) -> Path:
    """Makes a lab's folder, and the one to which it leads; returns the one that has the files.

    Raises:
        LabError: it holds something else, or is another user's.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "lock").exists():
        raise LabError(f"lab folder {folder}: holds something that is not a lab; choose another --dir")
    files = files_of(folder)
    files.mkdir(parents=True, exist_ok=True, mode=0o700)
    if files != folder:
        # Others can write the temporary folder, and could have made the folder first.
        found = files.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise LabError(f"{files}: is not a folder that only you can write; remove it, or set TESSERA_LAB")
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.is_symlink():
            folder.unlink()
        elif folder.is_dir():
            folder.rmdir()
        folder.symlink_to(files)
    return files


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keeps the folder's lock, as the running lab does.

    Raises:
        LabError: another lab has it.
    """
    make_folder(folder)
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"a lab is already running in {folder}; end it with: tessera lab down") from None
        _remove_old_state(folder)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _remove_old_state(folder: Path) -> None:
    """Removes the state and the nodes' files of a lab that was killed, since a new cluster starts."""
    for name in ("lab.json", "kubeconfig", "control.sock"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "n", ignore_errors=True)


def publish_state(folder: Path, state: LabState) -> None:
    """Writes the state of a lab that is ready for use, and wakes the process that waits in :func:`start`."""
    (folder / "lab.json").write_bytes(msgspec.json.encode(state))
    ready = os.environ.get("TESSERA_LAB_READY")
    if ready is not None:
        os.write(int(ready), b"ready")
        os.close(int(ready))


def find_running_lab(folder: Path) -> LabState | None:
    """The lab that runs in the folder, None if none does."""
    if _lock_holder(folder) is None:
        return None
    try:
        return msgspec.json.decode((folder / "lab.json").read_bytes(), type=LabState)
    except (OSError, ValueError, RecursionError):  # incomplete or damaged: the lab's state is unknown
        return None


def _lock_holder(folder: Path) -> int | None:
    """Returns the process with the folder's lock: a lab that runs, starts or ends. 0 if not known."""
    try:
        with (folder / "lock").open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = lock.read(20)
                return int(holder) if holder.isdigit() else 0
    except FileNotFoundError:
        pass
    return None


def start(folder: Path, arguments: Sequence[str]) -> LabState:
    """Starts ``tessera lab serve`` with the arguments in the background and waits until it can be used.

    Raises:
        LabError: it runs already, or did not start; the text has the end of its log.
    """
    if _lock_holder(folder) is not None:
        raise LabError(f"a lab is already running in {folder}; end it with: tessera lab down")
    given, folder = folder, make_folder(folder)
    (folder / "lock").touch()
    reader, writer = os.pipe()
    state = child = None
    try:
        with (folder / "lab.log").open("wb") as log, _defer_interrupt():
            child = subprocess.Popen(  # noqa: S603 - our own program with checked arguments
                [sys.executable, "-m", "tessera", "lab", "serve", "--dir", str(folder), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[writer],
                env={**os.environ, "TESSERA_LAB_READY": str(writer)},
                start_new_session=True,
            )
            os.close(writer)
        state = find_running_lab(folder) if _wait_until_ready(reader) else None
    finally:
        if state is None and child is not None:  # also when the wait was interrupted
            child.kill()
            child.wait()
            if isinstance(sys.exception(), KeyboardInterrupt):
                stop(given)  # after an error the log stays
    child.returncode = 0  # it runs on, and is ended through its folder: suppresses Popen's warning
    if state is None:
        raise LabError(f"the lab did not start: {_last_log_line(folder)}")
    return state


@contextlib.contextmanager
def _defer_interrupt() -> Iterator[None]:
    """Defers Ctrl-C to the end of the block, so that no started process is left unknown."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets interrupts
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _wait_until_ready(reader: int) -> bool:
    """True if the word ``ready`` came before the lab ended and before the timeout."""
    try:
        readable, _, _ = select.select([reader], [], [], PROCESS_TIMEOUT)
        return bool(readable) and os.read(reader, 5) == b"ready"
    finally:
        os.close(reader)


def _last_log_line(folder: Path) -> str:
    lines = (folder / "lab.log").read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else f"it said nothing; see {folder / 'lab.log'}"


def stop(folder: Path) -> bool:
    """Ends the lab in the folder and removes the folder.

    Returns:
        False if none was running; it removes the files of a killed lab in any case.

    Raises:
        LabError: it did not end in time.
    """
    holder = _lock_holder(folder)
    if holder == 0:
        raise LabError(f"the lab in {folder} starts just now; end it in a moment")
    if holder is not None:
        _end_process(holder)
    if (folder / "lock").exists():
        shutil.rmtree(files_of(folder), ignore_errors=True)
    if not _fits(folder) and folder.is_symlink() and not folder.exists():
        folder.unlink()
    return holder is not None


def _end_process(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        ended, _, _ = select.select([handle], [], [], PROCESS_TIMEOUT)
        if not ended:
            raise LabError(f"the lab (process {pid}) did not end within {PROCESS_TIMEOUT:.0f} seconds; kill it")
        with contextlib.suppress(ChildProcessError):  # only its parent process can, and must, collect it
            os.waitpid(pid, os.WNOHANG)
    finally:
        os.close(handle)


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
