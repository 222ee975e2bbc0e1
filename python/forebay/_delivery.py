"""From a native batch to what the user's loop gets: targets, collation, pinning. Runs in the consumer's thread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forebay import _torch, _values
from forebay._forebay import Array, Batch, Engine, Index
from forebay._settings import Form
from forebay.errors import ConfigError


class Output(Protocol):
    """What `_torch` and `_numpy` both are."""

    def tensor(self, array: Array) -> Any: ...
    def integers(self, values: Sequence[int]) -> Any: ...
    def collate(self, values: Sequence[Any]) -> Any: ...
    def convert(self, value: Any, dtype: str | None, is_channels_last: bool) -> Any: ...


@dataclass(frozen=True)
class Delivery:
    """How the batches of a loader are handed over."""

    index: Index
    output: Output
    form: Form
    target_transform: Callable[[Any], Any] | None
    collate_fn: Callable[[Any], Any] | None
    is_batched: bool
    is_pinned: bool
    with_ids: bool
    copier: _torch.Copier | None
    # Whose batches are written to pinned memory in the first place.
    lends_to: Engine | None
    # The user's callable that samples come from, where it is the last one.
    made_by: str | None

    def lend(self) -> None:
        """Lends memory for the batches to come."""
        if self.lends_to is not None:
            _torch.lend(self.lends_to)

    def hand_over(self, batch: Batch) -> Any:
        made = self._make(batch)
        return _torch.pin(made) if self.is_pinned else made

    def _make(self, batch: Batch) -> Any:
        if self.collate_fn is None and self.is_batched:
            ids = [self.output.integers(batch.indices)] if self.with_ids else []
            return [self._stack(batch), self._stack_targets(batch), *ids]
        columns = [self._samples(batch), self._targets(batch), *([batch.indices] if self.with_ids else [])]
        rows: list[tuple[Any, ...]] = list(zip(*columns, strict=True))
        if self.is_batched:
            return self.collate_fn(rows) if self.collate_fn else rows
        # torch's `default_convert` makes a list of a pair, and `collate_fn` gets the pair itself.
        return self.collate_fn(rows[0]) if self.collate_fn else list(rows[0])

    def _stack(self, batch: Batch) -> Any:
        if batch.images is not None:
            return self.output.tensor(batch.images)
        samples = [self._sample(value) for value in batch.values or []]
        self._check_shapes(batch, samples)
        return self._converted(self.output.collate(tuple(samples)))

    def _stack_targets(self, batch: Batch) -> Any:
        if self.target_transform is None:
            return self.output.tensor(batch.labels)
        return self.output.collate(tuple(self._targets(batch)))

    def _samples(self, batch: Batch) -> list[Any]:
        """Each sample by itself; those of a dense batch are views of it."""
        if batch.images is not None:
            return list(self.output.tensor(batch.images))
        return [self._converted(self._sample(value)) for value in batch.values or []]

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
        return _values.to_python(value)

    def _targets(self, batch: Batch) -> list[Any]:
        labels = [self.index.label(sample) for sample in batch.indices]
        if self.target_transform is None:
            return labels
        return [self.target_transform(label) for label in labels]

    def _check_shapes(self, batch: Batch, samples: list[Any]) -> None:
        """Says which samples do not fit together, before a collation says only that some do not."""
        for sample, index in zip(samples, batch.indices, strict=True):
            if sample is None:
                path = self.index.path(index)
                raise ConfigError(
                    f'{self.made_by} returned None for "{path}" (expected a tensor)',
                    path=path,
                    index=index,
                    stage="assemble",
                    hint="let it return its result; to leave samples out, raise an exception and pass "
                    'on_error="replace" or "skip", or pass a collate_fn that takes None',
                )
            if _values.is_pillow(sample):
                path = self.index.path(index)
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
            first, second = (self.index.path(batch.indices[position]) for position in (0, other))
            raise ConfigError(
                f'samples of different shapes do not make a batch: "{first}" has {shapes[0]}, '
                f'"{second}" has {shapes[other]}',
                path=second,
                index=batch.indices[other],
                stage="assemble",
                hint="give all samples one size (Resize with height and width, or a crop), or pass a collate_fn",
            )
