"""ResNet-50 in bf16 on a GPU, fed by nothing, by forebay and by torch's DataLoader; writes benchmarks/results/train.md.

The rate without a loader (one batch that stays on the GPU) is what the GPU can eat. Each feed is a process of its own,
in turns. `train.py FEED FOLDER THREADS STEPS` is one of them.
"""

import argparse
import datetime
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import bench
import photos
from contender import training

BATCH_SIZE = 256
WARM_UP_STEPS = 20
FEEDS = {
    "synthetic": "nothing: one batch that stays on the GPU",
    "forebay": 'forebay, `device="cuda"`',
    "pinned": "forebay, `pin_memory=True`, copied by the loop",
    "torch": "torch DataLoader + ImageFolder (PIL), pinned, as many worker processes",
}


def feed(name: str, folder: str, threads: int) -> Iterable[Any]:
    """Endless batches on the GPU."""
    import torch

    if name == "synthetic":
        images = torch.randn(BATCH_SIZE, 3, 224, 224, device="cuda")
        return itertools.repeat((images, torch.randint(0, 10, (BATCH_SIZE,), device="cuda")))
    if name == "torch":
        from torchvision import datasets, transforms

        loader: Any = torch.utils.data.DataLoader(
            datasets.ImageFolder(folder, transform=training(transforms)),
            batch_size=BATCH_SIZE,
            shuffle=True,
            drop_last=True,
            num_workers=threads,
            persistent_workers=True,
            pin_memory=True,
            prefetch_factor=4,
        )
    else:
        import forebay as fb
        from forebay import transforms as native

        dataset = fb.ImageFolder(folder, transform=training(native))
        where: dict[str, Any] = {"device": "cuda"} if name == "forebay" else {"pin_memory": True}
        loader = fb.DataLoader(
            dataset, BATCH_SIZE, shuffle=True, drop_last=True, num_workers=threads, on_error="replace", **where
        )
    return endless(loader)


def endless(loader: Any) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        for images, labels in loader:
            yield images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)


def train(name: str, folder: str, threads: int, steps: int) -> None:
    """Trains, and prints how fast it was."""
    import torch
    import torchvision

    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50(num_classes=10).cuda().to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    started, seen = 0.0, 0
    for step, (images, labels) in enumerate(itertools.islice(feed(name, folder, threads), WARM_UP_STEPS + steps)):
        if step == WARM_UP_STEPS:
            torch.cuda.synchronize()
            started = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images.to(memory_format=torch.channels_last)), labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        seen += len(images) if step >= WARM_UP_STEPS else 0
    torch.cuda.synchronize()
    print(json.dumps({"images": seen, "seconds": time.perf_counter() - started}), flush=True)
    os._exit(0)  # worker processes of a loop that was left take their time


def main() -> None:
    """One feed, or all of them in turns."""
    if len(sys.argv) > 1 and sys.argv[1] in FEEDS:
        train(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description="ResNet-50 bf16, fed by several loaders")
    parser.add_argument("--count", type=int, default=3000, help="pictures")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--feeds", nargs="+", choices=list(FEEDS), default=list(FEEDS))
    parser.add_argument("--data", type=Path, default=bench.HERE / "data")
    parser.add_argument("--output", type=Path, default=bench.HERE / "results" / "train.md")
    arguments = parser.parse_args()
    folder = arguments.data / f"photos-{arguments.count}"
    photos.ensure(folder, arguments.count)
    rates: dict[str, list[float]] = {name: [] for name in arguments.feeds}
    for number in range(arguments.rounds):
        for name in bench.drawn(arguments.feeds, number):
            line = [sys.executable, __file__, name, str(folder), str(arguments.threads), str(arguments.steps)]
            told = bench.run(line)
            rates[name].append(told["images"] / told["seconds"])
            print(f"round {number}  {name:9}  {rates[name][-1]:7.0f} images/s", flush=True)
    import torch

    lines = [
        "# Training",
        "",
        f"Measured {datetime.date.today()} by `benchmarks/train.py`. {torch.cuda.get_device_name()},",
        f"{bench.machine()}.",
        f"{bench.versions()}.",
        "",
        f"ResNet-50, bf16 autocast, channels_last, batches of {BATCH_SIZE}, {arguments.steps} steps after "
        f"{WARM_UP_STEPS}; {arguments.count} JPEGs of {photos.WIDTH}x{photos.HEIGHT} in the page cache, "
        f"RandomResizedCrop(224), flip, ToTensor, Normalize; {arguments.threads} threads or worker processes; medians "
        f"of {arguments.rounds} rounds.",
        "",
        "| fed by | images/s | of what the GPU can eat |",
        "|---|---|---|",
    ]
    for name in arguments.feeds:
        rate = median(rates[name])
        share = f"{rate / median(rates['synthetic']):.2f}" if "synthetic" in rates else ""
        spread = f"{min(rates[name]):.0f} to {max(rates[name]):.0f}"
        lines.append(f"| {FEEDS[name]} | {rate:.0f} ({spread}) | {share} |")
    text = "\n".join(lines) + "\n"
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
