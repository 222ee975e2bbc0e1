"""What datasets have in common whose files hold many samples each (docs/files.md)."""

from forebay import _forebay
from forebay._options import storage
from forebay._record import notices
from forebay.datasets.file_dataset import FileDataset, with_arguments
from forebay.datasets.native import ContentDataset
from forebay.errors import ConfigError


@with_arguments
class PartsDataset(ContentDataset, FileDataset):
    """Samples that are parts of files, each read by its range.

    Labels by directory or by a manifest's columns are those of a sample's file; values are for each sample. With
    `mmap=True` files of local disks are mapped into memory, and samples copied from there (docs/loading.md).
    """

    mmap: bool = False

    def _check(self) -> None:
        self.mmap = bool(self.mmap)
        if self.verify is not None:
            raise ConfigError(f"verify: expected None: checksums are of whole files, got {self.verify!r}")

    def _find(self) -> _forebay.Index:
        is_by_file = isinstance(self._labels, str)
        try:
            if self.mmap and self._paths is None and storage.is_url(self._location):
                raise ConfigError(
                    f"mmap: expected files of this machine, got {self._location!r}",
                    hint="leave `mmap` out: what a server has is read by requests",
                )
            found = self._found()
            if self.mmap:
                # Before anything of them is read.
                found.check_mapping()
            parts = self._parts_of(self._labelled(found) if is_by_file else found)
            if self.mmap:
                parts = parts.mapped()
            return parts if is_by_file else self._labelled(parts)
        finally:
            notices.servers()

    def _parts_of(self, files: _forebay.Index) -> _forebay.Index:
        """The samples of files."""
        raise NotImplementedError
