"""Datasets with the faults that articles about data loaders describe, one fault each, and two without any.

The doctor makes them in a process of its own: the folder with the data is in the environment.
"""

import ctypes
import errno
import hashlib
import itertools
import os
import pickle
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("FAULTY_FOLDER", "."))


def write(folder: Path, count: int = 60) -> None:
    """Small text files, as all of these read."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        lines = (f"line {line} of file {number}\n" for line in range(50))
        (folder / f"{number:03}.txt").write_text("".join(lines))


class Texts:
    """One sample for each file; opened and closed where it is read. Nothing is wrong with it."""

    def __init__(self) -> None:
        self.paths = sorted(map(str, FOLDER.glob("*.txt")))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index]) as file:
            return file.read()


class Augmented(Texts):
    """A random part of each text: as it should be."""

    def __getitem__(self, index: int) -> Any:
        text = super().__getitem__(index)
        start = random.randrange(len(text) // 2)
        return text[start : start + 10]


# What causes "[Errno 5]"?


class InputOutputError(Texts):
    """A disk with two bad spots."""

    def __getitem__(self, index: int) -> Any:
        if index in (3, 41):
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.paths[index])
        return super().__getitem__(index)


class Flaky(Texts):
    """A mount that fails once for each file."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[int] = set()

    def __getitem__(self, index: int) -> Any:
        if index % 10 == 7 and index not in self.failed:
            self.failed.add(index)
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.paths[index])
        return super().__getitem__(index)


class Hiding(Texts):
    """Prints its errors and goes on with None."""

    def __getitem__(self, index: int) -> Any:
        try:
            if index == 5:
                raise OSError(errno.EIO, os.strerror(errno.EIO), self.paths[index])
            return super().__getitem__(index)
        except OSError as error:
            print(f"could not read {self.paths[index]}: {error}")
            return None


class Missing(Texts):
    """A list that is older than the folder."""

    def __init__(self) -> None:
        super().__init__()
        self.paths[4] = str(FOLDER / "moved.txt")


class Slow(Texts):
    """An overloaded share."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return super().__getitem__(index)


# Why "Bad file descriptor" and EOF in workers?


class OpenedAtOnce(Texts):
    """All files are opened in the constructor, and shared by whoever reads."""

    def __init__(self) -> None:
        super().__init__()
        self.files = [open(path) for path in self.paths]  # noqa: SIM115

    def __getitem__(self, index: int) -> Any:
        return self.files[index].readline()


class OneBigFile(Texts):
    """One binary file for all samples, opened in the constructor."""

    def __init__(self) -> None:
        super().__init__()
        self.file = open(self.paths[0], "rb")  # noqa: SIM115

    def __getitem__(self, index: int) -> Any:
        self.file.seek(index)
        return self.file.read(1)


class ClosedInConstructor(Texts):
    """Its file is closed when the constructor has read its first line."""

    def __init__(self) -> None:
        super().__init__()
        with open(self.paths[0], "rb") as self.file:
            self.first = self.file.readline()

    def __getitem__(self, index: int) -> Any:
        return self.file.readline()


class ReadToItsEnd(Texts):
    """All its samples are pickled one after the other, and the file is at its end after some of them."""

    def __init__(self) -> None:
        super().__init__()
        path = FOLDER / "samples.pickle"
        path.write_bytes(b"".join(pickle.dumps(number) for number in range(20)))
        self.file = open(path, "rb")  # noqa: SIM115

    def __getitem__(self, index: int) -> Any:
        return pickle.load(self.file)


# What caused the RuntimeError in a worker?


class OpenSamples(Texts):
    """Gives the file in place of what is in it."""

    def __getitem__(self, index: int) -> Any:
        return {"text": open(self.paths[index], "rb"), "label": index}


class Connected(Texts):
    """A database connection for all."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = sqlite3.connect(":memory:", check_same_thread=False)


class Guarded(Texts):
    """A cache with a lock, inside of a transform."""

    def __init__(self) -> None:
        super().__init__()
        lock, cache = threading.Lock(), dict[str, int]()

        def count(text: str) -> int:
            with lock:
                return cache.setdefault(text[:20], len(text))

        self.transform = count

    def __getitem__(self, index: int) -> Any:
        return self.transform(super().__getitem__(index))


# Why does a folder on a remote machine fail?


class Popping(Texts):
    """Removes what it cannot read from its own list, and reads another one."""

    def __getitem__(self, index: int) -> Any:
        if self.paths[index].endswith("0.txt"):
            self.paths.pop(index)
            return self[index % len(self.paths)]
        return super().__getitem__(index)


# Does a dataset leak memory?


class LeakingFiles(Texts):
    """Keeps every file that it has opened."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def __getitem__(self, index: int) -> Any:
        file = open(self.paths[index])  # noqa: SIM115
        self.kept.append(file)
        return file.read()


class GrowingList(Texts):
    """Keeps every sample, "for statistics"."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __getitem__(self, index: int) -> Any:
        text = super().__getitem__(index)
        self.seen.append(text * 2)
        return text


class LeakingThreads(Texts):
    """Starts a thread for each sample, and does not end it."""

    def __getitem__(self, index: int) -> Any:
        if threading.active_count() < 600:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().__getitem__(index)


class LeftToCollector(Texts):
    """Opens, and lets the garbage collector close."""

    def __getitem__(self, index: int) -> Any:
        return open(self.paths[index]).read()


class Rows:
    """Very many small Python objects."""

    def __init__(self) -> None:
        self.rows = [{"id": number, "name": f"row {number}"} for number in range(200_000)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


# And what else there is.


class Crashing(Texts):
    """Native code that does not check."""

    def __getitem__(self, index: int) -> Any:
        if index == 17:
            ctypes.string_at(0)
        return super().__getitem__(index)


class Leaving(Texts):
    """Ends the process."""

    def __getitem__(self, index: int) -> Any:
        if index == 11:
            os._exit(3)
        return super().__getitem__(index)


class Hanging(Texts):
    """Reads from a pipe that nobody writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.pipe = FOLDER / "pipe"
        if not self.pipe.exists():
            os.mkfifo(self.pipe)

    def __getitem__(self, index: int) -> Any:
        if index == 13:
            with open(os.open(self.pipe, os.O_RDWR), "rb") as pipe:
                return pipe.read(1)
        return super().__getitem__(index)


class SlowToBegin(Texts):
    """Makes ready when it is first used."""

    is_ready = False

    def __getitem__(self, index: int) -> Any:
        if not self.is_ready:
            time.sleep(4)
            self.is_ready = True
        return super().__getitem__(index)


class ThreadShy(Texts):
    """Native code that belongs to the thread that loaded it."""

    def __getitem__(self, index: int) -> Any:
        if threading.current_thread() is not threading.main_thread():
            ctypes.string_at(0)
        return super().__getitem__(index)


class Quitting(Texts):
    """Takes an error for the end of the program."""

    def __getitem__(self, index: int) -> Any:
        if index == 8:
            raise SystemExit(0)
        return super().__getitem__(index)


class Boasting(Texts):
    """Says that it has more than it has."""

    def __len__(self) -> int:
        return len(self.paths) + 10


class OwnDice(Texts):
    """Random numbers that no seed governs."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[:5], os.urandom(4)


class Computing(Texts):
    """Python code that computes."""

    def __getitem__(self, index: int) -> Any:
        return sum(number * index for number in range(20_000))


class Hashing(Texts):
    """Native code that lets other threads run."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytes(2_000_000)

    def __getitem__(self, index: int) -> Any:
        return hashlib.sha256(self.data).digest()


class Refusing(Texts):
    """Cannot be made."""

    def __init__(self) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/nowhere/labels.csv")


class Vain(Texts):
    """Ends the process while it is made."""

    def __init__(self) -> None:
        os.abort()


class NotRestored(Texts):
    """Can be sent, but not be made again."""

    def __setstate__(self, state: Any) -> None:
        raise KeyError("root")


class Uncounted(Texts):
    """Has no length."""

    def __len__(self) -> int:
        raise NotImplementedError


class Unmade(Texts):
    """Its constructor was forgotten."""

    def __init__(self) -> None:
        pass


class Stream:
    """One after the other, and every worker the same."""

    def __iter__(self) -> Iterator[Any]:
        return iter(range(30))


class ShortStream(Stream):
    """Says that it is longer than it is."""

    def __len__(self) -> int:
        return 40


def sharded_stream() -> Any:
    """Shares its samples among the workers."""
    import torch.utils.data

    class Sharded(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            info = torch.utils.data.get_worker_info()
            start, step = (info.id, info.num_workers) if info else (0, 1)
            return iter(range(start, 30, step))

    return Sharded()


def unsharded_stream() -> Any:
    """Does not."""
    import torch.utils.data

    class Unsharded(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(30))

    return Unsharded()


def endless_stream() -> Any:
    """Has no end."""

    class Endless:
        def __iter__(self) -> Iterator[int]:
            return itertools.count()

    return Endless()


def wants(folder: str) -> Texts:
    """Cannot be called without arguments."""
    return Texts()


loader_like = Texts()
nothing = 7
