"""Orders in which samples come by weights or by classes, for forebay's own datasets (docs/mixtures.md).

They are no lists of indices: the loader computes each position of the order when it is needed, on any number of ranks,
so a state stays a few numbers.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from forebay import _forebay
from forebay._options import settings
from forebay.errors import ConfigError


class NativeSampler:
    """What these samplers have in common."""

    num_samples: int | None

    def _sampling(self, index: _forebay.Index) -> _forebay.Sampling:
        """What the engine takes, for this dataset."""
        raise NotImplementedError

    def _count(self, index: _forebay.Index) -> int:
        return len(index) if self.num_samples is None else self.num_samples

    def __iter__(self) -> Iterator[int]:
        raise ConfigError(
            f"sampler: expected one of forebay's own datasets beside a {type(self).__name__}, got another one",
            hint="torch.utils.data.WeightedRandomSampler draws indices for any dataset",
        )


class WeightedSampler(NativeSampler):
    """Draws by a weight for each sample, with replacement or without.

    `num_samples` is the length of an epoch, over all ranks; by default as many as the dataset has. A draw is a function
    of the loader's seed, the epoch and the position. Weights of 0 are never drawn, nor are such samples substitutes.
    The draws are not those of torch's `WeightedRandomSampler`, whose random numbers come one after the other.

    >>> import forebay as fb
    >>> dataset = fb.ImageFolder("data/train", transform=fb.transforms.ToTensor())
    >>> sampler = fb.WeightedSampler([3.0 if label else 1.0 for label in dataset.targets], num_samples=6)
    >>> len(fb.DataLoader(dataset, batch_size=2, sampler=sampler))
    3
    """

    def __init__(self, weights: Sequence[float], num_samples: int | None = None, replacement: bool = True) -> None:
        listed = weights.tolist() if hasattr(weights, "tolist") else list(weights)
        try:
            self.weights = [float(weight) for weight in listed]
        except (TypeError, ValueError):
            raise ConfigError(f"weights: expected a number for each sample, got {weights!r}") from None
        if not isinstance(replacement, bool):
            raise ConfigError(f"replacement: expected a bool, got {replacement!r}")
        self.num_samples = None if num_samples is None else settings.whole("num_samples", num_samples, least=1)
        self.replacement = replacement
        # Wrong weights are said here, and not only when a loader is made.
        self._made = self._make(len(self.weights) if self.num_samples is None else self.num_samples)

    def _make(self, count: int) -> _forebay.Sampling:
        return _forebay.Sampling.weighted(self.weights, max(1, count), self.replacement)

    def _sampling(self, index: _forebay.Index) -> _forebay.Sampling:
        return self._made

    def __len__(self) -> int:
        return self._made.samples

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_made"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class BalancedSampler(NativeSampler):
    """Every class equally often: at any position of an epoch no class is more than one sample ahead of another.

    Each class gives its samples in a random order, all of them once before any comes again. `labels` says which class
    each sample has: a value for each, or the name of a column of labels; by default the dataset's own labels.
    `num_samples` is the length of an epoch, over all ranks; by default as many as the dataset has.

    >>> import forebay as fb
    >>> dataset = fb.ImageFolder("data/train", transform=fb.transforms.ToTensor())
    >>> len(fb.DataLoader(dataset, batch_size=4, sampler=fb.BalancedSampler(num_samples=20)))
    5
    """

    def __init__(self, labels: Sequence[Any] | str | None = None, num_samples: int | None = None) -> None:
        self.labels: Any = labels.tolist() if labels is not None and hasattr(labels, "tolist") else labels
        self.num_samples = None if num_samples is None else settings.whole("num_samples", num_samples, least=1)

    def _sampling(self, index: _forebay.Index) -> _forebay.Sampling:
        if self.labels is None or isinstance(self.labels, str):
            return _forebay.Sampling.balanced(index, self._count(index), self.labels, None)
        return _forebay.Sampling.balanced(index, self._count(index), None, list(self.labels))
