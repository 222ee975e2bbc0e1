"""What `shards.py` reads: pictures, each a class of its own, so that labels say which were delivered; tokens; lines."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import photos
from peers.environments import UnavailableError, last_line

FEW_TOKENS, FEW_LINES = 2_000_000, 20_000  # of what is compared and not timed
FILES = 4


def ensure_photos(data: Path, count: int) -> Path:
    """Pictures of 500x375, in a directory each, which is called by its number."""
    drawn, folder = data / f"photos-{count}", data / f"numbered-{count}"
    photos.ensure(drawn, count)
    if not folder.exists():
        making = fresh(folder)
        for number, path in enumerate(sorted(drawn.rglob("*.jpg"), key=lambda path: path.name)):
            (making / f"{number:05}").mkdir()
            os.link(path, making / f"{number:05}" / path.name)
        making.rename(folder)
    return folder


def ensure_tokens(data: Path, count: int) -> Path:
    """A file of random tokens, and the first of them as another one."""
    folder = data / f"tokens-{count}"
    if not folder.exists():
        print(f"writing {count} tokens into {folder}", flush=True)
        making, generator = fresh(folder), np.random.default_rng(7)
        with (making / "tokens.bin").open("wb") as file:
            for start in range(0, count, 1 << 24):
                generator.integers(0, 50_257, min(1 << 24, count - start), np.uint16).tofile(file)
        np.fromfile(making / "tokens.bin", np.uint16, FEW_TOKENS).tofile(making / "few.bin")
        making.rename(folder)
    return folder


def ensure_lines(data: Path, count: int) -> Path:
    """Four files of lines, and four of the first of them."""
    folder = data / f"lines-{count}"
    if not folder.exists():
        print(f"writing {count} lines into {folder}", flush=True)
        making, generator = fresh(folder), np.random.default_rng(8)
        letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz     ", np.uint8)
        for name in ("lines", "few"):
            (making / name).mkdir()
        for number in range(FILES):
            lengths = generator.integers(60, 180, count // FILES)
            text = letters[generator.integers(0, len(letters), int(lengths.sum()), np.uint8)]
            ends = np.cumsum(lengths) - 1
            text[ends] = ord("\n")
            text.tofile(making / "lines" / f"{number}.txt")
            few = ends[min(FEW_LINES // FILES, len(ends)) - 1] + 1
            text[:few].tofile(making / "few" / f"{number}.txt")
        making.rename(folder)
    return folder


def ensure_packed(data: Path, count: int) -> Path:
    """The pictures as `forebay pack` writes them, with landmarks in the index beside the shards."""
    source, folder = ensure_photos(data, count), data / f"packed-{count}"
    if not folder.exists():
        making = fresh(folder)
        shards = making / "shards"
        index = f"import forebay; forebay.Shards({str(shards)!r}, fields=('jpg', 'cls'), index=True, landmarks=True)"
        for line in (["-m", "forebay", "pack", str(source), "-o", str(shards)], ["-c", index]):
            done = subprocess.run([sys.executable, *line], text=True, capture_output=True, check=False)
            if done.returncode:
                raise UnavailableError(f"{' '.join(line[1:3])}: {last_line(done.stderr)}")
        (making / "folder").symlink_to(source.absolute())
        making.rename(folder)
    return folder


def fresh(folder: Path) -> Path:
    """An empty folder beside it, which gets its name when it is complete."""
    making = folder.with_name(folder.name + "-making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    return making


ENSURE: dict[str, Callable[[Path, int], Path]] = {
    "photos": ensure_photos,
    "tokens": ensure_tokens,
    "lines": ensure_lines,
    "packed": ensure_packed,
}
