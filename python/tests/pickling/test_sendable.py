"""What cannot be sent is named by its path, with the reason and the change to make."""

import collections
import concurrent.futures
import contextlib
import csv
import functools
import gc
import gzip
import io
import mmap
import multiprocessing
import pickle
import queue
import random
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import weakref
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pytest
import torch

from forebay._pickling.sendable import UnsendableError, dumps, handles
from missing import package


class Holder:
    """A dataset or a transform: something with attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __getitem__(self, index: int) -> int:
        return index


class Transform:
    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __call__(self, value: Any) -> Any:
        return self.fn(value)


class Slotted:
    __slots__ = ("handle",)

    def __init__(self, handle: Any) -> None:
        self.handle = handle


class Pair(NamedTuple):
    left: Any
    right: Any


class OwnList(list):  # type: ignore[type-arg]
    pass


def over(thing: Any) -> Callable[[Any], Any]:
    """A local function with the thing in its closure."""

    def fn(value: Any) -> Any:
        return value, thing

    return fn


def with_lambda(lock: Any) -> Callable[[Any], Any]:
    return lambda value: (lock, value)


def lines() -> Iterator[int]:
    yield 1


class Place:
    """Where the things of one test are opened, and closed again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = str(folder / "x.bin")
        Path(self.path).write_bytes(b"0123456789" * 10)
        self._stack = contextlib.ExitStack()

    def open(self, mode: str = "rb") -> Any:
        return self.keep(open(self.path, mode))

    def closed(self) -> Any:
        file = self.open("r")
        file.close()
        return file

    def keep(self, thing: Any) -> Any:
        return self._stack.enter_context(contextlib.closing(thing))

    def zip(self) -> zipfile.ZipFile:
        return self.keep(zipfile.ZipFile(self.folder / "a.zip", "w"))  # type: ignore[no-any-return]

    def tar(self) -> tarfile.TarFile:
        return self.keep(tarfile.open(self.folder / "a.tar", "w"))  # type: ignore[no-any-return]

    def mmap(self) -> mmap.mmap:
        with open(self.path, "rb") as file:
            return self.keep(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # type: ignore[no-any-return]

    def sqlite(self) -> sqlite3.Connection:
        return self.keep(sqlite3.connect(self.folder / "a.db"))  # type: ignore[no-any-return]

    def connected(self) -> socket.socket:
        server = self.keep(socket.create_server(("127.0.0.1", 0)))
        return self.keep(socket.create_connection(server.getsockname()))  # type: ignore[no-any-return]

    def executor(self) -> concurrent.futures.Executor:
        executor = concurrent.futures.ThreadPoolExecutor(1)
        self._stack.callback(executor.shutdown)
        return executor

    def process(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
        self._stack.callback(process.wait)
        return process

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    opened = Place(tmp_path)
    yield opened
    opened.close()


class Angry:
    """Everything about it raises."""

    def __reduce__(self) -> Any:
        raise ZeroDivisionError("no pickling today")

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"asked for {name}")

    def __repr__(self) -> str:
        raise ValueError("no text either")


class Nonsense:
    def __reduce__(self) -> Any:
        return 7


class NoCallable:
    def __reduce__(self) -> Any:
        return 7, ()


class NotThere:
    def __reduce__(self) -> str:
        return "there_is_nothing_of_this_name"


class Stubborn:
    def __getstate__(self) -> Any:
        raise RuntimeError("the state is secret")


class Tagged:
    """A state that is no dict."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __getstate__(self) -> Any:
        return [1, self.thing]


class Made:
    """Made again from its arguments."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __reduce__(self) -> Any:
        return Made, (self.thing,)


def raised() -> Any:
    try:
        raise ValueError("x")
    except ValueError as error:
        return error.__traceback__


def local_class_with(thing: Any) -> Any:
    class Local:
        shared = thing

        def __getitem__(self, index: int) -> int:
            return index

    return Local()


def default(thing: Any) -> Callable[..., Any]:
    def fn(value: Any, with_what: Any = thing) -> Any:
        return value, with_what

    return fn


GLOBAL = {"lock": threading.Lock()}
# As a function of __main__ or a notebook: sent by value, with the globals it uses.
BY_VALUE: dict[str, Any] = {"__name__": "__main__", "lock": threading.Lock()}
exec("def use(value):\n    with lock:\n        return value\n", BY_VALUE)


# name: (what to build, path, what is there, a word of the change)
CULPRITS: dict[str, tuple[Callable[[Place], Any], str, str, str]] = {
    "lock": (lambda p: Holder(lock=threading.Lock()), "dataset.lock", "_thread.lock", "threading.Lock()"),
    "rlock": (lambda p: Holder(lock=threading.RLock()), "dataset.lock", "_thread.RLock", "__getstate__"),
    "condition": (lambda p: Holder(c=threading.Condition()), "dataset.c", "threading.Condition", "self.c is None"),
    "event": (lambda p: Holder(e=threading.Event()), "dataset.e", "threading.Event", "worker"),
    "thread local": (lambda p: Holder(own=threading.local()), "dataset.own", "_thread._local", "worker"),
    "thread": (lambda p: Holder(t=threading.Thread()), "dataset.t", "threading.Thread", "in each worker"),
    "queue": (lambda p: Holder(q=queue.Queue()), "dataset.q", "queue.Queue", "in each worker"),
    "simple queue": (lambda p: Holder(q=queue.SimpleQueue()), "dataset.q", "_queue.SimpleQueue", "in each worker"),
    "executor": (lambda p: Holder(pool=p.executor()), "dataset.pool", "ThreadPoolExecutor", "in each worker"),
    "process": (lambda p: Holder(ffmpeg=p.process()), "dataset.ffmpeg", "subprocess.Popen", "in each worker"),
    "binary file": (
        lambda p: Holder(file=p.open()),
        "dataset.file",
        "BufferedReader on {path}",
        "open('{path}', 'rb')",
    ),
    "raw file": (lambda p: Holder(file=p.keep(io.FileIO(p.path))), "dataset.file", "FileIO on {path}", "open("),
    "file to write": (lambda p: Holder(log=p.open("a")), "dataset.log", "TextIOWrapper on {path}", "open("),
    "closed text": (
        lambda p: Holder(f=p.closed()),
        "dataset.f",
        "closed Text",
        "open(",
    ),
    "temporary file": (
        lambda p: Holder(t=p.keep(tempfile._TemporaryFileWrapper(p.open("r+b"), "x", delete=False))),
        "dataset.t",
        "_TemporaryFileWrapper",
        "open(",
    ),
    "gzip": (lambda p: Holder(g=p.keep(gzip.GzipFile(p.path))), "dataset.g", "gzip.GzipFile on {path}", "open("),
    "csv reader": (lambda p: Holder(rows=csv.reader(p.open("r"))), "dataset.rows", "_csv.reader", "worker"),
    "zip": (lambda p: Holder(zip=p.zip()), "dataset.zip", "zipfile.ZipFile on {folder}/a.zip", "zipfile.ZipFile('"),
    "tar": (lambda p: Holder(tar=p.tar()), "dataset.tar", "tarfile.TarFile on {folder}/a.tar", "tarfile.open('"),
    "mmap": (lambda p: Holder(view=p.mmap()), "dataset.view", "mmap.mmap", "mmap.mmap(open("),
    "sqlite": (
        lambda p: Holder(db=p.sqlite()),
        "dataset.db",
        "sqlite3.Connection on {folder}/a.db",
        "sqlite3.connect('",
    ),
    "sqlite cursor": (
        lambda p: Holder(c=p.sqlite().cursor()),
        "dataset.c",
        "sqlite3.Cursor on {folder}",
        "sqlite3.conn",
    ),
    "socket": (lambda p: Holder(s=p.connected()), "dataset.s", "socket.socket on 127.0.0.1:", "in each worker"),
    "generator": (lambda p: Holder(rows=lines()), "dataset.rows", "generator lines", "call it in the worker"),
    "frame": (lambda p: Holder(f=sys._getframe()), "dataset.f", "frame", "worker"),
    "traceback": (lambda p: Holder(t=raised()), "dataset.t", "traceback", "worker"),
    "weak reference": (lambda p: Holder(ref=weakref.ref(p)), "dataset.ref", "weakref", "leaves `ref` out"),
    "fork lock": (lambda p: Holder(lock=FORK.Lock()), "dataset.lock", "multiprocessing.synchronize.Lock", "'spawn'"),
    "fork queue": (
        lambda p: Holder(q=FORK.SimpleQueue()),
        "dataset.q",
        "multiprocessing.queues.SimpleQueue",
        "'spawn'",
    ),
    "fork value": (lambda p: Holder(n=FORK.Value("i")), "dataset.n", "sharedctypes.Synchronized", "'threads'"),
    "in a closure": (
        lambda p: Holder(transform=Holder(fn=over(threading.Lock()))),
        "dataset.transform.fn.<closure>.thing",
        "_thread.lock",
        "inside the function",
    ),
    "in a list of transforms": (
        lambda p: Holder(transform=Holder(transforms=[Transform(1), Transform(2), Transform(over(p.open()))])),
        "dataset.transform.transforms[2].fn.<closure>.thing",
        "BufferedReader on {path}",
        "variable from around of over.<locals>.fn",
    ),
    "in a lambda": (
        lambda p: Holder(transform=with_lambda(threading.Lock())),
        "dataset.transform.<closure>.lock",
        "_thread.lock",
        "<lambda>",
    ),
    "in a default": (
        lambda p: Holder(f=default(threading.Lock())),
        "dataset.f.<default>.with_what",
        "_thread.lock",
        "default argument",
    ),
    "in a global": (lambda p: Holder(f=BY_VALUE["use"]), "dataset.f.<global>.lock", "_thread.lock", "a global of use"),
    "in a partial": (
        lambda p: Holder(f=functools.partial(print, 1, threading.Lock())),
        "dataset.f.args[1]",
        "_thread.lock",
        "bound argument",
    ),
    "in a partial's keywords": (
        lambda p: Holder(f=functools.partial(print, file=p.open())),
        'dataset.f.keywords["file"]',
        "BufferedReader on {path}",
        "bound argument",
    ),
    "behind a bound method": (
        lambda p: Holder(load=Transform(threading.Lock()).__call__),
        "dataset.load.__self__.fn",
        "_thread.lock",
        "class Transform",
    ),
    "in a slot": (lambda p: Holder(s=Slotted(p.open())), "dataset.s.handle", "BufferedReader", "self.handle is None"),
    "in a dict": (lambda p: {"a": [{"lock": GLOBAL["lock"]}]}, 'dataset["a"][0]["lock"]', "_thread.lock", "worker"),
    "as a key": (lambda p: Holder(ids={threading.Lock(): 1}), "dataset.ids<key>", "_thread.lock", "worker"),
    "in a set": (lambda p: Holder(ids={threading.Lock()}), "dataset.ids<element>", "_thread.lock", "worker"),
    "in a named tuple": (lambda p: Holder(pair=Pair(1, p.open())), "dataset.pair.right", "BufferedReader", "worker"),
    "in a list's subclass": (lambda p: OwnList([1, threading.Lock()]), "dataset[1]", "_thread.lock", "worker"),
    "in a deque": (lambda p: Holder(d=collections.deque([lines()])), "dataset.d[0]", "generator lines", "worker"),
    "in a defaultdict": (
        lambda p: Holder(d=collections.defaultdict(over(threading.Lock()))),
        "dataset.d.default_factory.<closure>.thing",
        "_thread.lock",
        "inside the function",
    ),
    "in an array of objects": (
        lambda p: Holder(rows=np.array([None, threading.Lock()], dtype=object)),
        "dataset.rows[1]",
        "_thread.lock",
        "worker",
    ),
    "in a local class": (
        lambda p: local_class_with(threading.Lock()),
        "dataset.<class local_class_with.<locals>.Local>.shared",
        "_thread.lock",
        "worker",
    ),
    "in a state of its own": (lambda p: Holder(t=Tagged(p.open())), "dataset.t.<state>[1]", "BufferedReader", "worker"),
    "in arguments": (lambda p: Holder(m=Made(p.open())), "dataset.m.thing", "BufferedReader", "self.thing is None"),
    "in a subset": (
        lambda p: torch.utils.data.Subset(Holder(file=p.open()), [0]),  # type: ignore[arg-type]
        "dataset.dataset.file",
        "BufferedReader on {path}",
        "class Holder",
    ),
    "raises anything": (lambda p: Holder(angry=Angry()), "dataset.angry", "Angry", "leaves `angry` out"),
    "raises in __getstate__": (lambda p: Holder(s=Stubborn()), "dataset.s", "Stubborn", "leaves `s` out"),
    "reduces to a number": (lambda p: Holder(n=Nonsense()), "dataset.n", "Nonsense", "leaves `n` out"),
    "calls a number": (lambda p: Holder(n=NoCallable()), "dataset.n", "NoCallable", "leaves `n` out"),
    "names nothing": (lambda p: Holder(n=NotThere()), "dataset.n", "NotThere", "leaves `n` out"),
}
FORK = multiprocessing.get_context("fork")


@pytest.mark.parametrize("name", CULPRITS)
def test_the_culprit_has_an_address_and_a_remedy(name: str, place: Place) -> None:
    build, path, what, change = CULPRITS[name]
    value = build(place)
    with pytest.raises(UnsendableError) as told:
        dumps(value, "dataset")
    names = {"path": place.path, "folder": place.folder}
    what, change = what.format(**names), change.format(**names)
    head = told.value.message
    assert head.startswith(f"dataset cannot be sent to a worker: {path} → ") and what in head
    assert change in told.value.hint and told.value.stage == "send"
    cause = told.value.__cause__
    assert cause is not None and type(cause).__name__ in (told.value.detail or "")


def test_there_are_enough_culprits() -> None:
    assert len(CULPRITS) >= 30


def test_h5py_and_lmdb_handles_are_known_by_name(tmp_path: Path) -> None:
    h5py, lmdb = package("h5py"), package("lmdb")
    with h5py.File(tmp_path / "a.h5", "w") as file, lmdb.open(str(tmp_path / "db")) as environment:
        rows = file.create_dataset("rows", data=[1, 2])
        cases = [
            (file, f"h5py.File on {tmp_path}/a.h5", f"h5py.File('{tmp_path}/a.h5', 'r')"),
            (rows, f"h5py.Dataset on {tmp_path}/a.h5", "h5py.File("),
            (
                environment,
                f"lmdb.Environment on {tmp_path}/db",
                f"lmdb.open('{tmp_path}/db', readonly=True, lock=False",
            ),
        ]
        for thing, what, change in cases:
            with pytest.raises(UnsendableError) as told:
                dumps(Holder(source=thing), "dataset")
            assert f"dataset.source → {what}" in told.value.message
            assert change in told.value.hint


def test_an_optional_library_is_not_imported_to_know_its_classes() -> None:
    program = (
        "import sys; from forebay._pickling import sendable; sendable.handles([object()]);"
        "print([m for m in ('h5py', 'lmdb', 'torch', 'pandas', 'cv2', 'sqlite3') if m in sys.modules])"
    )
    import children

    assert children.run(program).stdout == "[]\n"


@pytest.mark.parametrize("root", ["dataset", "collate_fn", "worker_init_fn"])
def test_functions_have_their_own_root(root: str) -> None:
    with pytest.raises(
        UnsendableError, match=rf"^{root} cannot be sent to a worker: {root}\.<closure>\.thing → _thread"
    ):
        dumps(over(threading.Lock()), root)


class Picture:
    def __init__(self, fp: Any) -> None:
        self.fp = fp


def test_a_sample_that_cannot_come_back_is_told_with_its_index_and_what_to_return(place: Place) -> None:
    with pytest.raises(UnsendableError) as told:
        dumps({"image": Picture(place.open()), "label": 3}, "sample", index=137)
    error = told.value
    assert error.message == (
        f'sample 137 cannot be sent from its worker: sample["image"].fp → BufferedReader on {place.path}'
    )
    assert error.index == 137 and "return what was read" in error.hint and "sample 137" in str(error)
    with pytest.raises(UnsendableError) as told:
        dumps((lines(), 3), "sample", index=0)
    assert "sample[0] → generator lines" in told.value.message and "`list(...)`" in told.value.hint


def test_all_culprits_are_told_at_once(place: Place) -> None:
    with pytest.raises(UnsendableError) as told:
        dumps(Holder(lock=threading.Lock(), files=[place.open() for _ in range(5)], db=place.sqlite()), "dataset")
    found = {finding.path: finding for finding in told.value.findings}
    assert set(found) == {"dataset.lock", "dataset.files[0]", "dataset.db"} and found["dataset.files[0]"].count == 5
    assert "also dataset.files[0] → BufferedReader" in (told.value.detail or "") and "4 more there" in str(told.value)


def test_the_error_is_what_pickle_raises_and_forebays_and_survives_pickling() -> None:
    with pytest.raises(UnsendableError) as told:
        dumps(threading.Lock(), "dataset")
    error = told.value
    assert isinstance(error, (TypeError, ValueError)) and isinstance(error, pickle.PicklingError)
    assert error.code == "config" and str(pickle.loads(pickle.dumps(error))) == str(error)


def test_what_can_be_sent_arrives() -> None:
    value = {"f": over(3), "a": np.arange(4), "t": torch.ones(2), "local": local_class_with(1)}
    back = pickle.loads(dumps(value, "dataset"))
    assert back["f"](1) == (1, 3) and back["a"].tolist() == [0, 1, 2, 3] and back["local"].shared == 1
    buffers: list[pickle.PickleBuffer] = []
    data = dumps(np.zeros(100_000), "sample", buffer_callback=buffers.append)
    assert len(data) < 1000 and len(buffers) == 1


class Chain:
    next: Any = None


def chain(length: int) -> Chain:
    first = last = Chain()
    for _ in range(length):
        last.next = Chain()
        last = last.next
    return first


def test_too_deep_is_told_as_that() -> None:
    with pytest.raises(UnsendableError) as told:
        dumps(chain(20_000), "dataset")
    assert "nested too deep" in told.value.message and "steps …" in told.value.message
    assert len(told.value.message) < 300


class Endless:
    """Each is made from another one."""

    def __reduce__(self) -> Any:
        return Endless, (Endless(),)


def test_an_object_without_end_comes_to_an_end() -> None:
    started = time.monotonic()
    with pytest.raises(UnsendableError, match="nested too deep"):
        dumps(Endless(), "dataset")
    assert time.monotonic() - started < 20


def test_one_culprit_among_very_many_is_found() -> None:
    rows: list[Any] = [{"id": number, "words": ["a", "b"]} for number in range(200_000)]
    rows[123_457] = {"id": 0, "words": ["a", threading.Lock()]}
    with pytest.raises(UnsendableError, match=r'dataset\.rows\[123457\]\["words"\]\[1\] → _thread\.lock'):
        dumps(Holder(rows=rows), "dataset")


def test_a_cycle_is_walked_once() -> None:
    looped = Holder(lock=threading.Lock())
    looped.self = looped
    with pytest.raises(UnsendableError) as told:
        dumps(looped, "dataset")
    assert [finding.path for finding in told.value.findings] == ["dataset.lock"]


class NeverTwice:
    """Refuses pickling the first time only: nothing is to be found afterwards."""

    def __init__(self) -> None:
        self.asked = 0

    def __reduce__(self) -> Any:
        self.asked += 1
        if self.asked == 1:
            raise ValueError("not yet")
        return int, ()


def test_what_is_not_found_again_is_told_as_pickle_told_it() -> None:
    with pytest.raises(UnsendableError, match="dataset cannot be sent to a worker: ValueError: not yet") as told:
        dumps([NeverTwice()], "dataset")
    assert "everything in it was looked at" in (told.value.detail or "")


def test_handles_are_named_before_anything_is_sent(place: Place) -> None:
    dataset = Holder(
        text=place.open("r"),
        table=np.memmap(place.path, dtype=np.uint8, mode="r"),
        rng=np.random.default_rng(0),
        draw=random.Random(1),
        generator=torch.Generator(),
        lock=threading.Lock(),
    )
    found = {finding.path.removeprefix("dataset."): finding for finding in handles(dataset)}
    assert {name: finding.blocks for name, finding in found.items()} == {
        "text": False,
        "table": False,
        "rng": False,
        "draw": False,
        "generator": False,
        "lock": True,
    }
    assert "whole text" in found["text"].why and "100 bytes" in found["text"].why
    assert "copy of all its 100 bytes" in found["table"].why and "same numbers" in found["rng"].why
    assert "if self.text is None:" in found["text"].change and f"open('{place.path}')" in found["text"].change
    # What is said of it is true: a text file arrives as text in memory.
    assert isinstance(pickle.loads(cloudpickle.dumps(dataset.text)), io.StringIO)


class Lazy:
    """As it should be."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: Any = open(path, "rb")  # noqa: SIM115

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"file": None}


def test_the_pattern_that_is_advised_has_no_findings(place: Place) -> None:
    dataset = Lazy(place.path)
    place.keep(dataset.file)
    assert handles(dataset) == [] and pickle.loads(dumps(dataset, "dataset")).file is None


class PicklableZip(zipfile.ZipFile):
    """A subclass that knows how to be sent."""

    def __reduce__(self) -> Any:
        return PicklableZip, (self.filename,)


def test_a_subclass_that_can_be_sent_is_left_in_peace(place: Place) -> None:
    place.zip().close()
    with PicklableZip(place.folder / "a.zip") as archive:
        assert handles(Holder(zip=archive)) == []
        pickle.loads(dumps(Holder(zip=archive), "dataset")).zip.close()


def test_many_handles_are_one_finding(place: Place) -> None:
    (finding,) = handles(Holder(files=[place.open("r") for _ in range(40)]))
    assert finding.path == "dataset.files[0]" and finding.count == 40
    assert str(finding).endswith("(and 39 more there)") and "self.files = [open(path) for path in …]" in finding.change


def test_plain_datasets_have_no_findings(tmp_path: Path) -> None:
    tensors = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.arange(4))
    plain = [
        tensors,
        torch.utils.data.ConcatDataset([tensors, tensors]),
        Holder(rows=[{"a": 1}] * 10, module=np, cls=Holder, fn=len, logger=__import__("logging").getLogger("x")),
        Holder(linear=torch.nn.Linear(2, 2), transform=lambda value: value + 1, buffer=io.BytesIO(b"x")),
    ]
    for dataset in plain:
        assert handles(dataset) == []
        dumps(dataset, "dataset")


def test_the_look_before_the_first_batch_is_short() -> None:
    dataset = Holder(rows=[{"id": number, "name": str(number)} for number in range(1_000_000)], lock=threading.Lock())
    gc.collect()
    started = time.monotonic()
    found = handles(dataset)
    assert time.monotonic() - started < 1.0
    assert [finding.path for finding in found] == ["dataset.lock"]


def test_hostile_objects_do_not_stop_the_look() -> None:
    found = handles(Holder(angry=Angry(), endless=Endless(), n=Nonsense(), lock=threading.Lock()))
    paths = [finding.path for finding in found]
    # What comes after the endless one is out of reach; nothing is raised, and nothing hangs.
    assert paths[0] == "dataset.angry"


def test_cuda_tensors_are_explained() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    (finding,) = handles(Holder(table=torch.zeros(3, device="cuda")))
    assert finding.kind == "CUDA tensor" and "CUDA context" in finding.why and not finding.blocks


def test_a_spawn_primitive_can_be_sent_to_a_process_that_is_being_started() -> None:
    from multiprocessing.context import set_spawning_popen

    class Popen:
        def duplicate_for_child(self, descriptor: int) -> int:
            return descriptor

    dataset = Holder(lock=multiprocessing.get_context("spawn").Lock(), other=FORK.Lock())
    set_spawning_popen(Popen())  # type: ignore[arg-type]
    try:
        assert [finding.path for finding in handles(dataset)] == ["dataset.other"]
    finally:
        set_spawning_popen(None)
