"""Ports for servers of tests, each for one process alone, as `forebay-store/tests/it/servers.rs` gives them."""

import fcntl
import os
import socket
import tempfile
from pathlib import Path

# Open as long as this process is: closing one would give its port away.
_locks: list[int] = []


def free_ports(count: int) -> list[int]:
    """Ports that no other process of the tests has, and that the kernel gives to no connection by itself."""
    folder = Path(tempfile.gettempdir(), "forebay-test-ports")
    folder.mkdir(exist_ok=True)
    found: list[int] = []
    for port in range(20_000, 30_000):
        if len(found) == count:
            return found
        lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            os.close(lock)
        else:
            _locks.append(lock)
            found.append(port)
    raise AssertionError(f"expected {count} ports that no other test has, got {len(found)}")
