"""Credentials of every kind, each with a mark of its own: no server gets one that it was not given for, wherever it is
led, and nothing that is said or written has one in it. The server is our own: it redirects, and repeats what it got."""

import base64
import http.server
import io
import json
import os
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import pytest

import children
import folders
import forebay as fb
from forebay import errors
from forebay import transforms as T

MARK = "cAnArY"
SAMPLES = 4
PLAIN = T.Compose([T.Resize((8, 8)), T.ToTensor()])


def _picture() -> bytes:
    file = io.BytesIO()
    folders.picture(0).save(file, "JPEG")
    return file.getvalue()


PICTURE = _picture()


class Server(http.server.ThreadingHTTPServer):
    """Gives the same picture under every name, or does as it is told, and keeps what it was sent."""

    daemon_threads = True

    def __init__(self, address: str = "127.0.0.1") -> None:
        super().__init__((address, 0), Handler)
        self.url = f"http://{address}:{self.server_port}"
        self.received: list[str] = []
        self.behaviour = "serve"
        self.leads_to = ""
        self.is_released = threading.Event()
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def end(self) -> None:
        self.is_released.set()
        self.shutdown()
        self.server_close()
        self.thread.join(10)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, *said: Any) -> None:
        """To nobody."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        sent = f"{self.command} {self.path} {' '.join(self.headers.values())} {body}"
        self.server.received.append(f"{sent} {self.headers}")
        behaviour = self.server.behaviour
        if behaviour == "stall":
            self.server.is_released.wait(60)
        if behaviour.isdigit():
            location = self.server.leads_to + urlsplit(self.path).path  # a proxy is asked for a whole URL
            self.answer(int(behaviour), b"", {"Location": location})
        elif behaviour == "echo":
            said = sent.replace("<", "(").replace("\n", " ")
            self.answer(403, f"<Error><Code>{said}</Code><Message>{said}</Message></Error>".encode())
        elif "list-type=2" in self.path:
            self.answer(200, self.page())
        elif self.path.endswith("/oauth2/v2.0/token"):
            token = {"access_token": f"{MARK}-issued-token", "token_type": "Bearer", "expires_in": 3600}
            self.answer(200, json.dumps(token).encode())
        else:
            self.answer(200, PICTURE)

    do_HEAD = do_POST = do_PUT = do_GET

    def page(self) -> bytes:
        about = f"<Size>{len(PICTURE)}</Size><LastModified>2026-11-16T00:00:00.000Z</LastModified>"
        (prefix,) = parse_qs(urlsplit(self.path).query)["prefix"]
        objects = "".join(f"<Contents><Key>{prefix}{n}.jpg</Key>{about}</Contents>" for n in range(SAMPLES))
        classes = f"<CommonPrefixes><Prefix>{prefix}cat/</Prefix></CommonPrefixes>"
        inner = objects if prefix.endswith("cat/") else classes
        return f"<ListBucketResult>{inner}</ListBucketResult>".encode()

    def answer(self, status: int, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        repeated = self.headers.get("Authorization", "none").replace("\n", " ")
        about = {"ETag": '"v1"', "Last-Modified": "Mon, 16 Nov 2026 00:00:00 GMT", "x-amz-request-id": repeated}
        for name, value in (about | {"Content-Length": str(len(body))} | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Case(NamedTuple):
    """A root and its options, for the server at this URL; and the environment."""

    root: Callable[[str], str]
    options: Callable[[str], dict[str, Any]]
    environment: tuple[tuple[str, str], ...] = ()


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


S3 = {"key": f"{MARK}-key-id", "secret": f"{MARK}-secret-key", "token": f"{MARK}-session-token", "region": "us-east-1"}
ACCOUNT_KEY = _encoded(f"{MARK}-account-key-0123456789")
CUSTOMER_KEY = _encoded(f"{MARK}-customer-key-0123456789-")
SIGNATURE = f"sv=2024-11-04&sr=c&sp=rl&sig={MARK}%2Bsas%3D"


def _bucket(url: str) -> str:
    return "s3://bucket/train"


def _blob(url: str) -> str:
    return "az://box/train"


def _azure(**more: Any) -> Callable[[str], dict[str, Any]]:
    return lambda url: {"endpoint": url, "account_name": "me"} | more


CASES = {
    "s3": Case(_bucket, lambda url: S3 | {"endpoint_url": url}),
    "s3-nested": Case(_bucket, lambda url: {"client_kwargs": {"endpoint_url": url}} | S3),
    "s3-url": Case(
        lambda url: "s3://bucket/train?" + "&".join(f"{name}={quote(value)}" for name, value in S3.items()),
        lambda url: {"endpoint_url": url},
    ),
    "s3-environment": Case(
        _bucket,
        lambda url: {"endpoint_url": url},
        (
            ("AWS_ACCESS_KEY_ID", S3["key"]),
            ("AWS_SECRET_ACCESS_KEY", S3["secret"]),
            ("AWS_SESSION_TOKEN", S3["token"]),
            ("AWS_REGION", "us-east-1"),
        ),
    ),
    "s3-customer-key": Case(
        _bucket,
        lambda url: (
            S3 | {"endpoint_url": url, "server_side_encryption": "sse-c", "sse_customer_key_base64": CUSTOMER_KEY}
        ),
    ),
    "gs-bearer": Case(
        lambda url: "gs://bucket/train", lambda url: {"endpoint_url": url, "bearer_token": f"{MARK}-google-token"}
    ),
    "az-account-key": Case(_blob, _azure(account_key=ACCOUNT_KEY)),
    "az-sas": Case(_blob, _azure(sas_token=SIGNATURE)),
    "az-sas-url": Case(lambda url: f"az://box/train?{SIGNATURE}", _azure()),
    "az-bearer": Case(_blob, _azure(bearer_token=f"{MARK}-azure-token")),
    "az-client-secret": Case(
        _blob,
        lambda url: {
            "endpoint": url,
            "account_name": "me",
            "authority_host": url,
            "tenant_id": "tenant",
            "client_id": "client",
            "client_secret": f"{MARK}-client-secret",
        },
    ),
    "http-token": Case(lambda url: f"{url}/train", lambda url: {"token": f"{MARK}-http-token"}),
    "http-basic": Case(lambda url: f"{url}/train", lambda url: {"username": "me", "password": f"{MARK}-password"}),
    "http-basic-url": Case(lambda url: f"{url}/train".replace("://", f"://me:{MARK}-password@"), lambda url: {}),
    "http-proxy": Case(
        lambda url: "http://store.invalid/train",
        lambda url: {"proxy_url": url.replace("://", f"://me:{MARK}-proxy-password@"), "token": f"{MARK}-http-token"},
    ),
}
# What a secret looks like where it was only written in another way.
SPELLINGS = [MARK, MARK.lower(), f"{MARK}+sas=", ACCOUNT_KEY, CUSTOMER_KEY]
SPELLINGS += [_encoded(f"me:{MARK}-{what}") for what in ("password", "proxy-password")]
REDIRECTS = ["301", "302", "303", "307", "308"]


def check(text: str | bytes, what: str) -> None:
    shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
    for spelling in SPELLINGS:
        assert spelling not in shown, f"{what}: {shown[:3000]}"


@pytest.fixture
def home() -> Iterator[Server]:
    server = Server()
    yield server
    server.end()


@pytest.fixture
def foreign() -> Iterator[Server]:
    """Another address, another port."""
    server = Server("127.0.0.2")
    yield server
    server.end()


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    manifest = tmp_path / "train.csv"
    manifest.write_text("path,class\n" + "".join(f"cat/{number}.jpg,cat\n" for number in range(SAMPLES)))
    return manifest


def told(error: BaseException) -> str:
    """All that a user may see of an error."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error)) + str(error.args)


def epoch(root: str, manifest: Path, options: dict[str, Any], place: Path, **settings: Any) -> tuple[int, list[str]]:
    """How many samples came, and all that was said and written meanwhile."""
    place.mkdir()
    said = []
    ledger, cache = place / "ledger.jsonl", place / "cache"
    delivered = 0
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            dataset = fb.ImageFolder(root, PLAIN, manifest=manifest, storage_options=options, cache=cache)
            said += [repr(dataset), dataset.root, str(dataset.samples), str(dataset.notes), repr(dataset._manifest)]
            settings = {"on_error": "skip", "retries": 0, "deadline_seconds": 20} | settings
            loader = fb.DataLoader(dataset, batch_size=2, ledger=ledger, **settings)
            try:
                delivered = sum(len(labels) for _, labels in loader)
            except errors.ForebayError as error:
                said.append(told(error))
            said += [loader.report(), str(loader.stats()), repr(loader), repr(loader.failures)]
            said += [json.dumps(loader.state_dict()), str(loader.in_flight())]
            loader.close()
            try:
                dataset[0]
            except errors.ForebayError as error:
                said.append(told(error))
        except errors.ForebayError as error:
            said.append(told(error))
    said += [str(warning.message) for warning in warned]
    said += [path.read_text("latin-1") for path in place.rglob("*") if path.is_file()]
    said += [str(path) for path in place.rglob("*")]
    return delivered, said


@pytest.mark.parametrize("name", CASES)
def test_a_secret_stays_with_the_server_it_is_for(
    name: str, home: Server, foreign: Server, listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    for variable, value in case.environment:
        monkeypatch.setenv(variable, value)
    root, options = case.root(home.url), case.options(home.url)
    schemes = [foreign.url, foreign.url.replace("http://", "https://"), f"http://localhost:{foreign.server_port}"]
    # Two for each kind of secret; all of them: crates/forebay-store/tests/it/redirect.rs.
    first = list(CASES).index(name) % len(REDIRECTS)
    codes = (REDIRECTS + REDIRECTS)[first : first + 2]
    for number, behaviour in enumerate(["serve", "echo", *codes], first):
        home.behaviour, home.leads_to = behaviour, schemes[number % len(schemes)]
        home.received.clear()
        delivered, said = epoch(root, listed, options, tmp_path / behaviour)
        assert delivered == (SAMPLES if behaviour == "serve" else 0), said
        for text in said:
            check(text, f"{name}, {behaviour}")
        sent = " ".join(home.received)
        assert "authorization" in sent.lower() or MARK in sent, "it was given to the server that it is for"
        assert "referer" not in sent.lower()
        if behaviour == "echo":
            assert any("403" in text for text in said), said
        if behaviour in REDIRECTS and "secret" not in name:
            assert any("it redirects to another server" in text for text in said), said
    assert not foreign.received


def test_a_manifest_does_not_choose_who_gets_a_secret(home: Server, foreign: Server, tmp_path: Path) -> None:
    elsewhere = f"{foreign.url}/train"
    # As long as the other, so that it can be put in its place.
    root = "s3://bucket/".ljust(len(elsewhere), "x")
    command = [sys.executable, "-m", "forebay", "scan", root, "-o", str(tmp_path / "m.parquet")]
    given = {"endpoint_url": home.url, "anon": "true", "region": "us-east-1"}
    command += [word for name, value in given.items() for word in ("--storage-option", f"{name}={value}")]
    subprocess.run(command, check=True, capture_output=True, timeout=60, env=children.environment())
    written = (tmp_path / "m.parquet").read_bytes()
    hostile = tmp_path / "hostile.parquet"
    hostile.write_bytes(written.replace(root.encode(), elsewhere.encode()))
    assert fb.Manifest(hostile, root=tmp_path).recorded_root == elsewhere
    for path in (hostile, tmp_path / "m.parquet"):
        for options in ({"token": f"{MARK}-token"}, None):
            with pytest.raises(errors.ConfigError, match="says that its samples are elsewhere") as refused:
                fb.ImageFolder(manifest=path, storage_options=options)
            assert "pass root=" in refused.value.hint
            check(told(refused.value), "refused")
    assert not foreign.received


@pytest.mark.parametrize(
    ("root", "options"),
    [
        ("s3://bucket/train", {"headers": {"X-Api-Key": f"{MARK}-header"}}),
        ("s3://bucket/train", {"default_headers": f"{MARK}-header"}),
        ("s3://bucket/train", {"profile": "nobody", "secret": f"{MARK}-secret"}),
        (f"s3://bucket/train?{MARK}-secret=1", {}),
        (f"s3://bucket/train?endpoint_url=http://me:{MARK}-password@127.0.0.1:1", {}),
        (f"s3://me:{MARK}-secret@bucket/train", {}),
        (f"https://host/train?X-Amz-Signature={MARK}", {}),
        ("gs://bucket/train", {"service_account_key": f'{{"private_key": "{MARK}-key"'}),
        ("az://box/train", {"account_name": "me", "account_key": f"{MARK}-no-base64!"}),
        ("az://box/train", {"account_name": "me", "sas_token": f"{MARK};%%%"}),
        ("http://127.0.0.1:1/train", {"token": f"{MARK}\nX-Evil: 1"}),
        ("http://127.0.0.1:1/train", {"proxy_url": f"http://me:{MARK}-password@", "token": f"{MARK}-x"}),
    ],
)
def test_what_is_refused_is_not_repeated(root: str, options: dict[str, Any], listed: Path) -> None:
    with pytest.raises(errors.ForebayError) as refused:
        fb.ImageFolder(root, manifest=listed, storage_options=options)
        fb.ImageFolder(root, storage_options=options)
    check(told(refused.value), "refused")


def test_a_wait_names_files_and_no_secret(home: Server, listed: Path, tmp_path: Path) -> None:
    home.behaviour = "stall"
    options = CASES["http-basic-url"].options(home.url)
    root = CASES["http-basic-url"].root(home.url)
    dataset = fb.ImageFolder(root, PLAIN, manifest=listed, storage_options=options)
    loader = fb.DataLoader(dataset, batch_size=2, stall_seconds=0.2, deadline_seconds=50)
    said: list[str] = []

    def watch() -> None:
        while not any("cat/" in text for text in said):
            said.append(f"{loader.in_flight()} {loader.stats()}")
        is_seen.wait(50)
        home.is_released.set()

    is_seen = threading.Event()
    watcher = threading.Thread(target=watch)

    def seen(message: Any, *more: Any, **others: Any) -> None:
        said.append(str(message))
        is_seen.set()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = seen
        watcher.start()
        assert sum(len(labels) for _, labels in loader) == SAMPLES
    watcher.join(60)
    loader.close()
    assert is_seen.is_set() and any("no batch for" in text for text in said)
    for text in said:
        check(text, "while waiting")


def test_credentials_in_the_clear_are_warned_of_once(listed: Path) -> None:
    def open_it(host: str, **options: str) -> list[str]:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            fb.Manifest(listed, f"http://{host}/train", options)
        return [str(warning.message) for warning in warned]

    # Nothing is asked of it.
    (said,) = open_it("plain.invalid:8080", token=f"{MARK}-token")
    assert said.startswith("connection to http://plain.invalid:8080 is not encrypted")
    check(said, "warning")
    assert open_it("plain.invalid:8080", token=f"{MARK}-token") == []
    assert open_it("public.invalid:8080") == []
    assert open_it("127.0.0.1:8080", token=f"{MARK}-token") == []


def test_no_command_line_has_a_secret_from_a_file(home: Server, tmp_path: Path) -> None:
    """The command, and whatever it starts, while it waits for its server."""
    home.behaviour = "stall"
    command = [sys.executable, "-m", "forebay", "scan", "s3://bucket/train", "-o", str(tmp_path / "m.parquet")]
    command += ["--storage-option", f"endpoint_url={home.url}", "--storage-option", "region=us-east-1", "--deep"]
    for name in ("key", "secret", "token"):
        (tmp_path / name).write_text(S3[name] + "\n")
        command += ["--storage-option", f"{name}=@{tmp_path / name}"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=children.environment()
    )
    try:
        while not home.received:
            assert process.poll() is None, process.communicate()
        lines = list(_command_lines(process.pid))
        assert any("--storage-option" in line for line in lines)
        for line in lines:
            check(line, "command line")
        home.behaviour = "serve"
        home.is_released.set()
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said
    check(said, "output")
    check((tmp_path / "m.parquet").read_bytes(), "manifest")
    assert S3["token"] in home.received[0], "it was read from the file"


def _command_lines(parent: int) -> Iterator[str]:
    """Of a process and of all below it."""
    yield Path(f"/proc/{parent}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    for task in os.listdir(f"/proc/{parent}/task"):
        for child in Path(f"/proc/{parent}/task/{task}/children").read_text().split():
            yield from _command_lines(int(child))
