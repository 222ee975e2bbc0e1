"""Orders by blocks: which samples are mixed, that it resumes, which order is taken where."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import forebay as fb

FILES, LINES = 12, 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(FILES):
        lines = (f"{number} {line}\n" for line in range(LINES))
        (tmp_path / f"{number:02}.txt").write_text("".join(lines))
    return tmp_path


def drawn(loader: fb.DataLoader) -> list[str]:
    return [line for batch in loader for line in batch]


def loader(root: Path, **options: Any) -> fb.DataLoader:
    return fb.DataLoader(fb.TextLines(root), **{"batch_size": 5, "seed": 3} | options)


def test_a_window_mixes_a_few_files_at_a_time(root: Path) -> None:
    windowed = loader(root, shuffle="window", shuffle_window=3)
    epochs = [drawn(windowed) for _ in range(2)]
    for epoch in epochs:
        assert len(set(epoch)) == FILES * LINES
        windows = [epoch[at : at + 3 * LINES] for at in range(0, FILES * LINES, 3 * LINES)]
        files = [{line.split()[0] for line in window} for window in windows]
        assert [len(each) for each in files] == [3] * 4
        # Mixed with each other, and not one file after the other.
        assert all(len({line.split()[0] for line in window[:LINES]}) == 3 for window in windows)
    assert epochs[0] != epochs[1]
    assert windowed.stats()["order"] == {"kind": "window", "blocks": FILES, "mixed_share": 0.25}


def test_it_resumes_exactly_on_other_ranks_and_refuses_another_window(root: Path) -> None:
    whole = drawn(loader(root, shuffle="window", shuffle_window=3))
    running = loader(root, shuffle="window", shuffle_window=3)
    batches = iter(running)
    before = [line for _ in range(8) for line in next(batches)]
    state = json.loads(json.dumps(running.state_dict()))
    ranks = [loader(root, shuffle="window", shuffle_window=3, rank=rank, world_size=2) for rank in range(2)]
    for each in ranks:
        each.load_state_dict(state)
    after = [line for step in zip(*ranks, strict=True) for batch in step for line in batch]
    assert before + after == whole
    other = loader(root, shuffle="window", shuffle_window=4)
    with pytest.raises(fb.errors.StateMismatchError, match="window"):
        other.load_state_dict(state)


def test_the_order_follows_from_the_kind_of_storage(root: Path, tmp_path: Path) -> None:
    def kind(**options: Any) -> tuple[str, float]:
        order = loader(root, **options).stats()["order"]
        return order["kind"], order["mixed_share"]

    assert kind() == ("sequential", 0) and kind(shuffle=True) == kind(shuffle="global") == ("global", 1)
    assert kind(shuffle="auto") == ("global", 1)
    (root / "z.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    assert kind(shuffle="auto") == ("window", 1)
    assert drawn(loader(root, shuffle=True)) == drawn(loader(root, shuffle="global"))


def test_what_has_no_blocks_says_so(root: Path) -> None:
    texts = fb.TextFiles(root)
    with pytest.raises(fb.errors.ConfigError, match="whose samples lie in blocks"):
        fb.DataLoader(texts, shuffle="window")
    assert fb.DataLoader(texts, shuffle="auto").stats()["order"]["kind"] == "global"
    with pytest.raises(fb.errors.ConfigError, match="shuffle_window: expected"):
        fb.DataLoader(texts, shuffle=True, shuffle_window=3)
    with pytest.raises(fb.errors.ConfigError, match="shuffle: expected"):
        fb.DataLoader(texts, shuffle="all")
    with pytest.raises(fb.errors.ConfigError, match="for a Python dataset"):
        fb.DataLoader([1, 2], shuffle="window")
