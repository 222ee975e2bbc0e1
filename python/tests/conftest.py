"""Fixtures: a clean folder, and digests of what a loader gives."""

import hashlib
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import children
import faultfs
import folders
import objectstore
from forebay import transforms as T
from forebay._python.workers.process import fork_server
from forebay._record import notices
from missing import missing


@pytest.fixture(autouse=True, scope="session")
def light_fork_servers() -> None:
    """This process has imported everything that any test needs; workers of one test would wait for all of it.

    pytest is what the module of every test imports.
    """
    fork_server.PRELOADED = ("numpy", "numpy.random", "torch", "torch.utils.data", "pytest")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """pytest notes each test's name in the environment, and another environment wants another template of workers.

    Without the name, the tests of a module share one, as loaders of a program do.
    """
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    return (yield)


@pytest.fixture(autouse=True, scope="session")
def ctrl_c() -> None:
    """A shell that starts the tests in the background has them ignore SIGINT, and their children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_child_outlives_its_test() -> Iterator[None]:
    yield
    children.end_all()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """24 pictures of two classes."""
    root = tmp_path / "data"
    folders.write_folder(root)
    return root


# The files that take longest, longest first. Started in this order, no processor waits at the end for one of them.
LONGEST = (
    "test_workers_deaths.py",
    "test_doctor.py",
    "test_integrations.py",
    "test_workers_transport.py",
    "test_workers.py",
    "test_remote.py",
    "test_workers_leaks.py",
    "test_lifecycle.py",
    "test_loader.py",
    "test_faults.py",
    "test_dropin_errors.py",
    "test_workers_life.py",
    "test_mirror.py",
    "test_manifest.py",
    "test_dropin_memory.py",
    "test_ranks.py",
    "test_every_dataset.py",
    "test_dropin_deaths.py",
    "test_hangs.py",
    "test_leaks.py",
    "test_hang_matrix.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))


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
