"""Every exception of a user's dataset gets a hint that is right for user code: by errno, and for handles by name."""

import errno
import io
import os
import pickle
import socket
import ssl
import tarfile
import threading
import urllib.error
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay._doctor import probe, verdicts
from forebay._pickling import handles
from forebay._record import hints

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::RuntimeWarning")]

# errno: (code, words that its hint has). Whatever is not here is the user's code alone.
TABLE = {
    # The storage, and whether it may recover.
    "EIO": ("unavailable", "kernel log (dmesg)"),
    "EREMOTEIO": ("unavailable", "kernel log (dmesg)"),
    "ENOMEDIUM": ("unavailable", "kernel log (dmesg)"),
    "ESTALE": ("unavailable", "the server of the mount no longer knows the file"),
    "EUCLEAN": ("unavailable", "the file system found damage"),
    "EBADMSG": ("unavailable", "the file system found damage"),
    "EROFS": ("unavailable", "mounted read-only"),
    # Servers and their connections.
    "ETIMEDOUT": ("timeout", "the other end of a connection"),
    "EPIPE": ("unavailable", "the other end of a connection"),
    "ENOTCONN": ("unavailable", "the other end of a connection"),
    "ESHUTDOWN": ("unavailable", "the other end of a connection"),
    "ECONNRESET": ("unavailable", "the other end of a connection"),
    "ECONNABORTED": ("unavailable", "the other end of a connection"),
    "ECONNREFUSED": ("unavailable", "the other end of a connection"),
    "EHOSTDOWN": ("unavailable", "the other end of a connection"),
    "EHOSTUNREACH": ("unavailable", "the other end of a connection"),
    "ENETDOWN": ("unavailable", "the other end of a connection"),
    "ENETUNREACH": ("unavailable", "the other end of a connection"),
    "ENETRESET": ("unavailable", "the other end of a connection"),
    "ENONET": ("unavailable", "the other end of a connection"),
    "EPROTO": ("unavailable", "the other end of a connection"),
    "ECOMM": ("unavailable", "the other end of a connection"),
    # Busy, or without locks.
    "EAGAIN": ("unavailable", "busy or not ready"),
    "EINTR": ("unavailable", "busy or not ready"),
    "EBUSY": ("unavailable", "busy or not ready"),
    "ETXTBSY": ("unavailable", "busy or not ready"),
    "ENOLCK": ("unavailable", "HDF5_USE_FILE_LOCKING"),
    # What ran out.
    "EMFILE": ("exhausted", "too many files are open in this process"),
    "ENFILE": ("exhausted", "the whole system is out of descriptors"),
    "ENOMEM": ("exhausted", "memory ran out"),
    "ENOBUFS": ("exhausted", "memory ran out"),
    "ENOSPC": ("exhausted", "is full, or a quota"),
    "EDQUOT": ("exhausted", "is full, or a quota"),
    "EFBIG": ("exhausted", "ulimit -f"),
    # Paths.
    "ENOENT": ("not_found", "the file is not there"),
    "ENOTDIR": ("not_found", "a part of the path is a file"),
    "ELOOP": ("not_found", "symbolic link"),
    "ENAMETOOLONG": ("not_found", "longer than the file system allows"),
    "EISDIR": ("undecodable", "the path is a folder"),
    "EEXIST": ("user_code", "another worker may have made it"),
    "EACCES": ("denied", "check owner and mode"),
    "EPERM": ("denied", "check owner and mode"),
    # Handles.
    "EBADF": ("user_code", "opened in `__init__` or at module level"),
    "EBADFD": ("user_code", "opened in `__init__` or at module level"),
    "ENOTSOCK": ("user_code", "opened in `__init__` or at module level"),
}
DEFAULT = ("user_code", fb.errors.UserCodeError("").hint)


class Raising:
    """Every sample raises the same."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        raise self.error


def failure_of(dataset: Any, **arguments: Any) -> Any:
    loader = fb.DataLoader(dataset, batch_size=None, **arguments)
    with pytest.raises(Exception) as raised:
        list(loader)
    failure = loader.failures[-1]
    assert failure.hint in loader.report()
    return failure, "\n".join(getattr(raised.value, "__notes__", []))


@pytest.mark.parametrize("number", sorted(errno.errorcode), ids=errno.errorcode.get)
def test_every_errno_has_its_code_and_hint(number: int) -> None:
    code, words = TABLE.get(errno.errorcode[number], DEFAULT)
    failure, notes = failure_of(Raising(OSError(number, os.strerror(number))), retries=2)
    assert (failure.errno, failure.code) == (number, code)
    assert words in failure.hint
    assert failure.stage == ("transform" if code == "user_code" else "fetch")
    # More of what is not done would not help.
    assert ("`retries`" in failure.hint) == (failure.attempts > 1)
    assert ("dmesg" in failure.hint) == (
        errno.errorcode[number] in {"EIO", "EREMOTEIO", "ENOMEDIUM", "EUCLEAN"} | {"EBADMSG", "EROFS"}
    )
    assert (failure.hint in notes) == ("opened in `__init__`" in words)


def test_the_table_has_no_names_that_do_not_exist() -> None:
    assert set(TABLE) <= set(errno.errorcode.values())


OTHERS: dict[str, tuple[Exception, str, str]] = {
    "a file that is not there": (FileNotFoundError("x.txt"), "not_found", "the file is not there"),
    "no permission": (PermissionError("x.txt"), "denied", "check owner and mode"),
    "no memory": (MemoryError(), "exhausted", "memory ran out"),
    "a time limit": (TimeoutError("slow"), "timeout", "its own time limit"),
    "a lost connection": (ConnectionResetError("lost"), "unavailable", "the other end of a connection"),
    "a name of no host": (socket.gaierror(-2, "Name or service not known"), "unavailable", "the other end"),
    # Its number is 1, as that of EPERM.
    "a certificate": (ssl.SSLCertVerificationError(1, "certificate verify failed"), "unavailable", "the other end"),
    "a server's answer": (urllib.error.URLError("refused"), "unavailable", "the other end"),
    "a damaged picture": (OSError("image file is truncated"), "undecodable", "could not decode the file"),
    "a picture without more frames": (EOFError("no more images in GIF file"), *DEFAULT),
    "the wrong mode": (io.UnsupportedOperation("not readable"), *DEFAULT),
    "text that is cut": (UnicodeDecodeError("utf-8", b"\xe2", 0, 1, "unexpected end of data"), *DEFAULT),
    "a program that is cut": (SyntaxError("unexpected EOF while parsing"), *DEFAULT),
    "code": (KeyError("name"), *DEFAULT),
    "pickle": (EOFError("Ran out of input"), "user_code", "the data ended early"),
    "pickle, in the middle": (pickle.UnpicklingError("pickle data was truncated"), "user_code", "the data ended early"),
    "torch": (RuntimeError("unexpected EOF, expected 9 more bytes."), "user_code", "the data ended early"),
    "tarfile": (tarfile.ReadError("unexpected end of data"), "user_code", "the data ended early"),
    "a file": (ValueError("I/O operation on closed file."), "user_code", "a handle that was closed"),
    "a reader": (ValueError("read of closed file"), "user_code", "a handle that was closed"),
    "HDF5": (
        OSError("can't read (errno = 9, error message = 'Bad file descriptor')"),
        "user_code",
        "a descriptor that",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_exceptions_have_theirs(name: str) -> None:
    error, code, words = OTHERS[name]
    failure, _ = failure_of(Raising(error))
    assert failure.code == code and words in failure.hint
    assert "dmesg" not in failure.hint and "retries" not in failure.hint


def test_an_error_that_hides_its_cause_has_the_hint_of_the_cause() -> None:
    class Wrapping(Raising):
        def __getitem__(self, index: int) -> Any:
            try:
                raise self.error
            except OSError as error:
                raise RuntimeError(f"no sample {index}") from error

    failure, notes = failure_of(Wrapping(OSError(errno.EBADF, "Bad file descriptor")))
    assert "a descriptor that is not open" in failure.hint and failure.hint in notes


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(b"".join(pickle.dumps(number) for number in range(3)))
    return path


class Reading:
    """Reads from something that it has had from the beginning."""

    def __init__(self, held: Any, read: Callable[[Any], Any]) -> None:
        self.held, self.read = held, read

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return self.read(self.held)


THREADS = {"num_workers": 2, "workers": "threads"}


@pytest.mark.parametrize("kind", [{}, THREADS], ids=["inline", "threads"])
def test_a_handle_at_its_end_is_named(kind: dict[str, Any], data: Path) -> None:
    with open(data, "rb") as file:
        failure, notes = failure_of(Reading(file, pickle.load), **kind)
    assert failure.code == "user_code" and (kind or failure.index == 3)
    assert f"dataset.held (BufferedReader on {data}) is at its end" in failure.hint
    assert "open it in `__getitem__`" in failure.hint and "os.getpid()" in failure.hint
    assert f"forebay: hint: {failure.hint}" in notes


def test_a_handle_that_is_closed_is_named_by_its_path(data: Path) -> None:
    with open(data, "rb") as file, open(data, "rb") as other:
        file.close()
        # Another one is open, and not what is meant.
        failure, _ = failure_of(Reading({"other": other, "parts": [file]}, lambda held: held["parts"][0].read(1)))
    assert f'dataset.held["parts"][0] (BufferedReader on {data}) is closed' in failure.hint


def test_a_handle_whose_position_threads_move_is_called_shared(data: Path) -> None:
    with open(data, "rb") as file:
        failure, _ = failure_of(Reading(file, lambda file: pickle.loads(file.read(2) and b"")), **THREADS)
    assert f"dataset.held (BufferedReader on {data}) is open and shared" in failure.hint


def closed_archive(path: Path) -> Any:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "a")
    archive = zipfile.ZipFile(path)
    archive.close()
    return archive


def test_an_archive_that_is_closed_is_named(tmp_path: Path) -> None:
    failure, _ = failure_of(Reading(closed_archive(tmp_path / "a.zip"), lambda archive: archive.read("a")))
    assert "dataset.held (zipfile.ZipFile on " in failure.hint and "is closed" in failure.hint


# A descriptor that nothing else will get.
HIGH = 900


class Descriptor:
    """Keeps a descriptor as a number."""

    def __init__(self, path: Path) -> None:
        self.source = {"fd": os.open(path, os.O_RDONLY)}

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> bytes:
        return os.pread(self.source["fd"], 1, 0)


@pytest.mark.parametrize("kind", [{}, THREADS, {"num_workers": 1, "workers": "processes"}], ids=str)
def test_a_descriptor_that_is_not_open_is_named(kind: dict[str, Any], data: Path) -> None:
    dataset = Descriptor(data)
    first = dataset.source["fd"]
    dataset.source["fd"] = os.dup2(first, HIGH)
    if kind.get("workers") != "processes":  # in a worker it is not open anyway
        os.close(HIGH)
    failure, notes = failure_of(dataset, **kind)
    assert f'dataset.source["fd"] (descriptor {HIGH}) is not open in this process' in failure.hint
    assert failure.errno == errno.EBADF and failure.hint in notes
    os.close(first)
    if kind.get("workers") == "processes":
        os.close(HIGH)


def test_a_file_whose_descriptor_somebody_closed_is_named(data: Path) -> None:
    with open(data, "rb") as file:
        broken = open(os.dup2(file.fileno(), HIGH), "rb", buffering=0, closefd=False)  # noqa: SIM115 — it is left broken
    os.close(HIGH)
    failure, _ = failure_of(Reading(broken, lambda file: file.read(1)))
    assert "dataset.held (FileIO) is not open in this process" in failure.hint


FILE: Any = None


def test_a_global_handle_is_named_by_its_module(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(data, "rb") as file:
        pass
    monkeypatch.setitem(globals(), "FILE", file)
    failure, _ = failure_of(Reading(None, lambda _: FILE.read()))
    assert f"test_hints.FILE (BufferedReader on {data}) is closed" in failure.hint


def test_a_handle_of_a_transform_is_named_by_its_closure(data: Path) -> None:
    with open(data, "rb") as file:
        pass
    failure, _ = failure_of(Reading(None, lambda _: file.read()))
    assert "file (BufferedReader on " in failure.hint and "is closed" in failure.hint


def test_a_stream_is_told_its_own_method(data: Path) -> None:
    class Stream:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __iter__(self) -> Iterator[Any]:
            while True:
                yield pickle.load(self.file)

    with open(data, "rb") as file:
        failure, _ = failure_of(Stream(file))
    assert "dataset.file (BufferedReader" in failure.hint and "open it in `__iter__`" in failure.hint


def test_a_file_that_is_too_short_is_not_blamed_on_a_handle_alone() -> None:
    failure, _ = failure_of(Reading(None, lambda _: pickle.load(io.BytesIO())))
    assert "if the file is opened in this very call, it is truncated or empty" in failure.hint


def test_the_search_is_short_and_takes_what_it_meets() -> None:
    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    class Liar:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("no class")

    class Unlisted(dict[Any, Any]):
        def items(self) -> Any:
            raise RuntimeError("no items")

    class Slotted:
        __slots__ = ("empty", "lock")

        def __init__(self) -> None:
            self.lock = threading.Lock()

    round_trip: list[Any] = [Hostile(), Liar(), Unlisted(), Slotted(), range(10**9), {1: {2: [object()] * 10**5}}]
    round_trip.append(round_trip)
    failure, _ = failure_of(Reading(round_trip, lambda _: pickle.load(io.BytesIO())))
    assert "the data ended early" in failure.hint


def test_the_doctor_says_the_same_of_the_error(data: Path) -> None:
    with open(data, "rb") as file:
        file.close()
        dataset = Reading(file, lambda file: file.read(1))
        failure, _ = failure_of(dataset)
        with pytest.raises(ValueError, match="closed file") as raised:
            dataset[0]
    assert verdicts._advice({"type": "ValueError", **probe._advice(raised.value, dataset)}) == failure.hint
    assert hints.of(raised.value, dataset).hint == failure.hint


def test_the_doctor_says_the_same_of_the_handle(data: Path) -> None:
    with open(data, "rb") as file:
        dataset = Reading(file, len)
        (verdict,) = [each for each in fb.doctor(dataset, seconds=1).verdicts if each.check == "handles"]
        failure, _ = failure_of(Reading(file, lambda _: os.read(10**6, 1)))
    assert handles.lazily() in (verdict.change or "") and handles.lazily() in failure.hint
    assert handles.why(file) in verdict.text and handles.why(file) in failure.hint
