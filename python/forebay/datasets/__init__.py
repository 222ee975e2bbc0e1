"""forebay's own datasets: read and decoded by threads of the engine, and never by Python code."""

from forebay.datasets.files import BinaryFiles, ImageFiles, NpyFiles, Records, TextFiles
from forebay.datasets.folder import IMG_EXTENSIONS, DatasetFolder, ImageFolder, default_loader
from forebay.datasets.native import NativeDataset

__all__ = [
    "IMG_EXTENSIONS",
    "BinaryFiles",
    "DatasetFolder",
    "ImageFiles",
    "ImageFolder",
    "NativeDataset",
    "NpyFiles",
    "Records",
    "TextFiles",
    "default_loader",
]
