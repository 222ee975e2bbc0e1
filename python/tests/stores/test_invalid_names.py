"""Objects whose names no path can hold, `..` among them: the rest is listed and read, each of them is named once, and
nothing is written outside a mirror's target. A server of our own, because real ones tidy such names up."""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest
import test_mirror

import children
import folders
import forebay as fb
from forebay import transforms as T

ODD = {
    "train/../../etc/cron.d/x.jpg": "s3://bucket/train/../",
    "train//empty.jpg": "s3://bucket/train//",
    "train/cat/../../../escape.jpg": "s3://bucket/train/cat/../",
    "train/cat/./dot.jpg": "s3://bucket/train/cat/./",
    "train/cat/..": "s3://bucket/train/cat/..",
    "train/cat/bell\x07&.jpg": "s3://bucket/train/cat/bell\x07&.jpg",
    "train/dog/a//b.jpg": "s3://bucket/train/dog/a//",
}
GOOD = 12


class Server(http.server.ThreadingHTTPServer):
    """Speaks as much S3 as a listing and a read need; two entries to a page."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}

    def options(self) -> dict[str, Any]:
        return {"endpoint_url": f"http://127.0.0.1:{self.server_port}", "anon": True, "region": "us-east-1"}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *said: Any) -> None:
        """To nobody."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body: bytes | None
        if "list-type" in query:
            body = self.page(query.get("prefix", ""), query.get("continuation-token", ""))
        else:
            body = self.server.objects.get(unquote(parts.path).removeprefix("/bucket/"))
        status = 404 if body is None else 200
        self.answer(status, body or b"<Error><Code>NoSuchKey</Code></Error>")

    def page(self, prefix: str, after: str) -> bytes:
        found = set()
        for key in self.server.objects:
            if key.startswith(prefix) and key != prefix:
                name, slash, _ = key[len(prefix) :].partition("/")
                found.add(prefix + name + slash)
        left = sorted(entry for entry in found if entry > after)
        text = "".join(self.entry(entry) for entry in left[:2])
        more = f"<NextContinuationToken>{self.text(left[1])}</NextContinuationToken>" if len(left) > 2 else ""
        return f'<?xml version="1.0"?><ListBucketResult><Name>b</Name>{text}{more}</ListBucketResult>'.encode()

    def entry(self, entry: str) -> str:
        if entry.endswith("/"):
            return f"<CommonPrefixes><Prefix>{self.text(entry)}</Prefix></CommonPrefixes>"
        size = len(self.server.objects[entry])
        about = f"<Size>{size}</Size><LastModified>2026-11-16T00:00:00.000Z</LastModified>"
        return f"<Contents><Key>{self.text(entry)}</Key>{about}<ETag>{self.tag(entry)}</ETag></Contents>"

    @staticmethod
    def text(key: str) -> str:
        return "".join(character if character >= " " else f"&#{ord(character)};" for character in escape(key))

    def tag(self, key: str) -> str:
        return f'"{hashlib.md5(self.server.objects[key]).hexdigest()}"'

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Mon, 16 Nov 2026 00:00:00 GMT")
        self.send_header("ETag", f'"{hashlib.md5(body).hexdigest()}"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folders.write_folder(tmp_path / "pictures", GOOD)
    server = Server()
    for path in (tmp_path / "pictures").rglob("*.jpg"):
        server.objects[f"train/{path.relative_to(tmp_path / 'pictures')}"] = path.read_bytes()
    assert len(server.objects) == GOOD
    server.objects |= dict.fromkeys(ODD, b"#!/bin/sh\nrm -rf /\n")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


def arguments(server: Server, name: str) -> list[str]:
    options = server.options() | {"anon": "true"}
    return [part for option, value in options.items() for part in (f"--{name}", f"{option}={value}")]


def test_a_folder_has_the_rest_and_notes_each_name_once(server: Server, plain: T.Compose) -> None:
    dataset = fb.ImageFolder("s3://bucket/train", transform=plain, storage_options=server.options())
    assert (len(dataset), dataset.classes) == (GOOD, sorted(dataset.classes))
    assert sorted(path for path, _ in dataset.notes) == sorted(ODD.values())
    assert all("paths cannot have this name" in message for _, message in dataset.notes)
    with fb.DataLoader(dataset, batch_size=4, on_error="raise", retries=0) as loader:
        assert sum(len(labels) for _, labels in loader) == GOOD
        assert not loader.failures


def test_a_manifest_has_the_rest(server: Server, tmp_path: Path) -> None:
    output = tmp_path / "train.parquet"
    given = arguments(server, "storage-option")
    status, out, problems = children.call("scan", "s3://bucket/train", "-o", str(output), "--json", *given)
    assert (status, problems) == (0, "")
    noted = [note["path"] for note in json.loads(out)["notes"]]
    assert sorted(noted) == sorted(ODD.values())
    dataset = fb.ImageFolder("s3://bucket/train", manifest=output, storage_options=server.options())
    assert len(dataset) == GOOD


def test_a_mirror_copies_the_rest_names_each_and_writes_nothing_elsewhere(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    given = arguments(server, "storage-option")
    seen = test_mirror.mirror("s3://bucket/train", target, *given, status=1)
    assert sorted(failure["path"] for failure in seen["failures"]) == sorted(ODD.values())
    assert all("was refused" in failure["message"] for failure in seen["failures"])
    expected = {key.removeprefix("train/"): body for key, body in server.objects.items() if key not in ODD}
    assert test_mirror.tree(target) == expected
    outside = [path for path in (tmp_path / "deep").rglob("*") if target not in (path, *path.parents)]
    assert not outside, "nothing beside the target"
    # Left out by its own name it is no failure.
    for key in ODD:
        if "bell" not in key:
            del server.objects[key]
    seen = test_mirror.mirror("s3://bucket/train", tmp_path / "other", *given, "--exclude", "bell*")
    assert (seen["copied_files"], seen["failures"]) == (GOOD, [])
