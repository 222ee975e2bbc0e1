"""A virtual environment for each peer, on top of the one that this runs in: torch alone is some GB, and is shared.

A peer's packages come first; a .pth file adds the packages of the base after them. What the peer needs in another
version than the base has it is installed beside it, all but torch itself: each peer is to run with the same one.
"""

import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

SHARED = ("torch", "torchvision", "pillow")


class UnavailableError(Exception):
    """A peer cannot be installed or does not run; the text is for its row."""


def python(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / "bin" / "python"


def ensure(folder: Path, packages: tuple[str, ...]) -> None:
    """Makes sure that the environment has exactly these packages, given as name==version."""
    pins = [f"{name}=={version(name)}" for name in SHARED]
    wanted = "\n".join([sys.executable, *pins, *packages]) + "\n"
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text("utf-8") == wanted:
        return
    print(f"installing {' '.join(packages)} into {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        # pip is the base's: it is found as torch is, and installs into the environment whose Python runs it.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        site = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        (site / "base.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(pins) + "\n", "utf-8")
        pip = [python(folder), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "--constraint", constraints, *packages], check=True, text=True, stderr=subprocess.PIPE, timeout=900
        )
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"pip: {last_line(error.stderr or str(error))}") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError("pip had not finished after 900 s") from error
    stamp.write_text(wanted, "utf-8")


def last_line(text: str) -> str:
    """The line of a failed program's output that says most, short enough for a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "ERROR" in line]
    line = (errors or lines or ["no output"])[-1]
    return line if len(line) <= 160 else line[:157] + "..."
