"""Several datasets as one, in given proportions; splits and filters; samplers by weight and by class."""

import collections
import gzip
import io
import json
import pickle
import shutil
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

import folders
import forebay as fb
from forebay import transforms as T

ConfigError = fb.errors.ConfigError
CROP = T.Compose([T.RandomResizedCrop(8), T.ToTensor()])
PLAIN = T.Compose([T.Resize((8, 8)), T.ToTensor()])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 pictures in `a` and 4 in `b`, of the same classes."""
    root = tmp_path_factory.mktemp("mixtures")
    folders.write_folder(root / "a", 12, width=12, height=12)
    folders.write_folder(root / "b", 4, width=12, height=12)
    return root


@pytest.fixture
def a(root: Path) -> fb.ImageFolder:
    return fb.ImageFolder(root / "a", CROP)


@pytest.fixture
def b(root: Path) -> fb.ImageFolder:
    return fb.ImageFolder(root / "b", PLAIN)


def ids(loader: Iterable[Any]) -> list[int]:
    return [int(index) for batch in loader for index in batch[-1]]


def loader(dataset: Any, **options: Any) -> fb.DataLoader:
    return fb.DataLoader(dataset, **{"batch_size": 4, "seed": 3, "with_ids": True, "num_workers": 2} | options)


def test_datasets_one_after_the_other_are_one(a: fb.ImageFolder, b: fb.ImageFolder) -> None:
    both = fb.concat([a, b])
    assert (len(both), both.classes, both.targets) == (16, ["cat", "dog"], a.targets + b.targets)
    assert both.paths == [path for path, _ in a.samples + b.samples]
    assert torch.equal(both[13][0], b[1][0]) and both[13][1] == b[1][1]
    assert ids(loader(both)) == list(range(16))
    # Each by its own transforms: those of `b` are not random.
    images = {int(index): image for batch, _, own in loader(both) for image, index in zip(batch, own, strict=True)}
    assert all(torch.equal(images[12 + place], b[place][0]) for place in range(4))
    assert isinstance(both, data.Dataset) and len(data.Subset(both, [0, 15])) == 2
    assert sorted(ids(loader(both, shuffle=True))) == list(range(16))
    assert ids(loader(data.Subset(both, [15, 0, 12]))) == [0, 1, 2]
    chosen = both.subset([15, 0, 12])
    assert chosen.paths == [both.paths[place] for place in (15, 0, 12)]
    assert [chosen.source_of(place) for place in range(3)] == [str(b.root), str(a.root), str(b.root)]


def test_a_sum_of_forebays_own_datasets_is_native(a: fb.ImageFolder, b: fb.ImageFolder) -> None:
    three = a + b + a
    assert (len(three), three._index.part_count) == (28, 3)
    assert ids(loader(three)) == list(range(28))
    others = [1, 2]
    assert isinstance(a + others, data.ConcatDataset)


def test_each_target_goes_through_the_target_transform_of_its_dataset(root: Path, a: fb.ImageFolder) -> None:
    named = fb.ImageFolder(root / "b", PLAIN, target_transform=lambda label: label + 10)
    both = fb.concat([a, named])
    assert [both[place][1] for place in (0, 11, 12, 15)] == [0, 1, 10, 11]
    targets = [int(target) for _, batch, _ in loader(both) for target in batch]
    assert targets == a.targets + [label + 10 for label in named.targets]


def test_a_change_to_one_of_the_datasets_is_noticed(a: fb.ImageFolder, b: fb.ImageFolder) -> None:
    made = loader(fb.concat([a, b]))
    b.transform = CROP
    with pytest.raises(ConfigError, match=r"dataset\.datasets\[1\]\.transform: expected the one"):
        iter(made)


def test_datasets_that_do_not_fit_together_are_refused(root: Path, a: fb.ImageFolder, tmp_path: Path) -> None:
    def refused(message: str, *datasets: Any) -> None:
        with pytest.raises(ConfigError, match=message):
            fb.concat(datasets)

    larger = T.Compose([T.Resize((9, 8)), T.ToTensor()])
    refused(
        r"float32 \[3, 8, 8\]\) in dataset 0 and .*\[3, 9, 8\]\) in dataset 1", a, fb.ImageFolder(root / "b", larger)
    )
    refused("has a label for each sample; .* has no labels", a, fb.ImageFiles(root / "b", PLAIN))
    scored = fb.ImageFiles(root / "b", PLAIN, labels=[0.5, 1.5, 2.5, 3.5])
    refused(r'"label" \(whole numbers\) in dataset 0 and "label" \(floats\) in dataset 1', a, scored)
    folders.write_folder(tmp_path / "birds", 2, classes=("crow", "dove"), width=12, height=12)
    birds = fb.ImageFolder(tmp_path / "birds", PLAIN)
    refused("same classes, got 2 .cat=0, dog=1. in .*a and 2 .crow=0, dove=1. in .*birds", a, birds)
    refused("forebay's own datasets, got an object of class list", a, [1])
    refused("at least one, got none")
    refused("got a mixture", a, fb.mix({a: 1}))
    cached = fb.ImageFolder(root / "a", PLAIN, cache="memory")
    refused("cache: expected the same for datasets of one root", a, cached)
    elsewhere = fb.ImageFolder(root / "b", PLAIN, cache="decoded")
    refused('"decoded" for all of the datasets or for none', a, elsewhere)
    mapped = [fb.ImageFolder(each.root, PLAIN, target_transform=lambda label: label) for each in (a, birds)]
    assert fb.concat(mapped).classes == []


def test_a_mixture_has_its_proportions_at_every_position(a: fb.ImageFolder, b: fb.ImageFolder) -> None:
    mixture = fb.mix({a: 0.7, b: 0.3}, samples=50, names=["large", "small"])
    made = loader(mixture, batch_size=5, shuffle=True)
    assert (len(made), mixture.samples, len(mixture)) == (10, 50, 16)
    order = ids(made) + ids(made)
    for end in range(1, 101):
        assert abs(sum(index < 12 for index in order[:end]) - 0.7 * end) < 1
    # Each dataset gives all of its samples before any comes again, over the ends of epochs.
    for samples in (range(12), range(12, 16)):
        own = [index for index in order if index in samples]
        for start in range(0, len(own) - len(samples) + 1, len(samples)):
            assert sorted(own[start : start + len(samples)]) == list(samples)
    assert made.stats()["sources"] == {"large": 70, "small": 30}
    rows = made.explain(0, epoch=0)
    assert [row["index"] for row in rows] == order[:5]
    assert [row["source"] for row in rows] == ["large" if index < 12 else "small" for index in order[:5]]


def test_without_shuffle_each_dataset_comes_in_its_own_order(a: fb.ImageFolder, b: fb.ImageFolder) -> None:
    assert ids(loader(fb.mix([(a, 2), (b, 1)], samples=9))) == [0, 1, 12, 2, 3, 13, 4, 5, 14]


def test_weights_change_and_a_state_goes_on_there_on_any_number_of_ranks(a: fb.ImageFolder, b: fb.ImageFolder) -> None:
    changing = fb.mix([a, b], weights=[(0, {a: 0.9, b: 0.1}), (40, [0.5, 0.5]), (55, {b: 1, a: 0})], samples=30)

    def ranks(count: int, state: Any = None) -> list[fb.DataLoader]:
        made = [loader(changing, batch_size=2, shuffle=True, rank=rank, world_size=count) for rank in range(count)]
        for each in made:
            each.set_epoch(1) if state is None else each.load_state_dict(state)
        return made

    def steps(loaders: list[fb.DataLoader]) -> list[list[int]]:
        return [[int(index) for batch in step for index in batch[-1]] for step in zip(*loaders, strict=True)]

    # Samples 30 to 60 of training: the weights change twice.
    whole = [index for step in steps(ranks(1)) for index in step]
    counts = [sum(index >= 12 for index in whole[start:end]) for start, end in ((0, 10), (10, 25), (25, 30))]
    assert counts == [1, 7, 5]
    for world_size in (1, 2, 3):
        assert [index for step in steps(ranks(world_size)) for index in step][:30] == whole
        running = ranks(world_size)
        states = [json.loads(json.dumps(running[0].state_dict())) for _ in running[0]]
        for state in states:
            rest = [index for step in steps(ranks(world_size % 3 + 1, state)) for index in step]
            assert rest[: 30 - state["position"]] == whole[state["position"] :]


def test_a_state_is_bound_to_the_weights(a: fb.ImageFolder, b: fb.ImageFolder) -> None:
    state = loader(fb.mix({a: 0.7, b: 0.3})).state_dict()
    loader(fb.mix([a, b], weights=[7, 3])).load_state_dict(state)
    for other in (fb.mix({a: 0.6, b: 0.4}), fb.mix({a: 0.7, b: 0.3}, samples=17), fb.concat([a, b])):
        with pytest.raises(fb.errors.StateMismatchError, match="sampling: this loader has"):
            loader(other).load_state_dict(state)
    with pytest.raises(fb.errors.StateMismatchError, match="fingerprint"):
        loader(fb.mix([a, a.subset([0, 1, 2, 3])], weights=[7, 3])).load_state_dict(state)


def test_bad_samples_of_a_mixture_are_replaced_from_their_dataset(
    root: Path, tmp_path: Path, a: fb.ImageFolder
) -> None:
    folders.write_folder(tmp_path / "bad", 6, width=12, height=12)
    bad = fb.ImageFolder(tmp_path / "bad", PLAIN)
    folders.truncate(Path(bad.samples[2][0]))
    mixture = fb.mix({a: 1, bad: 1}, samples=24)
    made = loader(mixture, shuffle=True, on_error="replace")
    order = ids(made)
    assert sum(index >= 12 for index in order) == 12 and 14 not in order
    assert {failure.index for failure in made.failures} == {14}
    assert len(made.failures) == 2, "once in each pass over the small dataset"
    assert "planned 24 = delivered 22 + replaced 2" in str(made.report())


def test_a_mixture_ends_when_the_root_of_one_of_its_datasets_is_gone(tmp_path: Path, a: fb.ImageFolder) -> None:
    folders.write_folder(tmp_path / "fleeting", 4, width=12, height=12)
    mixture = fb.mix({a: 0.5, fb.ImageFolder(tmp_path / "fleeting", PLAIN): 0.5})
    shutil.rmtree(tmp_path / "fleeting")
    with pytest.raises(fb.errors.NotFoundError, match=r"fleeting.* is gone, and all samples of the dataset with it"):
        ids(loader(mixture, on_error="replace"))


def test_decoded_pictures_of_all_datasets_are_kept(root: Path) -> None:
    options: dict[str, Any] = {"cache": "decoded", "cache_bytes": "8MiB"}
    kept = fb.concat([fb.ImageFolder(root / "a", CROP, **options), fb.ImageFolder(root / "b", PLAIN, **options)])
    made, plain = loader(kept), loader(fb.concat([fb.ImageFolder(root / "a", CROP), fb.ImageFolder(root / "b", PLAIN)]))
    for _ in range(2):
        for (images, _, _), (expected, _, _) in zip(made, plain, strict=True):
            assert torch.equal(images, expected)
    stats = made.stats()["decoded_cache"]
    assert (stats["pictures"], stats["limit_bytes"]) == (16, 16 << 20) and stats["hits"] >= 16


def test_compressed_files_are_unpacked_in_a_mixture_too(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress("\n".join(f"{name}{n}" for n in range(40)).encode()))
    one, two = (fb.TextLines([tmp_path / f"{name}.txt.gz"]) for name in "ab")
    upper = fb.TextLines([tmp_path / "a.txt.gz"], max_bytes=100)
    lines = [line for batch in fb.DataLoader(fb.concat([one, two, upper]), 7) for line in batch]
    assert lines == [f"{name}{number}" for name in "aba" for number in range(40)]
    # Such files are shuffled in windows of blocks, but not in a mixture.
    mixture = fb.mix({one: 1, two: 1})
    auto, plain = (list(fb.DataLoader(mixture, 7, shuffle=shuffle)) for shuffle in ("auto", True))
    assert auto == plain
    with pytest.raises(ConfigError, match="shuffle_window: expected none beside a mixture"):
        fb.DataLoader(mixture, 7, shuffle="window")
    with pytest.raises(
        ConfigError, match=r"a\.txt\.gz.* is unpacked by one of the datasets and read as it is by another"
    ):
        fb.concat([one, fb.TextFiles([tmp_path / "a.txt.gz"])])


def test_samples_of_several_fields_are_put_together_alike(tmp_path: Path) -> None:
    for name in "ab":
        with tarfile.open(tmp_path / f"{name}.tar", "w") as shard:
            for number in range(5):
                for ending, content in (("txt", f"{name}{number}"), ("cls", str(number))):
                    member = tarfile.TarInfo(f"{number}.{ending}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content.encode()))
    one, two = (fb.Shards([tmp_path / f"{name}.tar"], fields=("txt", "cls")) for name in "ab")
    (texts, numbers), *_ = fb.DataLoader(fb.mix({one: 0.5, two: 0.5}), batch_size=4)
    assert (texts, numbers.tolist()) == (["a0", "b0", "a1", "b1"], [0, 0, 1, 1])
    with pytest.raises(ConfigError, match=r"samples are put together alike, got .'txt', 'cls'. and {'txt': 'txt'"):
        fb.concat([one, fb.Shards([tmp_path / "b.tar"], fields={"txt": "txt", "cls": "cls"})])


def test_what_the_scans_noticed_is_told_once(tmp_path: Path) -> None:
    folders.write_folder(tmp_path / "one", 2, width=12, height=12)
    folders.write_folder(tmp_path / "two", 2, width=12, height=12)
    for name in ("one", "two"):
        (tmp_path / name / "cat" / "up").symlink_to(tmp_path / name)
    one, two = (fb.ImageFiles(tmp_path / name, PLAIN) for name in ("one", "two"))
    assert len(one.notes) == len(two.notes) == 1
    assert fb.concat([one, two, one]).notes == one.notes + two.notes + one.notes


def test_what_mixtures_do_not_take_is_refused(a: fb.ImageFolder, b: fb.ImageFolder) -> None:
    def refused(message: str, make: Callable[[], Any]) -> None:
        with pytest.raises(ConfigError, match=message):
            make()

    refused("weights: expected finite numbers of at least 0, got -1", lambda: fb.mix({a: 1, b: -1}))
    refused("got NaN", lambda: fb.mix({a: 1, b: float("nan")}))
    refused("at least one above 0, got none", lambda: fb.mix({a: 0, b: 0}))
    refused("above 0 for dataset 1, got only 0", lambda: fb.mix({a: 1, b: 0}))
    refused("expected 2, one for each dataset, got 1", lambda: fb.mix([a, b], weights=[1]))
    refused("expected one for each dataset, got none", lambda: fb.mix([a, b]))
    refused("none beside those of the datasets", lambda: fb.mix({a: 1, b: 1}, weights=[1, 1]))
    refused("expected numbers, got 'x'", lambda: fb.mix({a: 1, b: "x"}))  # type: ignore[dict-item]
    refused("the first to begin at sample 0", lambda: fb.mix([a, b], weights=[(5, [1, 1])]))
    refused("growing numbers of samples", lambda: fb.mix([a, b], weights=[(0, [1, 1]), (9, [1, 2]), (9, [2, 1])]))
    refused("samples: expected at least 1", lambda: fb.mix({a: 1}, samples=0))
    refused("names: expected 2 different ones", lambda: fb.mix({a: 1, b: 1}, names=["x", "x"]))
    mixture = fb.mix({a: 1, b: 1})
    refused("got a mixture, whose samples cannot be chosen", lambda: mixture.subset([0]))
    refused("got a mixture, whose samples cannot be chosen", lambda: mixture.split(0.5, by="index"))
    refused("none beside a mixture", lambda: loader(mixture, sampler=[1, 2]))
    refused("none beside a mixture", lambda: loader(mixture, sampler=fb.BalancedSampler()))


def test_joined_datasets_are_pickled_with_their_parts(a: fb.ImageFolder, b: fb.ImageFolder) -> None:
    mixture = fb.mix([(a.subset([3, 1, 2]), 0.5), (b, 0.5)], samples=20)
    again = pickle.loads(pickle.dumps(mixture))
    assert ids(loader(again, shuffle=True)) == ids(loader(mixture, shuffle=True))
    chosen = fb.concat([a, b]).subset([14, 2])
    assert pickle.loads(pickle.dumps(chosen)).paths == chosen.paths


# Splits and filters.


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """200 texts in two directories, one of them rare; and a manifest that says more of them."""
    root, lines = tmp_path / "texts", ["path,split,height,topic"]
    for number in range(200):
        path = root / ("rare" if number % 10 == 0 else "usual") / f"{number:03}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
        lines.append(f"{path.relative_to(root)},{'test' if number % 4 == 0 else 'train'},{number},{'xyz'[number % 3]}")
    (tmp_path / "manifest.csv").write_text("\n".join(lines) + "\n")
    return root


def names(dataset: Any) -> set[str]:
    return {Path(path).name for path in dataset.paths}


def test_a_split_is_disjoint_and_stable(texts: Path) -> None:
    dataset = fb.TextFiles(texts)
    train, val = dataset.split(0.8)
    assert not names(train) & names(val) and names(train) | names(val) == names(dataset)
    assert 20 <= len(val) <= 60
    again = dataset.split([0.8, 0.2])[1]
    assert names(again) == names(val) != names(dataset.split(0.8, seed=1)[1])
    # A file that comes later moves no other one, and neither does another root.
    (texts / "usual" / "later.txt").write_text("later")
    moved = texts.rename(texts.with_name("moved"))
    train_then, val_then = fb.TextFiles(moved).split(0.8)
    assert names(train) <= names(train_then) and names(val) <= names(val_then)
    state = fb.DataLoader(train_then).state_dict()
    with pytest.raises(fb.errors.StateMismatchError):
        fb.DataLoader(val_then).load_state_dict(state)
    assert pickle.loads(pickle.dumps(val_then)).paths == val_then.paths


def test_a_split_by_index_or_by_label_is_exact(texts: Path) -> None:
    dataset = fb.TextFiles(texts, labels="directory")
    parts = dataset.split([0.7, 0.2, 0.1], by="index", seed=5)
    assert [len(part) for part in parts] == [140, 40, 20]
    assert set.union(*map(names, parts)) == names(dataset)
    for stratify in (True, "label", "class", dataset.targets):
        train, val = dataset.split(0.8, stratify=stratify)
        assert (len(train), len(val)) == (160, 40)
        assert (train.targets.count(0), val.targets.count(0)) == (16, 4)
    by_height = fb.TextFiles(texts, manifest=texts.parent / "manifest.csv").split(0.5, stratify="split")
    assert [len(part.filter(split="test")) for part in by_height] == [25, 25]
    for message, make in [
        ("a number between 0 and 1", lambda: dataset.split(1.5)),
        ("a sum of 1, got 0.9", lambda: dataset.split([0.5, 0.4])),
        ("by: expected one of", lambda: dataset.split(0.5, by="size")),  # type: ignore[arg-type]
        ("one for each sample, got 2", lambda: dataset.split(0.5, stratify=[1, 2])),
        ("none of 200 in part 1", lambda: dataset.split(0.9999, by="index")),
        ("one column of labels", lambda: fb.TextFiles(texts).split(0.5, stratify=True)),
    ]:
        with pytest.raises(ConfigError, match=message):
            make()


def test_samples_are_filtered_by_what_is_known_of_them(texts: Path) -> None:
    dataset = fb.TextFiles(texts, manifest=texts.parent / "manifest.csv", labels="topic")
    test = dataset.filter(split="test")
    assert (len(test), test[1]) == (50, ("4", "y"))
    assert len(dataset.filter(split="test", topic=("x", "y"))) == sum(
        number % 4 == 0 and number % 3 < 2 for number in range(200)
    )
    high = test.filter(lambda row: row["height"] >= 100 and row["topic"] == "x")
    assert [text for text, _ in high] == [str(number) for number in range(100, 200) if number % 12 == 0]
    assert len(dataset.filter(lambda row: "rare" in row["path"])) == 20
    by_class = fb.TextFiles(texts, labels="directory").filter(**{"class": "rare"})
    assert len(by_class) == 20 and set(by_class.targets) == {0}
    # Parts of files have the columns of their file.
    lines = fb.TextLines(texts, manifest=texts.parent / "manifest.csv", index=texts.parent / "lines.index")
    assert len(lines.filter(split="train")) == 150
    state = fb.DataLoader(test).state_dict()
    with pytest.raises(fb.errors.StateMismatchError):
        fb.DataLoader(dataset.filter(split="train")).load_state_dict(state)
    for message, make in [
        ("a column of .*'height'.*, got 'width'", lambda: dataset.filter(width=3)),
        ("got none of 200", lambda: dataset.filter(height=1000)),
        ("got neither", lambda: dataset.filter()),
        ("expected a callable", lambda: dataset.filter("height > 3")),  # type: ignore[arg-type]
    ]:
        with pytest.raises(ConfigError, match=message):
            make()


# Samplers.


def test_weights_decide_how_often_a_sample_comes(a: fb.ImageFolder) -> None:
    weights = [0.0] * 6 + [1.0] * 5 + [5.0]
    made = loader(a, sampler=fb.WeightedSampler(weights, num_samples=1000), batch_size=50)
    counts = collections.Counter(ids(made))
    assert len(made) == 20 and not set(range(6)) & set(counts)
    assert 420 <= counts[11] <= 580 and all(60 <= counts[place] <= 145 for place in range(6, 11))
    once = loader(a, sampler=fb.WeightedSampler(torch.tensor(weights), 4, replacement=False))
    assert len(set(ids(once))) == 4 and len(set(ids(once))) == 4


def test_classes_come_equally_often(a: fb.ImageFolder) -> None:
    uneven = a.subset([0, 1, 2, 3, 4, 5, 6, 7])  # six cats and two dogs
    made = loader(uneven, sampler=fb.BalancedSampler(num_samples=24))
    seen: list[int] = []
    for _, labels, _ in made:
        assert labels.sum() == 2, "two of each in a batch of four"
        seen += labels.tolist()
    assert len(seen) == 24
    counts = collections.Counter(ids(made))
    assert set(counts.values()) == {2, 6}
    by_parity = loader(a, sampler=fb.BalancedSampler([number % 3 for number in range(12)]))
    assert sorted(ids(by_parity)) == list(range(12))


@pytest.mark.parametrize(
    "sampler",
    [
        fb.WeightedSampler([float(1 + place) for place in range(12)], 30),
        fb.WeightedSampler([float(1 + place) for place in range(12)], 9, replacement=False),
        fb.BalancedSampler(num_samples=30),
    ],
    ids=["weighted", "without replacement", "balanced"],
)
def test_samplers_resume_exactly_on_any_number_of_ranks(a: fb.ImageFolder, sampler: Any) -> None:
    whole = ids(loader(a, sampler=sampler, batch_size=2))
    running = loader(a, sampler=pickle.loads(pickle.dumps(sampler)), batch_size=2)
    for _ in running:
        state = json.loads(json.dumps(running.state_dict()))
        both = [loader(a, sampler=sampler, batch_size=1, rank=rank, world_size=2) for rank in range(2)]
        for each in both:
            each.load_state_dict(state)
        rest = [int(index) for step in zip(*both, strict=True) for batch in step for index in batch[-1]]
        assert rest[: len(whole) - state["position"]] == whole[state["position"] :]
    with pytest.raises(fb.errors.StateMismatchError, match="sampling"):
        loader(a, shuffle=True).load_state_dict(state)


def test_wrong_samplers_are_refused(a: fb.ImageFolder) -> None:
    for message, make in [
        ("got -1 for sample 1", lambda: fb.WeightedSampler([1, -1])),
        ("got NaN for sample 0", lambda: fb.WeightedSampler([float("nan")])),
        ("at least one above 0", lambda: fb.WeightedSampler([0, 0])),
        ("weights: expected a number for each sample", lambda: fb.WeightedSampler(["x"])),  # type: ignore[list-item]
        ("at most 2 without replacement", lambda: fb.WeightedSampler([1, 2], 3, replacement=False)),
        ("expected 12, one for each sample, got 2", lambda: loader(a, sampler=fb.WeightedSampler([1, 2]))),
        ("expected 12, one for each sample, got 3", lambda: loader(a, sampler=fb.BalancedSampler([1, 2, 3]))),
        ("num_samples: expected at least 1", lambda: fb.BalancedSampler(num_samples=0)),
        ("labels: expected 'other'|labels: expected \"other\"", lambda: loader(a, sampler=fb.BalancedSampler("other"))),
        ("mutually exclusive with shuffle", lambda: loader(a, sampler=fb.BalancedSampler(), shuffle=True)),
        ("one of forebay's own datasets", lambda: fb.DataLoader([1, 2, 3], sampler=fb.BalancedSampler([1, 1, 2]))),
    ]:
        with pytest.raises(ConfigError, match=message):
            make()
