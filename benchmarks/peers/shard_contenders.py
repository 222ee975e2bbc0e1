"""The contenders of `make bench-shards`, by section of its page. The first row of a section is what the others are
compared with; `least` of another row says how many times as fast it is to be."""

import dataclasses
from typing import Any

from peers.contenders import CONTENDERS, V2, Contender

WEBDATASET, TURBOLOADER, LITDATA, MOSAICML = (
    CONTENDERS[name].packages for name in ("webdataset", "turboloader", "litdata", "mosaicml")
)
HUGGING_FACE = ("datasets==5.2.0",)
EPOCHS = 4  # of forebay
PACKED = {"below": "shards", "fields": ("jpg", "cls")}
PICTURES = "RandomResizedCrop(224), flip, normalise; batches of 64 as float32 NCHW with their labels"


@dataclasses.dataclass(frozen=True)
class Row(Contender):
    """A row, and what is wanted of its section's first row beside it."""

    least: float | None = None
    reads: str = ""  # the peer whose conversion it reads
    reads_packages: tuple[str, ...] = ()
    is_checked: bool = True  # not where samples are drawn at random
    epochs: int = 1  # later ones, for turns of epochs: more for what is fast


@dataclasses.dataclass(frozen=True)
class Section:
    """What one table says."""

    title: str
    about: str
    data: str  # of shard_data.py
    turn: str  # of turns.py
    rows: dict[str, Row]
    check: str = ""  # how pictures are made to compare them; "only" for what has no pictures
    tells: str = "images/s"
    bytes_per_sample: tuple[int, int] | None = None  # in the file, and as delivered


def forebay(reads: str, packages: tuple[str, ...], title: str = "forebay Shards", **options: Any) -> Row:
    """forebay, of what a peer has written."""
    differs = "decodes the crop only; pixels as torchvision's"
    return Row(title, differs, "own", options=options, reads=reads, reads_packages=packages, epochs=EPOCHS)


def tokens(length: int) -> Section:
    """Windows of this length."""
    options = {"length": length}
    return Section(
        f"Windows of {length} tokens of one file",
        "A file of `uint16` tokens in the page cache, read in windows that do not overlap, shuffled, in batches of 64: "
        "tokens and targets as int64. Timed are 2 s of one epoch, after 0.7 s. *Of the file* are the bytes that a "
        "window's tokens take there, *delivered* those of tokens and targets.",
        "tokens",
        "for+2",
        {
            "forebay": Row("forebay Tokens", module="own", options=options | {"kind": "tokens"}),
            "memmap": Row("torch DataLoader, `numpy.memmap` in `__getitem__`", "nothing", options=options, least=5),
            "get_batch": Row(
                "nanoGPT's `get_batch`, in the loop itself",
                "drawn with replacement at any place; no workers; nothing is ahead of the loop",
                "memmap",
                options=options | {"drawn": True},
                is_checked=False,
            ),
            "turboloader": Row(
                "TurboLoader's TokenDataLoader",
                "starts at random places",
                "turboloader",
                TURBOLOADER,
                options,
                is_checked=False,
            ),
        },
        check="only",
        tells="samples/s",
        bytes_per_sample=(2 * length, 16 * length),
    )


SECTIONS = {
    "tar": Section(
        "Tar archives, 16 of them",
        f"{PICTURES}.",
        "photos",
        "first",
        {
            "forebay": forebay("webdataset", WEBDATASET, fields=("jpg", "cls")),
            "webdataset": Row(
                "webdataset, WebLoader",
                f"{V2}; shuffles within a buffer of 1000",
                packages=WEBDATASET,
                is_converted=True,
                least=5,
            ),
        },
        check="crop",
    ),
    "turboloader": Section(
        "One tar archive of pictures alone",
        f"{PICTURES}; the labels are places in the archive.",
        "photos",
        "first",
        {
            "forebay": forebay("turboloader", TURBOLOADER, fields="jpg"),
            "turboloader": Row(
                "TurboLoader",
                "decodes the crop only; scaled decoding and no filter against aliasing: not the same pixels",
                packages=TURBOLOADER,
                is_converted=True,
                least=2,
            ),
            "turboloader-antialias": Row(
                "TurboLoader, antialias=True",
                "decodes the crop only",
                "turboloader",
                TURBOLOADER,
                {"antialias": True},
                is_converted=True,
                least=2,
            ),
        },
        check="squashed",
    ),
    "mds": Section(
        "MDS shards of MosaicML Streaming",
        f"{PICTURES}.",
        "photos",
        "first",
        {
            "forebay": forebay("mosaicml", MOSAICML),
            "mosaicml": Row(
                "StreamingDataset, StreamingDataLoader",
                V2,
                "mosaicml",
                MOSAICML,
                {"streaming": True},
                is_converted=True,
                least=4,
            ),
        },
        check="crop",
    ),
    "litdata": Section(
        "LitData's chunks, with pictures as leaves",
        f"{PICTURES}.",
        "photos",
        "first",
        {
            "forebay": forebay("litdata_jpeg", LITDATA),
            "litdata_jpeg": Row(
                "StreamingDataset, StreamingDataLoader", V2, packages=LITDATA, is_converted=True, least=4
            ),
        },
        check="crop",
    ),
    "litdata-rows": Section(
        "LitData's chunks, with the files as bytes",
        f"{PICTURES}. LitData writes such rows as an Arrow file behind the table of a chunk.",
        "photos",
        "first",
        {
            "forebay": forebay("litdata", LITDATA),
            "litdata": Row("StreamingDataset, StreamingDataLoader", V2, packages=LITDATA, is_converted=True, least=4),
        },
        check="crop",
    ),
    "tokens": tokens(1024),
    "tokens-4096": tokens(4096),
    "lines": Section(
        "Lines of large text files",
        "Lines of 60 to 180 bytes, shuffled, in batches of 64. Timed are 2 s of one epoch, after 0.7 s; until the "
        "first batch, forebay and torch's Dataset find the lines. `datasets` has converted the files before.",
        "lines",
        "for+2",
        {
            "forebay": Row("forebay TextLines", module="own", options={"kind": "lines"}),
            "seek_lines": Row("torch DataLoader, an index of lines, `seek` and `readline`", "nothing", least=5),
            "huggingface-text": Row(
                "`datasets`, texts in Arrow, torch DataLoader",
                "reads its own copy of the files",
                "huggingface",
                HUGGING_FACE,
                {"kind": "text"},
                is_converted=True,
            ),
        },
        check="only",
        tells="samples/s",
    ),
    "arrow": Section(
        "Hugging Face's Arrow on disk (`save_to_disk`)",
        f"{PICTURES}.",
        "photos",
        "first",
        {
            "forebay": forebay("huggingface", HUGGING_FACE, below="arrow"),
            "huggingface": Row(
                "`datasets`, torch DataLoader",
                V2,
                packages=HUGGING_FACE,
                options={"kind": "arrow"},
                is_converted=True,
                least=4,
            ),
        },
        check="crop",
    ),
    "parquet": Section(
        "The same as Parquet files",
        f"{PICTURES}.",
        "photos",
        "first",
        {
            "forebay": forebay("huggingface", HUGGING_FACE, below="parquet"),
            "huggingface-parquet": Row(
                "`datasets`, `streaming=True`, torch DataLoader",
                f"{V2}; shuffles within a buffer of 1000",
                "huggingface",
                HUGGING_FACE,
                {"kind": "parquet"},
                is_converted=True,
                least=4,
            ),
        },
        check="crop",
    ),
    "landmarks": Section(
        "The first epoch, from shards that `forebay pack` has written",
        f"{PICTURES}. With landmarks in the index of the shards, forebay knows the pictures before it has read any; "
        "compared is the first epoch.",
        "packed",
        "first",
        {
            "forebay": Row("forebay Shards, with landmarks", module="own", options=PACKED, epochs=EPOCHS),
            "packed": Row(
                "the same, `landmarks=False`", module="own", options=PACKED | {"landmarks": False}, epochs=EPOCHS
            ),
            "folder": Row(
                "forebay ImageFolder, the files", module="own", options={"kind": "folder"}, epochs=EPOCHS, least=1.1
            ),
        },
        check="crop",
    ),
}
