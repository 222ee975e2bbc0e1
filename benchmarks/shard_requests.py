"""What a remote tar archive costs in requests and bytes, by the order of its samples: a section of `shards.py`.

A real S3 server on loopback, behind the tests' proxy, which makes every request wait and counts what comes by.
"""

import json
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import bench
import shard_data
from peers.environments import UnavailableError, ensure, last_line, python
from peers.shard_contenders import SECTIONS

NAME, TITLE = "requests", "Requests and bytes of tar archives in an object store"
LATENCY_SECONDS = 0.02
ORDERS = ("global", "window")
WINDOW = 4  # archives that are mixed at a time, of sixteen


def section(arguments: Namespace, stamp: str) -> list[str]:
    """What was counted, as Markdown."""
    about = (
        f"16 tar archives of {arguments.count} pictures and their labels, on a server on loopback (SeaweedFS) behind a "
        f"proxy that lets every request wait for {LATENCY_SECONDS * 1000:.0f} ms; one epoch, shuffled, batches of 64; "
        f'`shuffle="window"` with `shuffle_window={WINDOW}`. Requests and bytes of an epoch are those of '
        '`stats()["storage"]`; the proxy has counted them as well. *Opening* is what the making of the dataset reads '
        "without an index."
    )
    header = "| order | requests a sample | bytes of a sample's own | opening | images/s | by the proxy |"
    lines = [f"## {TITLE}", "", f"{stamp}.", "", about, "", header, "|---|---|---|---|---|---|"]
    try:
        return [*lines, *measured(arguments), ""]
    except UnavailableError as error:
        return [*lines, f"| did not run: {error} | | | | | |", ""]


def measured(arguments: Namespace) -> list[str]:
    """The rows."""
    sys.path.append(str(bench.ROOT / "python" / "tests"))
    import faultproxy
    import objectstore

    if reason := objectstore.why_not():
        raise UnavailableError(reason)
    archives = converted(arguments)
    own = sum(path.stat().st_size for path in archives.parent.glob(f"{archives.name}/*.tar"))
    store = objectstore.ObjectStore()
    try:
        store.put_folder(archives, "tar")
        proxy = faultproxy.FaultProxy(store.port)
        proxy.latency = LATENCY_SECONDS, LATENCY_SECONDS
        try:
            return [row(order, store, proxy, arguments, own) for order in ORDERS]
        finally:
            proxy.close()
    finally:
        store.close()


def converted(arguments: Namespace) -> Path:
    """The archives that webdataset has written for the section on tar."""
    folder = shard_data.ensure_photos(arguments.data, arguments.count)
    peer = SECTIONS["tar"].rows["webdataset"]
    ensure(arguments.environments / "webdataset", peer.packages)
    target = folder.with_name(f"{folder.name}-webdataset")
    if not target.with_name(target.name + ".complete").exists():
        target.mkdir(exist_ok=True)
        line = [python(arguments.environments / "webdataset"), bench.HERE / "convert.py", "webdataset", folder, target]
        subprocess.run(line, check=True)
        target.with_name(target.name + ".complete").write_text("0", "utf-8")
    return target


def row(order: str, store: Any, proxy: Any, arguments: Namespace, own: int) -> str:
    """One order, by a process of its own."""
    options = store.options | {"endpoint_url": f"http://127.0.0.1:{proxy.port}"}
    given = json.dumps({"order": order, "options": options, "threads": arguments.threads})
    requests, received = len(proxy.seen), proxy.body_bytes
    done = subprocess.run([sys.executable, __file__, given], text=True, capture_output=True, check=False)
    if done.returncode:
        raise UnavailableError(last_line(done.stderr))
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if told["samples"] != arguments.count:
        raise UnavailableError(f"expected {arguments.count} samples, got {told['samples']}")
    seen = f"{len(proxy.seen) - requests} requests, {(proxy.body_bytes - received) / 1e6:.1f} MB, opening included"
    opened = f"{told['opened_requests']} requests, {told['opened_bytes'] / 1e6:.1f} MB, {told['opened_seconds']:.1f} s"
    return (
        f'| `shuffle="{order}"` | {told["requests"] / told["samples"]:.2f} | {told["bytes"] / own:.2f}x | {opened} | '
        f"{told['samples'] / told['seconds']:.0f} | {seen} |"
    )


def epoch(order: str, options: dict[str, str], threads: int) -> dict[str, Any]:
    """One epoch of the archives."""
    from contender import training

    import forebay as fb
    from forebay import transforms

    started = time.perf_counter()
    augment = training(transforms)
    dataset = fb.Shards("s3://bucket/tar", augment, fields=("jpg", "cls"), storage_options=options)
    opened_seconds = time.perf_counter() - started
    window = {"shuffle_window": WINDOW} if order == "window" else {}
    loader = fb.DataLoader(dataset, 64, shuffle=order, num_workers=threads, **window)
    before, started = dict(loader.stats()["storage"]), time.perf_counter()
    samples = sum(len(images) for images, _ in loader)
    seconds, after = time.perf_counter() - started, dict(loader.stats()["storage"])
    loader.close()
    return {
        "samples": samples,
        "seconds": seconds,
        "opened_seconds": opened_seconds,
        "opened_requests": before["requests"],
        "opened_bytes": before["bytes_received"],
        "requests": after["requests"] - before["requests"],
        "bytes": after["bytes_received"] - before["bytes_received"],
    }


if __name__ == "__main__":
    print(json.dumps(epoch(**json.loads(sys.argv[1]))))
