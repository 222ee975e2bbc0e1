"""What works in torch and would silently do something else here is refused, with what to do instead, or said."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch
import torchvision
from torch.utils import data

import folders
import forebay as fb
from forebay import _forebay
from forebay import transforms as T
from forebay._arrays import torch_arrays

SILENTLY = "further ones are counted silently"


@pytest.fixture
def dataset(folder: Path, plain: T.Compose) -> fb.ImageFolder:
    return fb.ImageFolder(folder, transform=plain)


class WithIndex(fb.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), index


class Half(fb.ImageFolder):
    def __len__(self) -> int:
        return super().__len__() // 2


class Augmented(data.Subset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)

    def __getitems__(self, indices: Any) -> Any:
        return [self[index] for index in indices]


def test_a_method_that_would_never_be_called_is_named(folder: Path, plain: T.Compose) -> None:
    whole: Any = fb.ImageFolder(folder, plain)
    for made, method in (
        (WithIndex(folder, plain), "WithIndex.__getitem__"),
        (data.Subset(WithIndex(folder, plain), [1]), "WithIndex.__getitem__"),  # type: ignore[arg-type,var-annotated]
        (WithIndex(folder, plain).subset([1]), "WithIndex.__getitem__"),
        (Half(folder, plain), "Half.__len__"),
        (Augmented(whole, [1, 2]), "Augmented.__getitem__"),
    ):
        with pytest.raises(fb.errors.ConfigError, match=method) as raised:
            fb.DataLoader(made, 4)
        for way in ("transform", "target_transform", "collate_fn"):
            assert way in raised.value.hint


def test_other_methods_may_be_ones_own(folder: Path, plain: T.Compose) -> None:
    class Named(fb.ImageFolder):
        def name(self, index: int) -> str:
            return self.samples[index][0]

    assert len(list(fb.DataLoader(Named(folder, plain), 4))) == 6


def test_a_loader_that_is_older_than_the_process_group_is_refused(
    dataset: fb.ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, given = fb.DataLoader(dataset, 4), fb.DataLoader(dataset, 4, rank=0, world_size=1)
    ranked = fb.DataLoader(dataset, 4, rank=1, world_size=4)
    monkeypatch.setattr(torch_arrays, "distributed", lambda: (1, 4))
    with pytest.raises(fb.errors.ConfigError, match=r"rank 0 of 1, .* rank 1 of 4\n.*after .*init_process_group"):
        iter(older)
    for loader in (given, ranked, fb.DataLoader(dataset, 4), fb.DataLoader(dataset, 4, world_size=4)):
        next(iter(loader))
    with pytest.raises(fb.errors.ConfigError, match="rank 1 of 4"):
        iter(older)


def test_a_process_group_of_one_changes_nothing(dataset: fb.ImageFolder, tmp_path: Path) -> None:
    loader = fb.DataLoader(dataset, 4)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert len(list(loader)) == 6
    finally:
        torch.distributed.destroy_process_group()


def test_a_world_of_one_needs_no_rank(dataset: fb.ImageFolder) -> None:
    assert fb.DataLoader(dataset, 4, world_size=1).rank == 0


@pytest.mark.parametrize("name", ["transform", "target_transform", "loader"])
@pytest.mark.parametrize("is_subset", [False, True])
def test_a_dataset_that_changed_under_its_loader_is_refused(
    folder: Path, dataset: fb.ImageFolder, name: str, is_subset: bool
) -> None:
    loader = fb.DataLoader(data.Subset(dataset, range(8)) if is_subset else dataset, 4)  # type: ignore[arg-type,var-annotated]
    next(iter(loader))
    setattr(dataset, name, T.Compose([T.Resize((8, 8)), T.ToTensor()]))
    with pytest.raises(fb.errors.ConfigError, match=rf"dataset\.{name}: .*\n.*construct the loader again"):
        iter(loader)
    if name == "transform":
        assert next(iter(fb.DataLoader(dataset, 4)))[0].shape == (4, 3, 8, 8)


def test_the_first_failure_is_said_once_for_each_loader(folder: Path, dataset: fb.ImageFolder) -> None:
    for index in (3, 9):
        folders.text(Path(dataset.samples[index][0]))
    for on_error, done in (("replace", "replaced"), ("skip", "skipped")):
        options: Any = {"on_error": on_error}
        loader = fb.DataLoader(dataset, 4, **options)
        with pytest.warns(RuntimeWarning, match=rf"0006.jpg.*: {done}; {SILENTLY}: see loader.report\(\)") as said:
            for _ in range(2):
                list(loader)
        (warning,) = said
        assert warning.filename == __file__


@pytest.mark.parametrize("damaged", [0, 5, 23])
@pytest.mark.parametrize("order", [{}, {"sampler": range(24)}, {"batch_size": None}], ids=str)
def test_a_batch_of_which_nothing_is_left_is_said_too(
    dataset: fb.ImageFolder, damaged: int, order: dict[str, Any]
) -> None:
    folders.empty(Path(dataset.samples[damaged][0]))
    loader = fb.DataLoader(dataset, on_error="skip", **order)
    with pytest.warns(RuntimeWarning, match=f"{Path(dataset.samples[damaged][0]).name}.* skipped; {SILENTLY}"):
        assert len(list(loader)) == 23


@pytest.mark.filterwarnings("error")
def test_nothing_is_said_where_nothing_failed(dataset: fb.ImageFolder) -> None:
    loader = fb.DataLoader(dataset, 4, on_error="replace")
    assert [len(list(loader)) for _ in range(2)] == [6, 6]
    loader.load_state_dict(loader.state_dict(), skip_steps=range(1, 3))
    assert len(list(loader)) == 4


@pytest.mark.filterwarnings("error")
def test_a_warning_made_an_error_does_not_count_the_batch(dataset: fb.ImageFolder) -> None:
    folders.empty(Path(dataset.samples[5][0]))
    loader = fb.DataLoader(dataset, 4, on_error="replace")
    with pytest.raises(RuntimeWarning, match=SILENTLY):
        list(loader)
    assert loader.state_dict()["step"] == 1


def test_a_ledger_may_be_in_the_home_folder(
    dataset: fb.ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folders.text(Path(dataset.samples[3][0]))
    list(fb.DataLoader(dataset, 4, on_error="replace", ledger="~/x.jsonl"))
    assert (tmp_path / "x.jsonl").read_text().count("\n") == 1
    assert not os.path.exists("~")


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_ids_name_what_was_delivered(dataset: fb.ImageFolder, output: Any) -> None:
    folders.text(Path(dataset.samples[3][0]))
    clean = {index: dataset[index] for index in range(24) if index != 3}
    loader = fb.DataLoader(dataset, 5, shuffle=True, on_error="replace", with_ids=True, output=output)
    seen: list[int] = []
    for images, labels, ids in loader:
        assert str(ids.dtype).removeprefix("torch.") == "int64" and len(ids) == len(labels)
        assert isinstance(ids, torch.Tensor if output == "torch" else numpy.ndarray)
        for image, label, index in zip(images, labels, ids.tolist(), strict=True):
            assert label == clean[index][1] and torch.equal(torch.as_tensor(image), clean[index][0])
        seen += ids.tolist()
    (failure,) = loader.failures
    assert sorted(seen) == sorted([*clean, failure.substitute])  # type: ignore[list-item]


def test_ids_reach_collate_fn_and_single_samples(dataset: fb.ImageFolder) -> None:
    def collate(rows: list[Any]) -> list[int]:
        return [index for _, _, index in rows]

    order = [7, 3, 3]
    assert list(fb.DataLoader(dataset, 2, sampler=order, with_ids=True, collate_fn=collate)) == [[7, 3], [3]]
    samples = list(fb.DataLoader(dataset, None, sampler=order, with_ids=True))
    assert [(label, index) for _, label, index in samples] == [(dataset.targets[index], index) for index in order]
    (batch,) = fb.DataLoader(dataset.subset([5, 4]), 2, with_ids=True)
    assert batch[2].tolist() == [0, 1], "of the dataset that was given"


def test_a_version_and_what_a_loader_prints(dataset: fb.ImageFolder) -> None:
    assert fb.__version__ == _forebay.__version__
    loader = fb.DataLoader(dataset, 5, num_workers=2, on_error="replace")
    expected = (
        "DataLoader(dataset=<ImageFolder of 24 samples>, batch_size=5, num_workers=2, on_error='replace', epoch={})"
    )
    assert repr(loader) == expected.format(0)
    list(loader)
    loader.close()
    assert repr(loader) == expected.format(1)


def test_the_missing_accelerator_is_said_at_the_users_line(
    dataset: fb.ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_arrays, "can_pin", lambda: False)
    with pytest.warns(UserWarning, match="pin_memory: expected an accelerator") as said:
        fb.DataLoader(dataset, 4, pin_memory=True)
    assert said[0].filename == __file__


def test_whole_numbers_of_a_table_stay_whole(dataset: fb.ImageFolder) -> None:
    folders.text(Path(dataset.samples[3][0]))
    os.remove(dataset.samples[9][0])
    loader = fb.DataLoader(dataset, 4, on_error="replace")
    assert loader.failures.to_pandas().dtypes["mtime_ns"] == "Int64"
    list(loader)
    table, failures = loader.failures.to_pandas(), loader.failures
    for name in ("errno", "substitute", "size_bytes", "mtime_ns"):
        assert table.dtypes[name] == "Int64", name
        expected = [getattr(failure, name) for failure in failures]
        assert [None if value is pandas.NA else int(value) for value in table[name]] == expected, name


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_a_state_of_something_else_is_refused_in_few_words(dataset: fb.ImageFolder, native: bool) -> None:
    loader = fb.DataLoader(dataset if native else list(range(8)), 4)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20)))
    state = loader.state_dict()
    optimizer = torch.optim.SGD(model.parameters())
    wrong: list[tuple[Any, str, str]] = [
        (
            model.state_dict(),
            r"looks like a model's state_dict \(40 keys: '0\.weight', '0\.bias'",
            "loader.state_dict()",
        ),
        (optimizer.state_dict(), "looks like an optimizer's state_dict", "loader.state_dict()"),
        (
            {"model": model.state_dict(), "data": state},
            "a checkpoint that holds one under 'data'",
            "checkpoint['data']",
        ),
        ({"x" * 100_000: 1}, "got one without .*epoch", "loader.state_dict()"),
        (torch.zeros(100_000), "expected a dict that state_dict\\(\\) gave, got a tensor", ""),
    ]
    for given, said, hint in wrong:
        with pytest.raises(fb.errors.StateMismatchError, match=said) as raised:
            loader.load_state_dict(given)
        assert len(str(raised.value)) < 500
        assert hint in raised.value.hint
        assert "epoch" in str(raised.value) or "a tensor" in str(raised.value), "which keys were expected"
    next(iter(loader))
    loader.load_state_dict(state)


def forgets(picture: Any) -> None:
    """A transform without a return."""


def passes(value: Any) -> Any:
    value.size
    return value


@pytest.mark.parametrize(
    ("chain", "kind", "said"),
    [
        ([T.ToTensor(), forgets], fb.errors.ConfigError, 'forgets returned None for "{path}" (expected a tensor)'),
        ([T.Lambda(forgets)], fb.errors.ConfigError, 'Lambda(forgets) returned None for "{path}" (expected a tensor)'),
        ([forgets, T.ToTensor()], TypeError, "forgets returned None: expected a picture or a tensor"),
        ([forgets, passes], AttributeError, "forebay: the transform before it, forgets, returned None"),
    ],
    ids=["last", "lambda", "before a native one", "before another"],
)
def test_a_transform_that_returns_nothing_is_named_with_the_file(
    folder: Path, chain: list[Any], kind: type[Exception], said: str
) -> None:
    dataset = fb.ImageFolder(folder, T.Compose(chain))
    with pytest.raises(kind) as raised:
        next(iter(fb.DataLoader(dataset, 4)))
    told = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    path = dataset.samples[0][0]
    assert said.format(path=path) in told
    assert path in told


def test_a_collate_function_may_take_samples_that_are_none(folder: Path) -> None:
    def count(rows: Any) -> int:
        return sum(picture is None for picture, _ in rows)

    assert list(fb.DataLoader(fb.ImageFolder(folder, forgets), 12, collate_fn=count)) == [12, 12]


@pytest.mark.parametrize("chosen", [lambda whole: whole, lambda whole: data.Subset(whole, [5, 4, 3, 2])])
def test_a_python_dataset_whose_transform_returns_nothing_is_named_with_the_file(folder: Path, chosen: Any) -> None:
    whole = torchvision.datasets.ImageFolder(str(folder), torchvision.transforms.Compose([passes, forgets]))
    with pytest.raises(TypeError) as raised:
        next(iter(fb.DataLoader(chosen(whole), 4)))
    index = 0 if chosen(whole) is whole else 5
    told = "\n".join(raised.value.__notes__)
    assert f'sample 0 ("{whole.samples[index][0]}") has None at [0], which no batch can be made of' in told
    assert "its transform is passes, then forgets: does each return its result?" in told


def test_a_list_of_transforms_is_told_what_to_do(folder: Path) -> None:
    with pytest.raises(fb.errors.ConfigError, match="transform: expected one transform, got a list of 2") as raised:
        fb.ImageFolder(folder, transform=[T.Resize(8), T.ToTensor()])  # type: ignore[arg-type]
    assert "transforms.Compose([…])" in raised.value.hint


@pytest.mark.parametrize("on_error", ["raise", "replace", "skip"])
def test_a_folder_that_is_gone_ends_the_loop_at_once(dataset: fb.ImageFolder, folder: Path, on_error: str) -> None:
    loader = fb.DataLoader(dataset, 2, on_error=on_error, prefetch_factor=1, num_workers=1)
    shutil.rmtree(folder)
    with pytest.raises(fb.errors.NotFoundError, match=f'"{folder}" is gone, and all samples of the dataset') as raised:
        list(loader)
    assert "unmounted" in raised.value.hint
    assert len(loader.failures) <= 2
