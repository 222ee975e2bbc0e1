"""From a native batch to what the user's loop gets: targets, collation, pinning. Runs in the consumer's thread."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forebay import _forebay
from forebay._arrays import python_values, torch_arrays
from forebay._forebay import Array, Batch, Engine
from forebay._options.settings import Form, Ragged
from forebay.datasets.native import NativeDataset
from forebay.errors import ConfigError


class Output(Protocol):
    """The functions that `torch_arrays` and `numpy_arrays` both have."""

    def tensor(self, array: Array) -> Any: ...
    def integers(self, values: Sequence[int]) -> Any: ...
    def collate(self, values: Sequence[Any]) -> Any: ...
    def convert(self, value: Any, dtype: str | None, is_channels_last: bool) -> Any: ...
    def element_bytes(self, value: Any, dtype: str) -> bytes: ...
    def as_nested(self, tensors: Sequence[Any]) -> Any: ...


@dataclass(frozen=True)
class Delivery:
    """How the batches of a loader are handed over."""

    dataset: NativeDataset
    output: Output
    form: Form
    ragged: Ragged
    collate_fn: Callable[[Any], Any] | None
    is_batched: bool
    is_pinned: bool
    with_ids: bool
    copier: torch_arrays.Copier | None
    # Whose batches are written to pinned memory in the first place.
    lends_to: Engine | None
    # The user's callable that samples come from, where it is the last one.
    made_by: str | None

    def lend(self) -> None:
        """Lends memory for the batches to come."""
        if self.lends_to is not None:
            torch_arrays.lend(self.lends_to)

    def hand_over(self, batch: Batch) -> Any:
        made = self._make(batch)
        return torch_arrays.pin(made) if self.is_pinned else made

    def _make(self, batch: Batch) -> Any:
        has_targets = self.dataset._targets_are != "none"
        if self.collate_fn is None and self.is_batched:
            content = {name: self._column(batch, name, values) for name, values in batch.content.items()}
            columns = [self.dataset._arranged(content)]
            columns += [self._stack_targets(batch)] if has_targets else []
            columns += [self.output.integers(batch.indices)] if self.with_ids else []
            return columns if len(columns) > 1 else columns[0]
        lists = [self._samples(batch)]
        lists += [self._targets(batch)] if has_targets else []
        lists += [batch.indices] if self.with_ids else []
        is_bare = len(lists) == 1
        rows: list[Any] = lists[0] if is_bare else list(zip(*lists, strict=True))
        if self.is_batched:
            return self.collate_fn(rows) if self.collate_fn else rows
        # torch's `default_convert` makes a list of a pair, and `collate_fn` gets the pair itself.
        if self.collate_fn:
            return self.collate_fn(rows[0])
        return rows[0] if is_bare else list(rows[0])

    def _only(self, columns: Mapping[str, Any]) -> Any:
        """The one column of labels, or all of them by name."""
        return next(iter(columns.values())) if len(columns) == 1 else dict(columns)

    def _column(self, batch: Batch, name: str, values: Array | list[Any]) -> Any:
        if self.ragged.kind is None and name in self.dataset._ragged_columns():
            return self._separate(values)
        return self._stack(batch, values)

    def _stack(self, batch: Batch, values: Array | list[Any]) -> Any:
        if isinstance(values, Array):
            return self._stack_dense(self.output.tensor(values))
        if values and isinstance(values[0], str | bytes):
            return values
        if self.ragged.kind is not None and all(
            isinstance(value, Array) and value.kind == "tensor" for value in values
        ):
            return self._stack_ragged(values)
        samples = [self._sample(value) for value in values]
        if self.dataset._lists_objects and samples and isinstance(samples[0], dict | list | None):
            return samples
        self._check_shapes(batch, samples)
        return self._converted(self.output.collate(tuple(samples)))

    def _stack_dense(self, batch: Any) -> Any:
        if self.ragged.kind == "list":
            return list(batch)
        return self.output.as_nested(list(batch)) if self.ragged.kind == "nested" else batch

    def _stack_ragged(self, arrays: list[Array]) -> Any:
        if self.ragged.kind == "list":
            return [self.output.tensor(array) for array in arrays]
        if self.ragged.kind == "nested":
            return self.output.as_nested([self.output.tensor(array) for array in arrays])
        dtype = arrays[0].dtype if arrays else "float32"
        return self.output.tensor(_forebay.pad(arrays, self.output.element_bytes(self.ragged.pad_value, dtype)))

    def _stack_targets(self, batch: Batch) -> Any:
        if self.dataset.target_transform is not None:
            return self.output.collate(tuple(self._targets(batch)))
        columns = {
            name: self.output.tensor(values) if isinstance(values, Array) else values
            for name, values in batch.scalars.items()
        }
        return columns if self.dataset._targets_are == "dict" else self._only(columns)

    def _samples(self, batch: Batch) -> list[Any]:
        """Each sample by itself; those of a dense batch are views of it."""
        columns = {name: self._separate(values) for name, values in batch.content.items()}
        rows = zip(*columns.values(), strict=True)
        return [self.dataset._arranged(dict(zip(columns, row, strict=True))) for row in rows]

    def _separate(self, values: Array | list[Any]) -> list[Any]:
        if isinstance(values, Array):
            return list(self.output.tensor(values))
        return [self._converted(self._sample(value)) for value in values]

    def _converted(self, value: Any) -> Any:
        """What the engine did not write in the type and order asked for: it did not know its shape."""
        if not self.form.is_given:
            return value
        dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
        if not dtype:
            raise ConfigError(
                f"dtype and memory_format: expected transforms that give tensors, got {type(value).__qualname__}",
                stage="assemble",
                hint="give each sample its type in the transform that makes it, or in collate_fn",
            )
        if self.form.dtype == "uint8" and dtype != "uint8":
            raise ConfigError(
                f'dtype: expected transforms that end in uint8 for "uint8", got {dtype}',
                stage="assemble",
                hint="leave the floats out of the transforms, and normalise on the GPU",
            )
        if self.form.is_channels_last and len(value.shape) not in (3, 4):
            raise ConfigError(
                'memory_format: expected samples of (channels, height, width) for "channels_last", '
                f"got a tensor of {tuple(value.shape)}",
                stage="assemble",
            )
        return self.output.convert(value, self.form.dtype, self.form.is_channels_last)

    def _sample(self, value: Any) -> Any:
        if isinstance(value, Array) and value.kind == "tensor":
            return self.output.tensor(value)
        return python_values.to_python(value)

    def _targets(self, batch: Batch) -> list[Any]:
        return [self.dataset.target_at(sample) for sample in batch.indices]

    def _check_shapes(self, batch: Batch, samples: list[Any]) -> None:
        """Says which samples do not fit together, before a collation says only that some do not."""
        path_of = self.dataset._index.path
        for sample, index in zip(samples, batch.indices, strict=True):
            if sample is None:
                path = path_of(index)
                raise ConfigError(
                    f'{self.made_by} returned None for "{path}" (expected a tensor)',
                    path=path,
                    index=index,
                    stage="assemble",
                    hint="let it return its result; to leave samples out, raise an exception and pass "
                    'on_error="replace" or "skip", or pass a collate_fn that takes None',
                )
            if python_values.is_pillow(sample):
                path = path_of(index)
                raise ConfigError(
                    f'"{path}" came out of the transforms as a PIL image (expected a tensor)',
                    path=path,
                    index=index,
                    stage="assemble",
                    hint="end the transforms with ToTensor(), or pass a collate_fn",
                )
        shapes = [tuple(getattr(sample, "shape", ())) for sample in samples]
        other = next((position for position, shape in enumerate(shapes) if shape != shapes[0]), None)
        if other is not None:
            first, second = (path_of(batch.indices[position]) for position in (0, other))
            raise ConfigError(
                f'samples of different shapes do not make a batch: "{first}" has {shapes[0]}, '
                f'"{second}" has {shapes[other]}',
                path=second,
                index=batch.indices[other],
                stage="assemble",
                hint='pass ragged="list", "pad" or "nested", or a collate_fn; of pictures, give all one size (Resize '
                "with height and width, or a crop)",
            )
