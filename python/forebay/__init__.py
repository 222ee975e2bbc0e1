"""forebay: whatever the storage does, the training loop gets its next batch."""

from forebay import errors, transforms
from forebay._doctor import doctor
from forebay._failures import Failure
from forebay._forebay import __version__
from forebay._signal import dump_on_signal
from forebay._workers import spare as _spare
from forebay.datasets import DatasetFolder, ImageFolder
from forebay.errors import ForebayError
from forebay.loader import DataLoader
from forebay.manifest import Manifest

__all__ = [
    "DataLoader",
    "DatasetFolder",
    "Failure",
    "ForebayError",
    "ImageFolder",
    "Manifest",
    "__version__",
    "doctor",
    "dump_on_signal",
    "errors",
    "transforms",
]

_spare.prepare_early()
