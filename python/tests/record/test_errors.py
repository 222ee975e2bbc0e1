"""The registry, the classes and the document say the same; every error names path, stage, cause and hint."""

import builtins
import inspect
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

import folders
import forebay as fb
from forebay import errors
from forebay import transforms as T
from forebay._forebay import error_registry, hint_settings

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, fb.ForebayError)]
TO_TENSOR = T.Compose([T.Resize((8, 8)), T.ToTensor()])


@pytest.mark.parametrize("row", error_registry(), ids=lambda row: str(row[0]))
def test_each_row_has_its_class(row: tuple[str, str, str, str, str]) -> None:
    code, name, builtin, meaning, hint = row
    kind = getattr(errors, name)
    assert kind.code == code and issubclass(kind, (fb.ForebayError, getattr(builtins, builtin)))
    assert issubclass(kind, getattr(builtins, builtin)) and issubclass(kind, fb.ForebayError)
    assert kind("x").hint == hint
    assert kind.__doc__.lower().startswith(meaning.split(",")[0].split("`")[0].strip().lower()[:10])


def test_hints_name_arguments_as_python_has_them(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.NotFoundError) as raised:
        fb.ImageFolder(tmp_path)
    assert "pass allow_empty=True to accept" in raised.value.hint
    # What a hint may name is an argument of something that a user calls, or of a command without a twin in Python.
    callables = [value for module in (fb, T) for value in vars(module).values() if callable(value)]
    arguments = {name for value in callables for name in _parameters(value)} | {"dry_run", "max_delete"}
    for name, told in hint_settings():
        assert name in arguments and told == f"{name}=True"


def _parameters(value: Any) -> list[str]:
    try:
        return list(inspect.signature(value).parameters)
    except ValueError:  # a class of the C API
        return []


def test_each_class_has_its_row() -> None:
    assert {kind.__name__ for kind in CLASSES} == {row[1] for row in error_registry()} | {"ForebayError"}


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind is not fb.ForebayError])
def test_attributes_survive_pickling(kind: type[fb.ForebayError]) -> None:
    error = kind(
        "it broke", path="a/b.jpg", index=7, stage="decode", errno=5, attempts=3, hint="mend it", detail="marker"
    )
    error.add_note("a note")
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(error, protocol))
        assert type(back) is kind and str(back) == str(error) and back._fields() == error._fields()
    if isinstance(error, OSError):
        assert (error.filename, error.errno) == ("a/b.jpg", 5)


def test_a_class_can_be_caught_as_its_builtin(tmp_path: Path) -> None:
    for kind in (FileNotFoundError, OSError, fb.ForebayError, errors.NotFoundError):
        with pytest.raises(kind):
            fb.ImageFolder(tmp_path / "missing")


def test_the_text_names_path_stage_cause_and_hint(folder: Path) -> None:
    dataset = fb.ImageFolder(folder, transform=TO_TENSOR)
    path = dataset.samples[0][0]
    folders.truncate(Path(path))
    with pytest.raises(errors.CorruptError) as raised:
        list(fb.DataLoader(dataset, 4))
    for part in (path, "stage decode", "is truncated", "sample 0", "hint: the file itself is bad"):
        assert part in str(raised.value), part
    assert raised.value.attempts == 2, "a fresh read agreed"


class MineError(Exception):
    """With arguments of its own: could not be built again from a text."""

    def __init__(self, number: int, *, flag: bool) -> None:
        super().__init__(number)
        self.number, self.flag = number, flag


def break_it(value: Any) -> Any:
    raise MineError(42, flag=True)


@pytest.mark.parametrize("place", ["before", "after", "loader", "item"])
def test_exceptions_of_the_users_own_code_keep_their_type(folder: Path, place: str) -> None:
    chains = {
        "before": [break_it, T.CenterCrop(8), T.ToTensor()],
        "after": [T.CenterCrop(8), T.ToTensor(), T.Lambda(break_it)],
    }
    transform = T.Compose(chains.get(place, [break_it] if place == "item" else [T.ToTensor()]))
    loader = {"loader": break_it} if place == "loader" else {}
    dataset = fb.ImageFolder(folder, transform=transform, **loader)
    with pytest.raises(MineError) as raised:
        if place == "item":
            dataset[0]
        else:
            list(fb.DataLoader(dataset, 4))
    assert (raised.value.number, raised.value.flag) == (42, True)
    assert any(entry.name == "break_it" for entry in traceback.extract_tb(raised.value.__traceback__))
    notes = "\n".join(raised.value.__notes__)
    for part in (dataset.samples[0][0], "hint:", "stage"):
        assert part in notes, part


def test_a_users_exception_is_replaced_like_any_other(folder: Path) -> None:
    def break_one(value: Any) -> Any:
        if value.getpixel((0, 0)) == first:
            raise MineError(1, flag=False)
        return value

    dataset = fb.ImageFolder(folder, transform=T.Compose([break_one, T.CenterCrop(8), T.ToTensor()]))
    first = fb.ImageFolder(folder)[5][0].getpixel((0, 0))
    loader = fb.DataLoader(dataset, 4, on_error="replace")
    list(loader)
    (failure,) = loader.failures
    assert (failure.index, failure.stage, failure.outcome) == (5, "transform", "replaced")
    assert failure.code == "user_code"
    assert "MineError" in failure.message and "break_one" in failure.message


def test_the_document_has_every_row() -> None:
    document = (Path(__file__).parents[3] / "docs" / "errors.md").read_text()
    for code, name, builtin, meaning, hint in error_registry():
        assert f"| `{code}` | `{name}` | `{builtin}` | {meaning} | {hint} |" in document
