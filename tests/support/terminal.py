"""A command on a terminal of its own, and a connection that a test can cut."""

import fcntl
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from tests.support.running_lab import ROOT, TIMEOUT


class Terminal:
    """A terminal on which a command runs, as seen by a person.

    Attributes:
        process: the command.
    """

    def __init__(self, descriptor: int, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._descriptor = descriptor
        #: What was read beyond the text that :meth:`until` looked for.
        self._rest = ""

    def until(self, text: str) -> str:
        """Reads until the output has this text; returns what came up to there. The next call goes on behind it."""
        read, deadline = self._rest, time.monotonic() + TIMEOUT
        while text not in read:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {text!r} in {read[-2000:]!r}"
            read += os.read(self._descriptor, 65_536).decode(errors="replace")
        before, found, self._rest = read.partition(text)
        return before + found

    def picture(self) -> str:
        """Reads until a picture of ``--watch`` is complete; returns it, or what :meth:`until` left of it."""
        return self.until("\x1b[J")

    def type(self, keys: str) -> None:
        """Presses keys."""
        os.write(self._descriptor, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Changes the size of the window, which the command is told by a signal."""
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)


@contextmanager
def on_terminal(*arguments: str, env: Mapping[str, str], columns: int = 120, rows: int = 40) -> Iterator[Terminal]:
    """Runs ``tessera`` on a terminal inside the block, and ends it after that."""
    outer, inner = pty.openpty()
    fcntl.ioctl(outer, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    command = [sys.executable, "-m", "tessera", *arguments]
    # Workers of pytest-xdist have these; Python takes them for the size, so a resize would not be seen.
    own = {name: value for name, value in env.items() if name not in {"COLUMNS", "LINES"}}
    process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=own, cwd=ROOT)
    os.close(inner)
    try:
        yield Terminal(outer, process)
    finally:
        process.kill()
        process.wait()
        os.close(outer)


class Relay:
    """A port that passes connections on to another one, until it is cut."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._cut = False
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        """Breaks all connections; new ones are closed at once."""
        self._cut = True
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Passes new connections on again."""
        self._cut = False

    def close(self) -> None:
        """Ends the relay."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(TIMEOUT)
        self._listener.close()
        self.cut()
        for each in self._threads:
            each.join(TIMEOUT)
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._cut:
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=_pass_on, args=ends))
                    self._threads[-1].start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
