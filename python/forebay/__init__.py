"""forebay: whatever the storage does, the training loop gets its next batch."""

from forebay import errors, transforms
from forebay._doctor import doctor
from forebay._forebay import __version__
from forebay._native.dump_signal import dump_on_signal
from forebay._python.workers.process import spare_fork_servers as _spare
from forebay._record.failures import Failure
from forebay.datasets import (
    BinaryFiles,
    Csv,
    DatasetFolder,
    ImageFiles,
    ImageFolder,
    JsonLines,
    NpyFiles,
    NpzFiles,
    Records,
    SafetensorsFiles,
    Shards,
    TextFiles,
    TextLines,
    Tokens,
    concat,
    mix,
)
from forebay.errors import ForebayError
from forebay.loader import DataLoader
from forebay.manifest import Manifest
from forebay.samplers import BalancedSampler, WeightedSampler

__all__ = [
    "BalancedSampler",
    "BinaryFiles",
    "Csv",
    "DataLoader",
    "DatasetFolder",
    "Failure",
    "ForebayError",
    "ImageFiles",
    "ImageFolder",
    "JsonLines",
    "Manifest",
    "NpyFiles",
    "NpzFiles",
    "Records",
    "SafetensorsFiles",
    "Shards",
    "TextFiles",
    "TextLines",
    "Tokens",
    "WeightedSampler",
    "__version__",
    "concat",
    "doctor",
    "dump_on_signal",
    "errors",
    "mix",
    "transforms",
]

_spare.prepare_early()
