"""Each lab has addresses of its own, which are free again when it has ended."""

import socket

from tessera_lab.daemon.serve import reserve_address_block


def test_two_labs_never_share_a_block() -> None:
    with reserve_address_block() as first, reserve_address_block() as second:
        assert first != second


def test_pods_can_listen_in_the_block() -> None:
    with reserve_address_block() as block, socket.socket() as listener:
        listener.bind((f"{block}.3.2", 0))
        assert listener.getsockname()[0] == f"{block}.3.2"
