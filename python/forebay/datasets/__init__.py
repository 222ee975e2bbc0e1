"""forebay's own datasets: read and decoded by threads of the engine, and never by Python code."""

from forebay.datasets.files import BinaryFiles, ImageFiles, NpyFiles, NpzFiles, Records, SafetensorsFiles, TextFiles
from forebay.datasets.folder import IMG_EXTENSIONS, DatasetFolder, ImageFolder, default_loader
from forebay.datasets.joined import Concatenation, Mixture, concat, mix
from forebay.datasets.lines import Csv, JsonLines, TextLines
from forebay.datasets.native import NativeDataset
from forebay.datasets.shards import Shards
from forebay.datasets.tokens import Tokens

__all__ = [
    "IMG_EXTENSIONS",
    "BinaryFiles",
    "Concatenation",
    "Csv",
    "DatasetFolder",
    "ImageFiles",
    "ImageFolder",
    "JsonLines",
    "Mixture",
    "NativeDataset",
    "NpyFiles",
    "NpzFiles",
    "Records",
    "SafetensorsFiles",
    "Shards",
    "TextFiles",
    "TextLines",
    "Tokens",
    "concat",
    "default_loader",
    "mix",
]
