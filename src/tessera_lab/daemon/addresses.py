"""Addresses of a lab's own on this machine, so that several labs run side by side.

Every address of 127.0.0.0/8 is this machine's on Linux. A lab takes one block ``127.N`` of 65,536 of them, for as long
as it runs; pods that run for real listen there. A socket on the block's first address shows that the block is in use.
"""

import errno
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

#: Port of that socket. Nothing else of a lab listens on a block's first address.
MARK_PORT = 47_806
#: Blocks that a lab may take; 127.0 and 127.1 are what other programs use.
BLOCKS = range(2, 256)


@contextmanager
def reserve_address_block() -> Iterator[str]:
    """Takes a free block and gives its first two bytes, ``127.N``.

    Raises:
        OSError: none is free, or this system has no such addresses.
    """
    for number in random.sample(BLOCKS, len(BLOCKS)):
        block = f"127.{number}"
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as mark:
            try:
                mark.bind((f"{block}.0.1", MARK_PORT))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise
            yield block
            return
    raise OSError(errno.EADDRINUSE, f"all {len(BLOCKS)} blocks of 127.0.0.0/8 are taken by other labs")
