"""What datasets have in common whose files hold many samples each (docs/files.md)."""

from forebay import _forebay
from forebay._record import notices
from forebay.datasets.file_dataset import FileDataset, with_arguments
from forebay.datasets.native import ContentDataset
from forebay.errors import ConfigError


@with_arguments
class PartsDataset(ContentDataset, FileDataset):
    """Samples that are parts of files, each read by its range.

    Labels by directory or by a manifest's columns are those of a sample's file; values are for each sample.
    """

    def _check(self) -> None:
        if self.verify is not None:
            raise ConfigError(f"verify: expected None: checksums are of whole files, got {self.verify!r}")

    def _find(self) -> _forebay.Index:
        is_by_file = isinstance(self._labels, str)
        try:
            found = self._found()
            parts = self._parts_of(self._labelled(found) if is_by_file else found)
            return parts if is_by_file else self._labelled(parts)
        finally:
            notices.servers()

    def _parts_of(self, files: _forebay.Index) -> _forebay.Index:
        """The samples of files."""
        raise NotImplementedError
