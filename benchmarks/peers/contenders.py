"""The contenders of `make bench-peers`, with the versions that are installed of each: a row is a line here.

A variant of one is a line too: another name, its module and options, as
`"forebay-2": Contender("forebay, other", "what differs", "forebay", options={...})`.
"""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Contender:
    """A row: what runs, in which environment, and in what it differs from the others."""

    title: str
    differs: str = ""
    module: str = ""  # of `peers`, or a name that contender.py knows; its own name if it is not given
    packages: tuple[str, ...] = ()  # none: it runs in the base environment
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_converted: bool = False


CROP_ONLY = "decodes the crop only"
V2 = "decodes with torchvision.io, transforms v2"
CONTENDERS = {
    "forebay": Contender("forebay", f"{CROP_ONLY}; pixels as torchvision's"),
    "forebay-without-landmarks": Contender(
        "forebay without landmarks", "the same, no picture known from an earlier epoch", "without-landmarks"
    ),
    "forebay-1": Contender("forebay, 1 thread", "half of the others' threads", "forebay", options={"num_workers": 1}),
    "forebay-fast": Contender(
        'forebay, decode="fast"',
        f"{CROP_ONLY}; scaled decoding: not the same pixels",
        "forebay",
        options={"decode": "fast"},
    ),
    "torch": Contender("torch DataLoader, PIL, transforms v1"),
    "torch_v2": Contender("torch DataLoader, torchvision.io, transforms v2"),
    "opencv": Contender(
        "torch DataLoader, OpenCV", "INTER_AREA where the crop shrinks", packages=("opencv-python-headless==5.0.0.93",)
    ),
    "turboloader": Contender(
        "TurboLoader",
        f"tar; {CROP_ONLY}; scaled decoding and no filter against aliasing: not the same pixels",
        packages=("turboloader==2.39.0",),
        is_converted=True,
    ),
    "turboloader-antialias": Contender(
        "TurboLoader, antialias=True",
        f"tar; {CROP_ONLY}",
        "turboloader",
        packages=("turboloader==2.39.0",),
        options={"antialias": True},
        is_converted=True,
    ),
    "dali": Contender(
        "NVIDIA DALI, CPU only",
        f"{CROP_ONLY}; shuffles within a buffer of 1024",
        packages=("nvidia-dali-cuda130==2.4.0",),
    ),
    "spdl": Contender("SPDL", "decodes, crops and scales with FFmpeg, in YUV", packages=("spdl==0.8.0",)),
    "datago": Contender(
        "datago",
        "no random crop: the middle square, resized; flip and normalise by torch in the consumer",
        packages=("datago==2026.10.1",),
    ),
    "webdataset": Contender(
        "WebDataset",
        f"16 tars; {V2}; shuffles within a buffer of 1000",
        packages=("webdataset==1.0.2",),
        is_converted=True,
    ),
    "litdata": Contender("LitData", f"its own chunks; {V2}", packages=("litdata==0.2.76",), is_converted=True),
    "mosaicml": Contender(
        "MosaicML Streaming", f"MDS shards; {V2}", packages=("mosaicml-streaming==0.13.0",), is_converted=True
    ),
}
