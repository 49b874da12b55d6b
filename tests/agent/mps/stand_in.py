"""Plays ``nvidia-cuda-mps-control``: a daemon with ``-f``, otherwise the client that sends it one command.

Commands are logged to ``commands.log`` in the log folder. ``start_server`` forks a process that plays a server.
"""

import fcntl
import os
import signal
import socket
import sys
from pathlib import Path


def serve(pipe: Path, log: Path) -> None:
    lock = (pipe / "control_lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit("An instance of this daemon is already running")
    (pipe / "control").unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    os.chdir(pipe)  # a short name fits a socket's address whatever the folder's is
    listener.bind("control")
    listener.listen()
    (log / "environment.log").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    servers: list[int] = []
    while True:
        client, _ = listener.accept()
        with client:
            command = client.makefile().readline().strip()
            with (log / "commands.log").open("a") as commands:
                commands.write(f"{command}\n")
            verb = command.partition(" ")[0]
            if verb == "quit":
                for server in servers:
                    os.kill(server, signal.SIGKILL)
                return
            if verb == "start_server":
                servers.append(fork_server())
            if verb in {"get_server_list", "start_server"}:
                client.sendall("\n".join(map(str, servers)).encode())


def fork_server() -> int:
    if pid := os.fork():
        return pid
    os.closerange(3, 64)  # among them the connection, whose end the client waits for
    while True:
        signal.pause()


def ask(pipe: Path) -> None:
    os.chdir(pipe)
    with socket.socket(socket.AF_UNIX) as daemon:
        try:
            daemon.connect("control")
        except OSError:
            sys.exit("Cannot find MPS control daemon process")
        daemon.sendall(sys.stdin.readline().encode())
        daemon.shutdown(socket.SHUT_WR)
        sys.stdout.write(daemon.makefile().read())


if __name__ == "__main__":
    folder = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    if sys.argv[1:] == ["-f"]:
        serve(folder, Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]))
    else:
        ask(folder)
