"""Fixtures: a clean folder, and digests of what a loader gives."""

import hashlib
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import faultfs
import folders
import objectstore
from forebay import transforms as T
from forebay._python.workers.process import fork_server
from forebay._record import notices
from missing import missing


@pytest.fixture(autouse=True, scope="session")
def light_fork_servers() -> None:
    """This process has imported everything that any test needs; workers of one test would wait for all of it."""
    fork_server.PRELOADED = ("numpy", "numpy.random", "torch", "torch.utils.data")


@pytest.fixture(autouse=True, scope="session")
def ctrl_c() -> None:
    """A shell that starts the tests in the background has them ignore SIGINT, and their children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """24 pictures of two classes."""
    root = tmp_path / "data"
    folders.write_folder(root)
    return root


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds what tests need before the first one starts: a build would use up its time."""
    names = (name for item in session.items for name in getattr(item, "fixturenames", ()))
    if any(name.endswith("_fs") for name in names) and not faultfs.why_not():
        faultfs.program()


@pytest.fixture
def fault_fs(folder: Path) -> Iterator[faultfs.FaultFs]:
    """The clean folder behind a mount that fails as told."""
    if why_not := faultfs.why_not():
        missing("fuse", why_not)
    mounted = faultfs.FaultFs(folder)
    yield mounted
    mounted.close()


@pytest.fixture(scope="module")
def store() -> Iterator[objectstore.ObjectStore]:
    """A server of objects, one for all tests of a file."""
    if why_not := objectstore.why_not():
        missing("weed", why_not)
    started = objectstore.ObjectStore()
    yield started
    started.close()


@pytest.fixture
def augment() -> T.Compose:
    """Random crop, flip and colours: what must be the same whatever the threads do."""
    return T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ColorJitter(0.2, 0.2, 0.2), T.ToTensor()])


@pytest.fixture
def plain() -> T.Compose:
    return T.Compose([T.Resize((24, 32)), T.ToTensor()])


@pytest.fixture
def digests() -> Callable[[Iterable[Any]], list[str]]:
    """One digest per sample, of its bytes and its label, in the order of delivery."""

    def of(batches: Iterable[Any]) -> list[str]:
        return [
            hashlib.blake2b(image.numpy().tobytes() + str(int(label)).encode(), digest_size=8).hexdigest()
            for images, labels in batches
            for image, label in zip(images, labels, strict=True)
        ]

    return of


@pytest.fixture(autouse=True)
def _forget_notices() -> None:
    """Each test is told of costs anew."""
    notices._said.clear()
