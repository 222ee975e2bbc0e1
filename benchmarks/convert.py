"""`convert.py PEER FOLDER TARGET`: writes the pictures in the format that a peer reads; in the peer's environment."""

import importlib
import sys
from pathlib import Path


def main() -> None:
    """Converts once."""
    peer, folder, target = sys.argv[1:]
    importlib.import_module(f"peers.{peer}").convert(Path(folder), Path(target))


if __name__ == "__main__":
    main()
