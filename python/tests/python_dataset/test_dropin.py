"""Torch's loader and forebay's with the same arguments and seeds: the same batches, attributes and errors."""

import functools
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from PIL import ImageFile
from torch.utils import data

import forebay as fb
import python_datasets as datasets

pytestmark = pytest.mark.filterwarnings("ignore:.*worker creation.*:UserWarning", "ignore:no batch for:RuntimeWarning")


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def plain(value: Any) -> Any:
    """Something that can be compared, with the types of everything."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [plain(item) for item in value])
    return value


def batches(
    loader: Callable[..., Any], make: Callable[[], Any], arguments: Callable[[], dict[str, Any]], epochs: int = 2
) -> Any:
    """All batches of some epochs, and the random number that the process draws next."""
    seed(11)
    dataset = make()
    made = loader(dataset, **arguments())
    told = [[plain(batch) for batch in made] for _ in range(epochs)]
    return told, int(torch.randint(0, 10**9, (1,)))


def generator() -> torch.Generator:
    made = torch.Generator()
    made.manual_seed(5)
    return made


def same_batches(make: Callable[[], Any], arguments: Callable[[], dict[str, Any]]) -> None:
    expected = batches(data.DataLoader, make, arguments)
    # Torch's workers are processes, whatever Python it is.
    assert batches(functools.partial(fb.DataLoader, workers="processes"), make, arguments) == expected
    assert expected[0][0]


def unchanged(samples: Any) -> Any:
    return samples


HERE: list[Callable[[], dict[str, Any]]] = [
    dict,
    lambda: {"batch_size": 4},
    lambda: {"batch_size": 5, "drop_last": True},
    lambda: {"batch_size": 4, "shuffle": True},
    lambda: {"batch_size": 4, "shuffle": True, "drop_last": True},
    lambda: {"batch_size": 4, "shuffle": True, "generator": generator()},
    lambda: {"batch_size": None},
    lambda: {"batch_size": None, "shuffle": True},
    lambda: {"batch_size": None, "collate_fn": unchanged},
    lambda: {"batch_size": 3, "collate_fn": unchanged},
    lambda: {"batch_size": 50},
    lambda: {"batch_size": 4, "sampler": [3, 1, 1, 2, 0]},
    lambda: {"batch_size": 4, "sampler": range(20, 2, -2)},
    lambda: {"batch_sampler": [[1, 2], [3], [4, 5, 6]]},
    lambda: {"batch_sampler": data.BatchSampler(data.RandomSampler(range(23)), 4, False)},
    lambda: {"batch_size": 4, "sampler": datasets.Drawing(23)},
    lambda: {"batch_size": None, "sampler": datasets.Drawing(23)},
    lambda: {"batch_size": 3, "sampler": data.RandomSampler(range(23), replacement=True, num_samples=40)},
    lambda: {"batch_size": 3, "sampler": data.SubsetRandomSampler([1, 4, 9, 16], generator=generator())},
    lambda: {"batch_size": 3, "sampler": data.WeightedRandomSampler([1.0] * 23, 9)},
    lambda: {"batch_size": 3, "sampler": data.DistributedSampler(range(23), 2, 1, shuffle=True)},
]
IN_WORKERS: list[Callable[[], dict[str, Any]]] = [
    lambda: {"batch_size": 4, "num_workers": 2},
    lambda: {"batch_size": 4, "num_workers": 3, "shuffle": True},
    lambda: {"batch_size": 4, "num_workers": 2, "shuffle": True, "generator": generator(), "prefetch_factor": 1},
    lambda: {"batch_size": 5, "num_workers": 2, "shuffle": True, "persistent_workers": True, "drop_last": True},
    lambda: {"batch_size": None, "num_workers": 2, "sampler": datasets.Drawing(23)},
    lambda: {"batch_size": None, "num_workers": 2, "sampler": datasets.Drawing(23), "persistent_workers": True},
    lambda: {"batch_sampler": [[1, 2], [3], [4, 5, 6]], "num_workers": 2},
    lambda: {"batch_size": 2, "num_workers": 1, "worker_init_fn": torch.manual_seed},
]


@pytest.mark.parametrize("arguments", HERE, ids=lambda case: str(list(case())))
def test_the_same_seed_gives_the_same_batches_in_the_caller(arguments: Callable[[], dict[str, Any]]) -> None:
    same_batches(datasets.Noisy, arguments)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("arguments", IN_WORKERS, ids=lambda case: str(list(case())))
def test_the_same_seed_gives_the_same_batches_in_workers(arguments: Callable[[], dict[str, Any]]) -> None:
    same_batches(datasets.Noisy, arguments)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("make", [datasets.Nested, datasets.Many, lambda: datasets.Stream(7, 0, 4)])
@pytest.mark.parametrize("num_workers", [0, 3])
def test_samples_of_every_kind_are_collated_alike(
    make: Callable[[], Any], batch_size: int | None, num_workers: int
) -> None:
    if make is datasets.Many and batch_size is None:
        pytest.skip("torch asks for one then")
    same_batches(make, lambda: {"batch_size": batch_size, "num_workers": num_workers})


@pytest.mark.timeout(240)
@pytest.mark.parametrize("drop_last", [False, True])
def test_streams_of_unequal_length_are_interleaved_as_in_torch(drop_last: bool) -> None:
    arguments = {"batch_size": 3, "num_workers": 3, "drop_last": drop_last, "prefetch_factor": 3}
    same_batches(lambda: datasets.Stream(20, 2, 11), lambda: arguments)


@pytest.mark.timeout(240)
def test_workers_know_who_they_are() -> None:
    told = {}
    for loader in (data.DataLoader, fb.DataLoader):
        seed(3)
        own = {"workers": "processes"} if loader is fb.DataLoader else {}
        told[loader] = [[int(value) for value in batch] for batch in loader(datasets.Who(), num_workers=2, **own)]
    assert told[fb.DataLoader] == told[data.DataLoader]
    assert {who for who, *_ in told[fb.DataLoader]} == {0, 1}
    assert all(own == initial for _, _, own, initial in told[fb.DataLoader])


def test_worker_info_is_set_in_worker_threads_only() -> None:
    loader = fb.DataLoader(datasets.Who(), num_workers=2, workers="threads")
    told = [[int(value) for value in batch[:3]] for batch in loader]
    assert [who for who, *_ in told] == [0, 1] * 4
    assert len({own for *_, own in told}) == 2
    assert data.get_worker_info() is None
    assert [int(batch[0]) for batch in fb.DataLoader(datasets.Who())] == [-1] * 8


@pytest.mark.parametrize("arguments", HERE, ids=lambda case: str(list(case())))
def test_threads_give_the_same_order(arguments: Callable[[], dict[str, Any]]) -> None:
    def indices(loader: type, **more: Any) -> Any:
        seed(4)
        made = loader(range(23), **(arguments() | more))
        return [[plain(batch) for batch in made] for _ in range(2)]

    assert indices(fb.DataLoader, num_workers=2, workers="threads") == indices(data.DataLoader, num_workers=2)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_out_of_order_everything_comes_once(workers: Any) -> None:
    loader = fb.DataLoader(range(40), batch_size=3, num_workers=2, in_order=False, workers=workers)
    assert sorted(index for batch in loader for index in batch.tolist()) == list(range(40))


@pytest.mark.parametrize("arguments", HERE, ids=lambda case: str(list(case())))
def test_the_attributes_are_torchs(arguments: Callable[[], dict[str, Any]]) -> None:
    given = arguments()
    theirs, ours = data.DataLoader(datasets.Noisy(), **given), fb.DataLoader(datasets.Noisy(), **given)
    for name in (
        *("batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn"),
        *("generator", "prefetch_factor", "persistent_workers", "in_order", "multiprocessing_context"),
        "pin_memory_device",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("sampler", "batch_sampler", "dataset"):
        assert type(getattr(ours, name)) is type(getattr(theirs, name)), name
    assert len(ours) == len(theirs)


def test_defaults_that_depend_on_workers_are_torchs() -> None:
    ours = fb.DataLoader(range(4), num_workers=2, multiprocessing_context="spawn")
    theirs = data.DataLoader(range(4), num_workers=2, multiprocessing_context="spawn")  # type: ignore[arg-type, var-annotated]
    assert (ours.prefetch_factor, theirs.prefetch_factor) == (2, 2)
    assert type(ours.multiprocessing_context) is type(theirs.multiprocessing_context)


WRONG: list[dict[str, Any]] = [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"num_workers": 1, "prefetch_factor": -1},
    {"persistent_workers": True},
    {"batch_size": 0},
    {"batch_size": 2.5},
    {"batch_size": True},
    {"drop_last": 3},
    {"batch_size": None, "drop_last": True},
    {"sampler": [1], "shuffle": True},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "sampler": [1]},
    {"batch_sampler": [[1]], "drop_last": True},
    {"multiprocessing_context": "spawn"},
    {"num_workers": 1, "multiprocessing_context": "nonsense"},
]
WRONG_OF_A_STREAM: list[dict[str, Any]] = [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}]


@pytest.mark.parametrize(
    ("make", "arguments"),
    [*((datasets.Noisy, case) for case in WRONG), *((datasets.Stream, case) for case in WRONG_OF_A_STREAM)],
    ids=str,
)
def test_wrong_arguments_are_refused_in_torchs_words(make: Callable[[], Any], arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as theirs:
        data.DataLoader(make(), **arguments)
    with pytest.raises(fb.errors.ConfigError) as ours:
        fb.DataLoader(make(), **arguments)
    assert ours.value.message == str(theirs.value)


def test_what_the_order_is_made_of_cannot_be_set_later() -> None:
    loader = fb.DataLoader(range(4))
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
            setattr(loader, name, None)
    loader.collate_fn = unchanged
    assert list(loader) == [[0], [1], [2], [3]]


def test_a_class_of_the_users_own_works() -> None:
    class Doubled(fb.DataLoader):
        def __init__(self, count: int) -> None:
            super().__init__(range(count), batch_size=2)
            self.note = "mine"

        def __iter__(self) -> Any:
            return (2 * batch for batch in super().__iter__())

    loader = Doubled(4)
    assert [batch.tolist() for batch in loader] == [[0, 2], [4, 6]]
    assert loader.note == "mine"
    assert fb.DataLoader[int] is not None


def test_the_length_of_a_stream_is_what_it_says_and_more_is_told() -> None:
    class Liar(datasets.Stream):
        def __len__(self) -> int:
            return 2

    loader = fb.DataLoader(Liar(3), batch_size=1)
    assert len(loader) == 2
    with pytest.warns(UserWarning, match="was reported to be 2.*but 3 samples have been fetched"):
        assert len(list(loader)) == 3
    with pytest.raises(TypeError):
        len(fb.DataLoader(datasets.Stream(3)))


def test_what_can_only_be_iterated_is_a_stream() -> None:
    class Plain:
        def __iter__(self) -> Any:
            return iter("abc")

    assert list(fb.DataLoader(Plain(), batch_size=2)) == [["a", "b"], ["c"]]


def test_arrays_come_where_torch_is_not_wanted() -> None:
    loader = fb.DataLoader(datasets.Nested(), batch_size=2, output="numpy", shuffle=True, seed=1)
    batch = next(iter(loader))
    assert isinstance(batch["array"], numpy.ndarray)
    assert batch["array"].shape == (2, 3)
    assert isinstance(batch["pair"], datasets.Pair)


def test_too_many_workers_are_told_in_torchs_words() -> None:
    with pytest.warns(UserWarning, match="excessive worker creation might get DataLoader running slow or even freeze"):
        fb.DataLoader(range(4), num_workers=10_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fb.DataLoader(range(4), num_workers=1)


@pytest.mark.timeout(240)
def test_local_classes_and_lambdas_reach_the_workers() -> None:
    class Local:
        def __init__(self) -> None:
            self.change = lambda value: value + 1

        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            return self.change(index)

    loader = fb.DataLoader(Local(), batch_size=3, num_workers=2, collate_fn=lambda samples: samples)
    assert list(loader) == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(("num_workers", "stay"), [(0, False), (2, False), (2, True)])
def test_data_pipes_are_shuffled_and_divided_as_by_torch(num_workers: int, stay: bool) -> None:
    def pipe() -> Any:
        return data.datapipes.iter.IterableWrapper(range(20)).shuffle().sharding_filter()

    more = {"num_workers": num_workers, "persistent_workers": stay}
    same_batches(pipe, lambda: {"batch_size": 4, "shuffle": True, **more})


class Truncated:
    """Tells a setting of a module."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> bool:
        return ImageFile.LOAD_TRUNCATED_IMAGES


def load_truncated(worker: int) -> None:
    ImageFile.LOAD_TRUNCATED_IMAGES = True


def test_settings_of_modules_reach_workers_by_worker_init_fn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    made = [
        fb.DataLoader(Truncated(), num_workers=1, workers="processes", worker_init_fn=init)
        for init in (None, load_truncated)
    ]
    assert [next(iter(loader)).tolist() for loader in made] == [[False], [True]]
