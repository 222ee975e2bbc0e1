"""`DataLoader` takes torch's arguments with torch's meaning, and refuses what is wrong before any thread starts."""

import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils import data

import folders
import forebay as fb
import threads
from faultfs import FaultFs
from forebay import transforms as T
from forebay._options import settings


@pytest.fixture
def dataset(folder: Path, plain: T.Compose) -> fb.ImageFolder:
    return fb.ImageFolder(folder, transform=plain)


def labels_of(loader: Any) -> list[list[int]]:
    return [labels.tolist() for _, labels in loader]


def test_batches_are_those_of_torch(dataset: fb.ImageFolder) -> None:
    ours, theirs = (kind(dataset, batch_size=5) for kind in (fb.DataLoader, data.DataLoader))
    assert len(ours) == len(theirs) == 5
    for batch, expected in zip(ours, theirs, strict=True):
        assert type(batch) is type(expected) is list
        for value, other in zip(batch, expected, strict=True):
            assert torch.equal(value, other) and value.dtype == other.dtype


def test_memory_is_handed_over_without_a_copy(dataset: fb.ImageFolder) -> None:
    images, labels = next(iter(fb.DataLoader(dataset, 4)))
    before = images.clone()
    images += 1
    assert torch.equal(images, before + 1) and images.is_contiguous()
    assert labels.dtype == torch.int64


def test_a_batch_outlives_its_loader(dataset: fb.ImageFolder) -> None:
    loader = fb.DataLoader(dataset, 4)
    kept = [images for images, _ in loader]
    copies = [images.clone() for images in kept]
    del loader
    list(fb.DataLoader(dataset, 4))
    assert all(torch.equal(images, copy) for images, copy in zip(kept, copies, strict=True))


def test_drop_last_and_length(dataset: fb.ImageFolder) -> None:
    for drop_last, expected in ((False, [7, 7, 7, 3]), (True, [7, 7, 7])):
        loader = fb.DataLoader(dataset, 7, drop_last=drop_last)
        assert [len(labels) for labels in labels_of(loader)] == expected
        assert len(loader) == len(expected)


def test_batch_size_none_gives_single_samples(dataset: fb.ImageFolder) -> None:
    ours, theirs = (kind(dataset, batch_size=None) for kind in (fb.DataLoader, data.DataLoader))
    for sample, expected in zip(ours, theirs, strict=True):
        assert type(sample) is type(expected)
        assert torch.equal(sample[0], expected[0]) and sample[1] == expected[1]
    assert len(ours) == 24
    assert fb.DataLoader(dataset, None).batch_size is None


def test_pictures_pass_when_nothing_is_batched(folder: Path) -> None:
    sample = next(iter(fb.DataLoader(fb.ImageFolder(folder), batch_size=None)))
    assert sample[0].size == (64, 48) and sample[1] == 0


def test_a_sampler_gives_the_order(dataset: fb.ImageFolder) -> None:
    order = [3, 23, 0, 0, 7]
    ours, theirs = (kind(dataset, 2, sampler=order) for kind in (fb.DataLoader, data.DataLoader))
    assert len(ours) == len(theirs) == 3
    for (images, labels), (others, expected) in zip(ours, theirs, strict=True):
        assert torch.equal(images, others) and torch.equal(labels, expected)
    assert len(fb.DataLoader(dataset, 2, sampler=order, drop_last=True)) == 2


def test_a_batch_sampler_gives_the_batches(dataset: fb.ImageFolder) -> None:
    batches = [[1, 2, 3], [23], [5, 4]]
    loader = fb.DataLoader(dataset, batch_sampler=batches)
    assert labels_of(loader) == [[dataset.targets[index] for index in batch] for batch in batches]
    assert len(loader) == 3 and loader.batch_size is None


def test_samplers_of_torch_work(dataset: fb.ImageFolder) -> None:
    weighted = data.WeightedRandomSampler([1.0] * 24, 100, generator=torch.Generator().manual_seed(1))
    assert sum(map(len, labels_of(fb.DataLoader(dataset, 8, sampler=weighted)))) == 100
    ranked = [data.DistributedSampler(dataset, 3, rank, shuffle=False) for rank in range(3)]  # type: ignore[arg-type]
    assert [sum(map(len, labels_of(fb.DataLoader(dataset, 8, sampler=sampler)))) for sampler in ranked] == [8, 8, 8]


def test_a_long_sampler_resumes(dataset: fb.ImageFolder) -> None:
    order = [index % 24 for index in range(100)]
    first = fb.DataLoader(dataset, 10, sampler=order)
    iterator = iter(first)
    for _ in range(7):
        next(iterator)
    second = fb.DataLoader(dataset, 10, sampler=order)
    second.load_state_dict(first.state_dict())
    assert len(list(second)) == 3


def test_an_endless_sampler_is_read_just_far_enough(dataset: fb.ImageFolder) -> None:
    read = itertools.count()

    def endless() -> Iterator[int]:
        while True:
            yield next(read) % 24

    loader = fb.DataLoader(dataset, 4, sampler=endless(), num_workers=1, prefetch_factor=2)
    iterator = iter(loader)
    for _ in range(10):
        next(iterator)
    assert next(read) <= (10 + 2 + 1) * 4


def test_an_exception_of_a_sampler_is_the_users_own(dataset: fb.ImageFolder) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError("mine")

    before = threads.listed()
    with pytest.raises(ZeroDivisionError, match="mine"):
        list(fb.DataLoader(dataset, 1, sampler=broken()))
    threads.expect_no_more_than(before)


@pytest.mark.parametrize("wrong", [24, -1, 2**70, "a"])
def test_an_index_of_a_sampler_outside_is_named(dataset: fb.ImageFolder, wrong: Any) -> None:
    with pytest.raises(fb.errors.ConfigError, match="sampler: expected"):
        list(fb.DataLoader(dataset, 1, sampler=[wrong]))


def test_a_batch_sampler_of_single_indices_is_named(dataset: fb.ImageFolder) -> None:
    with pytest.raises(fb.errors.ConfigError, match="batch_sampler: expected batches of indices, got 1"):
        list(fb.DataLoader(dataset, batch_sampler=[1, 2]))


def test_a_batch_of_a_batch_sampler_that_is_none_is_not_the_end(dataset: fb.ImageFolder) -> None:
    with pytest.raises(fb.errors.ConfigError, match="batch_sampler: expected batches of indices, got None"):
        list(fb.DataLoader(dataset, batch_sampler=[[1], None]))


def test_a_sampler_may_be_an_array(dataset: fb.ImageFolder) -> None:
    for order in (numpy.array([3, 23, 0]), torch.tensor([3, 23, 0])):
        assert labels_of(fb.DataLoader(dataset, 2, sampler=order)) == [[0, 1], [0]]


def test_with_a_sampler_the_place_among_the_ranks_is_known(
    folder: Path, plain: T.Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    dataset = fb.ImageFolder(folder, transform=plain)
    folders.text(Path(dataset.samples[3][0]))
    with pytest.raises(fb.errors.ConfigError, match='"skip" with 4 ranks'):
        fb.DataLoader(dataset, 2, sampler=range(6), on_error="skip")
    loader = fb.DataLoader(dataset, 2, sampler=range(6), on_error="replace")
    assert list(map(len, labels_of(loader))) == [2, 2, 2], "the sampler's own division is the only one"
    (failure,) = loader.failures
    assert (failure.rank, failure.index) == (2, 3)


@pytest.mark.timeout(10)
def test_batches_skipped_whole_do_not_stop_a_sampler(folder: Path, plain: T.Compose) -> None:
    dataset = fb.ImageFolder(folder, transform=plain)
    for path, _ in dataset.samples[:20]:
        folders.empty(Path(path))
    loader = fb.DataLoader(dataset, 2, sampler=range(24), on_error="skip", num_workers=1, prefetch_factor=2)
    assert list(map(len, labels_of(loader))) == [2, 2]


def test_collate_fn_gets_pairs_as_in_torch(dataset: fb.ImageFolder) -> None:
    def collate(pairs: list[Any]) -> Any:
        return [type(pairs[0])] + [(image.shape, type(label)) for image, label in pairs]

    with pytest.warns(UserWarning, match=r"collate_fn .*collate is Python code"):
        ours = fb.DataLoader(dataset, 5, collate_fn=collate)
    assert list(ours) == list(data.DataLoader(dataset, 5, collate_fn=collate))  # type: ignore[arg-type]


def test_collate_fn_gets_pictures_of_any_size(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(4):
        folders.picture(number, 10 + number, 20).save(tmp_path / "a" / f"{number}.png")
    dataset = fb.ImageFolder(tmp_path)
    (sizes,) = fb.DataLoader(dataset, 4, collate_fn=lambda pairs: [image.size for image, _ in pairs])
    assert sizes == [(10, 20), (11, 20), (12, 20), (13, 20)]
    with pytest.raises(fb.errors.ConfigError, match="end in tensors"):
        fb.DataLoader(dataset, 4)
    dataset.transform = T.ToTensor()
    with pytest.raises(fb.errors.ConfigError) as raised:
        list(fb.DataLoader(dataset, 4))
    for part in ("0.png", "(3, 20, 10)", "1.png", "(3, 20, 11)", "collate_fn"):
        assert part in str(raised.value)


def test_an_exception_of_collate_fn_is_the_users_own(dataset: fb.ImageFolder) -> None:
    before = threads.listed()
    with pytest.raises(ZeroDivisionError):
        list(fb.DataLoader(dataset, 5, collate_fn=lambda pairs: 1 / 0))
    threads.expect_no_more_than(before)


def stop(*_: Any) -> Any:
    raise StopIteration("mine")


@pytest.mark.parametrize("place", ["transform", "loader", "target_transform", "collate_fn"])
def test_a_stop_iteration_of_the_users_own_code_does_not_end_the_epoch(folder: Path, place: str) -> None:
    before = threads.listed()
    transform = T.Compose([T.Lambda(stop) if place == "transform" else T.Resize((8, 8)), T.ToTensor()])
    options = {place: stop} if place in ("loader", "target_transform") else {}
    loader = fb.DataLoader(
        fb.ImageFolder(folder, transform, **options), 4, collate_fn=stop if place == "collate_fn" else None
    )
    with pytest.raises(RuntimeError, match=f"{place}.* raised StopIteration") as raised:
        list(loader)
    assert type(raised.value) is RuntimeError and isinstance(raised.value.__cause__, StopIteration)
    assert raised.value.__cause__.args == ("mine",)
    threads.expect_no_more_than(before)


@pytest.mark.parametrize(
    "target_transform",
    [float, str, lambda label: torch.tensor([label, 1]), lambda label: {"label": label}],
    ids=["float", "str", "tensor", "dict"],
)
def test_target_transform_and_its_collation_are_torchs(folder: Path, plain: T.Compose, target_transform: Any) -> None:
    dataset = fb.ImageFolder(folder, transform=plain, target_transform=target_transform)
    for (_, targets), (_, expected) in zip(fb.DataLoader(dataset, 5), data.DataLoader(dataset, 5), strict=True):
        assert type(targets) is type(expected)
        assert repr(targets) == repr(expected)


def test_objects_of_a_users_loader_are_collated_as_in_torch(folder: Path) -> None:
    dataset = fb.DatasetFolder(folder, lambda path: {"length": len(path)}, (".jpg",))
    with pytest.warns(UserWarning, match="loader .*lambda.* is Python code"):
        ours = fb.DataLoader(dataset, 5)
    for batch, expected in zip(ours, data.DataLoader(dataset, 5), strict=True):
        assert repr(batch) == repr(expected)


def test_a_users_loader_feeds_native_transforms(folder: Path, plain: T.Compose) -> None:
    native = fb.ImageFolder(folder, transform=plain)
    ours = fb.ImageFolder(folder, transform=plain, loader=lambda path: native.loader(path))
    for (images, _), (expected, _) in zip(fb.DataLoader(ours, 5), fb.DataLoader(native, 5), strict=True):
        assert (images - expected).abs().max() <= 2 / 255


def test_notices_of_cost_come_once(dataset: fb.ImageFolder, recwarn: pytest.WarningsRecorder) -> None:
    for _ in range(3):
        fb.DataLoader(dataset, 5, collate_fn=list)
    assert len([warning for warning in recwarn if "collate_fn" in str(warning.message)]) == 1


def test_a_generator_is_the_seed(dataset: fb.ImageFolder) -> None:
    by_generator = fb.DataLoader(dataset, 4, shuffle=True, generator=torch.Generator().manual_seed(42))
    assert labels_of(by_generator) == labels_of(fb.DataLoader(dataset, 4, shuffle=True, seed=42))
    assert by_generator.seed == 42


def test_subsets_of_torch_are_unwrapped(dataset: fb.ImageFolder) -> None:
    outer = data.Subset(data.Subset(dataset, [20, 3, 11, 5]), [2, 0])  # type: ignore[arg-type,var-annotated]
    loader = fb.DataLoader(outer, 2)
    assert labels_of(loader) == [[dataset.targets[11], dataset.targets[20]]]
    first, second = data.random_split(dataset, [0.75, 0.25])  # type: ignore[arg-type,var-annotated]
    assert (len(list(fb.DataLoader(first))), len(list(fb.DataLoader(second)))) == (18, 6)


def test_numpy_on_demand(dataset: fb.ImageFolder) -> None:
    for (images, labels), (tensors, _) in zip(
        fb.DataLoader(dataset, 5, output="numpy"), fb.DataLoader(dataset, 5), strict=True
    ):
        assert isinstance(images, numpy.ndarray) and images.dtype == numpy.float32 and images.flags.writeable
        assert labels.dtype == numpy.int64
        assert numpy.array_equal(images, tensors.numpy())


def test_pin_memory_is_no_error_without_a_gpu(dataset: fb.ImageFolder) -> None:
    images, _ = next(iter(fb.DataLoader(dataset, 4, pin_memory=True)))
    assert images.is_pinned() == torch.cuda.is_available()


def test_ranks_share_an_epoch(dataset: fb.ImageFolder) -> None:
    loaders = [fb.DataLoader(dataset, 3, shuffle=True, rank=rank, world_size=4) for rank in range(4)]
    assert {len(loader) for loader in loaders} == {2}
    seen = [place["index"] for loader in loaders for step in range(2) for place in loader.explain(step)]
    assert sorted(seen) == list(range(24))
    assert loaders[2].explain(1) == loaders[0].explain(1, world_size=4, rank=2)


def test_ranks_come_from_the_launcher(dataset: fb.ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    loader = fb.DataLoader(dataset, 3)
    assert (loader.rank, loader.world_size) == (0, 1), "RANK alone says nothing"
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = fb.DataLoader(dataset, 3)
    assert (loader.rank, loader.world_size) == (1, 4)
    assert fb.DataLoader(dataset, 3, rank=0, world_size=1).world_size == 1
    assert fb.DataLoader(dataset, 3, sampler=[1]).world_size == 4, "a sampler divides, the place is the same"
    monkeypatch.delenv("RANK")
    with pytest.raises(fb.errors.ConfigError, match="RANK: expected"):
        fb.DataLoader(dataset, 3)


def test_ranks_come_from_torch_distributed(dataset: fb.ImageFolder, tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert fb.DataLoader(dataset, 3).world_size == 1
        assert settings.place(None, None) == (0, 1)
    finally:
        torch.distributed.destroy_process_group()


def test_num_workers_counts_threads(dataset: fb.ImageFolder) -> None:
    for num_workers, expected in ((0, 1), (1, 1), (3, 3)):
        before = threads.listed()
        iterator = iter(fb.DataLoader(dataset, 4, num_workers=num_workers, io_threads=2))
        next(iterator)
        assert len(threads.listed() - before) == expected + 3  # two that read, one that watches
        del iterator
        threads.expect_no_more_than(before)


PAUSE = 0.05


def delayed(value: Any) -> Any:
    time.sleep(PAUSE)
    return value


@pytest.mark.parametrize("slow", ["decode", "transform"])
def test_statistics_and_verdict_name_the_stage_that_is_slow(folder: Path, slow: str) -> None:
    def opened(path: str) -> Any:
        return (delayed if slow == "decode" else str)(path)

    transform = T.Lambda(delayed) if slow == "transform" else None
    dataset = fb.DatasetFolder(folder, lambda path: len(opened(path)), (".jpg",), transform=transform)
    order = range(8)  # the caller's own: no next epoch is begun, so that all counts are of this one
    loader = fb.DataLoader(dataset, 2, sampler=order, num_workers=1, prefetch_factor=1)
    assert loader.stats()["verdict"] == "unknown"
    began = time.monotonic()
    assert len(list(loader)) == 4
    elapsed, stats = time.monotonic() - began, loader.stats()
    items = {stage: stats[stage]["items"] for stage in ("fetch", "decode", "transform", "assemble", "deliver")}
    assert items == {"fetch": 8, "decode": 8, "transform": 8, "assemble": 4, "deliver": 4}
    # A histogram's bucket is 12 % wide.
    assert 0.88 * PAUSE <= stats[slow]["p50_seconds"] <= stats[slow]["p95_seconds"] <= stats[slow]["p99_seconds"]
    assert 8 * PAUSE <= stats[slow]["busy_seconds"] <= elapsed
    other = stats["transform" if slow == "decode" else "decode"]
    assert other["busy_seconds"] < stats[slow]["busy_seconds"]
    assert stats["verdict"] == f"{slow}-bound"
    assert 0 < stats["consumer_wait_seconds"] <= elapsed


def test_a_loop_that_hardly_waits_is_what_bounds(dataset: fb.ImageFolder) -> None:
    loader = fb.DataLoader(dataset, 4)
    began = time.monotonic()
    for _ in loader:
        while (time.monotonic() - began) < 20 * loader.stats()["consumer_wait_seconds"]:
            time.sleep(0.001)
    stats = loader.stats()
    assert (stats["deliver"]["items"], stats["verdict"]) == (6, "consumer-bound")
    assert stats["consumer_wait_seconds"] < (time.monotonic() - began) / 10


def test_a_slow_mount_is_what_bounds(fault_fs: FaultFs, plain: T.Compose) -> None:
    dataset = fb.ImageFolder(fault_fs.root, transform=plain)
    loader = fb.DataLoader(dataset, 4, sampler=range(8), io_threads=1, num_workers=1, isolate="never")
    fault_fs.rule("*", "read", delay=PAUSE)
    assert len(list(loader)) == 2
    stats = loader.stats()
    assert (stats["fetch"]["items"], stats["verdict"]) == (8, "storage-bound")
    assert stats["fetch"]["busy_seconds"] >= 8 * PAUSE and stats["fetch"]["p50_seconds"] >= 0.88 * PAUSE


def test_explain_needs_no_data(dataset: fb.ImageFolder) -> None:
    loader = fb.DataLoader(dataset, 4, shuffle=True)
    planned = [place["label"] for step in range(6) for place in loader.explain(step)]
    for path, _ in dataset.samples:
        os.rename(path, path + ".gone")
    assert planned == [place["label"] for step in range(6) for place in loader.explain(step)]
    with pytest.raises(fb.errors.ConfigError, match="step: expected one below 6"):
        loader.explain(6)
    with pytest.raises(fb.errors.ConfigError, match="sampler"):
        fb.DataLoader(dataset, 4, sampler=[0]).explain(0)


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda loader: loader.explain(-1), "step: expected at least 0, got -1"),
        (lambda loader: loader.explain(2**63 - 1), "step: expected one below 6"),
        (lambda loader: loader.explain(2**64), r"step: expected one below 2\*\*63, got"),
        (lambda loader: loader.explain("0"), "step: expected a whole number, got '0'"),
        (lambda loader: loader.explain(0, -1), "epoch: expected at least 0, got -1"),
        (lambda loader: loader.explain(0, world_size=0), "world_size: expected at least 1, got 0"),
        (lambda loader: loader.explain(0, world_size=2**32), r"world_size: expected one below 2\*\*32"),
        (lambda loader: loader.explain(0, world_size=2, rank=2**40), r"rank: expected one below 2\*\*32"),
        (lambda loader: loader.set_epoch(2**64), r"epoch: expected one below 2\*\*63, got 18446744073709551616"),
        (lambda loader: loader.set_epoch(-1), "epoch: expected at least 0, got -1"),
    ],
)
def test_numbers_that_cannot_be_are_named(dataset: fb.ImageFolder, ask: Any, named: str) -> None:
    loader = fb.DataLoader(dataset, 4)
    with pytest.raises(fb.errors.ConfigError, match=named):
        ask(loader)


def test_failures_become_a_table(folder: Path, plain: T.Compose) -> None:
    dataset = fb.ImageFolder(folder, transform=plain)
    folders.text(Path(dataset.samples[3][0]))
    loader = fb.DataLoader(dataset, 4, on_error="replace")
    assert loader.failures.to_pandas().empty
    list(loader)
    (failure,) = loader.failures
    table = loader.failures.to_pandas()
    assert table.loc[0, "path"] == failure.path == dataset.samples[3][0]
    assert table.loc[0, "code"] == "undecodable" and table.loc[0, "outcome"] == "replaced"


def test_a_closed_loader_keeps_its_books_and_refuses_to_go_on(dataset: fb.ImageFolder) -> None:
    before = threads.listed()
    with fb.DataLoader(dataset, 4) as loader:
        iterator = iter(loader)
        next(iterator)
    threads.expect_no_more_than(before)
    assert loader.state_dict()["step"] == 1 and "epoch 0" in loader.report()
    with pytest.raises(fb.errors.StoppedError, match="closed before its end"):
        next(iterator)
    with pytest.raises(fb.errors.StoppedError, match="closed"):
        iter(loader)
    loader.close()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
    ({"batch_size": 2.5}, "batch_size: expected a whole number, got 2.5"),
    ({"batch_size": True}, "batch_size: expected a whole number, got True"),
    ({"batch_size": 2**63}, r"batch_size: expected one below 2\*\*63, got 9223372036854775808"),
    ({"num_workers": 2**64}, r"num_workers: expected one below 2\*\*63"),
    ({"prefetch_factor": 2**64}, r"prefetch_factor: expected one below 2\*\*63"),
    ({"num_workers": -1}, "num_workers option should be non-negative"),
    ({"num_workers": 1_000_000}, "num_workers: expected 1 to 4096"),
    ({"timeout": -1}, "timeout option should be non-negative"),
    ({"num_workers": 0, "prefetch_factor": 2}, "prefetch_factor option"),
    ({"prefetch_factor": -2}, "prefetch_factor option should be non-negative"),
    ({"num_workers": 0, "persistent_workers": True}, "persistent_workers option needs num_workers > 0"),
    ({"sampler": [0], "shuffle": True}, "sampler option is mutually exclusive with shuffle"),
    ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler option is mutually exclusive"),
    ({"batch_sampler": [[0]], "drop_last": True}, "batch_sampler option is mutually exclusive"),
    ({"batch_size": None, "drop_last": True}, "batch_size=None option disables auto-batching"),
    ({"sampler": 3}, "sampler: expected an iterable of indices, got 3"),
    ({"collate_fn": 3}, "collate_fn: expected a callable or None, got 3"),
    ({"on_error": "ignore"}, 'on_error: expected one of "raise", "replace", "skip", got \'ignore\''),
    ({"on_error": "skip", "world_size": 2, "rank": 0}, '"skip" with 2 ranks'),
    ({"rank": 2, "world_size": 2}, "rank: expected 0 to 1, got 2"),
    ({"rank": 0, "world_size": 0}, "world_size: expected at least 1, got 0"),
    ({"rank": 0, "world_size": 2**32}, r"world_size: expected one below 2\*\*32, got 4294967296"),
    ({"rank": 2**32, "world_size": 2}, r"rank: expected one below 2\*\*32, got 4294967296"),
    ({"sampler": [0], "rank": 2, "world_size": 2}, "rank: expected 0 to 1, got 2"),
    ({"sampler": [0], "on_error": "skip", "world_size": 2, "rank": 0}, '"skip" with 2 ranks'),
    ({"world_size": 4}, "rank: expected one beside world_size=4, got none"),
    ({"max_failures": 1.5}, "max_failures: expected a whole number, a fraction from 0 to 1, or None, got 1.5"),
    ({"max_failures": True}, "max_failures: expected a whole number, a fraction from 0 to 1, or None, got True"),
    ({"max_failures": -1}, "max_failures: expected at least 0, got -1"),
    ({"max_failures": 2**70}, r"max_failures: expected one below 2\*\*63, got 1180591620717411303424"),
    ({"max_failures": "5%"}, "max_failures: expected a whole number, a fraction from 0 to 1, or None, got '5%'"),
    ({"memory_budget": "lots"}, 'memory_budget: expected bytes or text like "8GiB"'),
    ({"memory_budget": 0}, "memory_budget: expected at least 1, got 0"),
    ({"memory_budget": 2**64}, r"memory_budget: expected one below 2\*\*63"),
    ({"memory_budget": "99999999999TiB"}, r"memory_budget: expected one below 2\*\*63 bytes, got '99999999999TiB'"),
    ({"memory_budget": 100, "batch_size": 2}, "memory_budget: expected"),
    ({"deadline_seconds": 0}, "deadline_seconds: expected more than 0, got 0"),
    ({"deadline_seconds": 1e10}, r"deadline_seconds: expected a number of 0 to 1e\+09, got 10000000000.0"),
    ({"deadline_seconds": float("nan")}, "deadline_seconds: expected a number"),
    ({"stall_seconds": 0}, "stall_seconds: expected more than 0, got 0"),
    ({"retries": -1}, "retries: expected at least 0, got -1"),
    ({"retries": 2**32}, r"retries: expected one below 2\*\*32, got 4294967296"),
    ({"seed": -1}, "seed: expected at least 0, got -1"),
    ({"seed": 2**64}, r"seed: expected one below 2\*\*64"),
    ({"seed": 1, "generator": torch.Generator()}, "seed: expected none beside generator"),
    ({"generator": 3}, "generator: expected a torch.Generator, got 3"),
    ({"io_threads": 0}, "io_threads: expected"),
    ({"io_threads": 2**64}, r"io_threads: expected one below 2\*\*63"),
    ({"io_threads": "many"}, "io_threads: expected a whole number, got 'many'"),
    ({"workers": "processes"}, 'workers: expected one of "auto", "threads", got \'processes\''),
    ({"output": "jax"}, "output: expected one of"),
    ({"ledger": 3.5}, "ledger: expected a path, got 3.5"),
    ({"ledger": "/dev/null/ledger.jsonl"}, "/dev/null"),
    ({"worker_init_fn": 3}, "worker_init_fn: expected a callable or None, got 3"),
]


@pytest.mark.parametrize(("arguments", "named"), WRONG, ids=folders.named)
def test_wrong_settings_are_named_before_any_thread_starts(
    dataset: fb.ImageFolder, arguments: dict[str, Any], named: str
) -> None:
    before = threads.listed()
    with pytest.raises((fb.ForebayError,), match=named) as raised:
        fb.DataLoader(dataset, **arguments)
    assert isinstance(raised.value, (ValueError, OSError))
    threads.expect_no_more_than(before)


@pytest.mark.parametrize("name", ["timeout", "deadline_seconds", "stall_seconds", "memory_budget"])
def test_a_number_too_large_for_a_float_is_named(dataset: fb.ImageFolder, name: str) -> None:
    value = "9" * 400 + "GB" if name == "memory_budget" else 10**400
    with pytest.raises(fb.errors.ConfigError, match=f"{name}: expected"):
        fb.DataLoader(dataset, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("unknown", [None, "data/train", Path("data/train")], ids=str)
def test_what_is_no_dataset_is_refused_with_what_is_supported(unknown: Any) -> None:
    with pytest.raises(fb.errors.ConfigError, match=r"dataset: expected a forebay.ImageFolder .* got"):
        fb.DataLoader(unknown)


def slowly(path: str) -> int:
    time.sleep(0.7)
    return len(path)


def test_a_long_wait_is_said_with_what_is_waited_for(folder: Path) -> None:
    dataset = fb.DatasetFolder(folder, slowly, (".jpg",)).subset([3])
    with pytest.warns(
        RuntimeWarning,
        match=r"no batch for 0.\d s \(epoch 0, step 0\); in flight: .*0006.jpg\" \(stage .* attempt 1, for 0",
    ) as said:
        batches = list(fb.DataLoader(dataset, 1, stall_seconds=0.2))
    assert len(batches) == 1
    assert {warning.filename for warning in said if warning.category is RuntimeWarning} == {__file__}


def test_what_is_in_flight_can_be_asked_from_another_thread(folder: Path) -> None:
    gate = threading.Event()

    def when_told(path: str) -> int:
        assert gate.wait(20)
        return len(path)

    dataset = fb.DatasetFolder(folder, when_told, (".jpg",))
    loader = fb.DataLoader(dataset, 1, num_workers=1)
    assert loader.in_flight() == []
    consumer = threading.Thread(target=next, args=(iter(loader),))
    consumer.start()
    while not any(item["stage"] == "decode" for item in loader.in_flight()):
        time.sleep(0.001)
    (seen,) = (item for item in loader.in_flight() if item["stage"] == "decode")
    gate.set()
    consumer.join()
    # Which one is first depends on which is read first.
    assert seen["path"] == dataset.samples[seen["index"]][0] and seen["thread"] == "forebay-cpu-0"
    assert set(seen) == {"path", "index", "stage", "thread", "attempt", "elapsed_seconds", "mount", "filesystem"}


def test_timeout_ends_a_wait_as_in_torch(folder: Path) -> None:
    dataset = fb.DatasetFolder(folder, slowly, (".jpg",))
    with pytest.raises(TimeoutError, match=r"no batch within timeout=0.3 seconds; in flight: .*0000.jpg"):
        list(fb.DataLoader(dataset, 1, timeout=0.3))


def test_worker_init_fn_has_no_workers(dataset: fb.ImageFolder) -> None:
    with pytest.warns(UserWarning, match="no worker processes"):
        fb.DataLoader(dataset, worker_init_fn=print)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8GiB", 8 << 30),
        ("512MB", 512_000_000),
        ("64 kib", 65536),
        ("1.5 GB", 1_500_000_000),
        ("77", 77),
        (5, 5),
        (None, None),
    ],
)
def test_memory_budgets_are_read(text: Any, expected: int | None) -> None:
    assert settings.memory_budget(text) == expected


@pytest.mark.parametrize(
    ("factor", "cpus", "batch_size", "is_remote", "expected"),
    [
        (None, 2, 64, False, 2),
        (None, 16, 64, False, 4),
        (None, 16, 128, False, 2),
        (None, 2, 48, False, 3),
        (None, 2, 1, False, 4),
        (None, 2, 64, True, 8),
        (None, 2, 1, True, 64),
        (2, 1, 64, False, 2),
        (0, 1, 64, False, 2),
        (3, 4, 64, True, 12),
        (99, 9, 64, False, 64),
    ],
)
def test_prefetch_counts_batches(
    factor: int | None, cpus: int, batch_size: int, is_remote: bool, expected: int
) -> None:
    assert settings.prefetch_batches(factor, cpus, batch_size, is_remote) == expected


def test_loaders_work_in_threads_at_once(dataset: fb.ImageFolder) -> None:
    results: list[list[list[int]]] = []

    def work() -> None:
        results.append(labels_of(fb.DataLoader(dataset, 5, num_workers=1)))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 4 and all(result == results[0] for result in results)
