"""`forebay pack --tokenize`, beside the tokenizer's own package, and what `Tokens` reads of it."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import tokenizers

import children
import forebay as fb

SENTENCES = [
    "Wo die Elbe durch die Berge bricht, steht eine kleine Stadt.",
    "größer, am größten",
    "a b  c\n\td",
    "",
    "多语言 текст 🙂",
    "x" * 2000,
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of bytes, as GPT-2's is, that was trained here; it would cut what is long, and adds a token in front."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.normalizer = tokenizers.normalizers.NFC()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(SENTENCES * 3, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.enable_truncation(16)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def own(path: Path) -> tokenizers.Tokenizer:
    read = tokenizers.Tokenizer.from_file(str(path))
    read.no_truncation()
    return read


def pack(*arguments: object) -> dict[str, Any]:
    status, out, errors = children.call("pack", *map(str, arguments), "--json")
    assert status == 0, errors
    return json.loads(out)


@pytest.mark.parametrize("special", [False, True])
def test_documents_have_the_tokens_of_the_tokenizers_own_package(
    tmp_path: Path, tokenizer: Path, special: bool
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    texts = SENTENCES * 20
    rows = [json.dumps({"body": text}, ensure_ascii=number % 2 == 0) for number, text in enumerate(texts)]
    (corpus / "a.jsonl").write_text("\n".join(rows[:50]))
    (corpus / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(rows[50:]).encode()))
    more = ["--special-tokens"] if special else []
    arguments = (corpus, "-o", tmp_path / "tokens", "--tokenize", tokenizer, "--field", "body")
    told = pack(*arguments, "--append", "<|endoftext|>", *more)
    reference = own(tokenizer)
    expected = [reference.encode(text, add_special_tokens=special).ids for text in texts]
    expected = [[*tokens, 1] for tokens in expected if tokens]
    sizes = {"documents": len(expected), "tokens": sum(map(len, expected)), "empty": len(texts) - len(expected)}
    assert {name: told[name] for name in sizes} == sizes and told["dtype"] == "uint16"

    stream = fb.Tokens(tmp_path / "tokens", 16, documents=True, targets=False, tail="pad")
    assert stream.token_count == sizes["tokens"]
    found = numpy.concatenate([stream[index]["tokens"].numpy() for index in range(len(stream))])
    assert found[: sizes["tokens"]].tolist() == [token for tokens in expected for token in tokens]
    ends = {int(end) for end in numpy.cumsum([len(tokens) for tokens in expected])}
    seen = {16 * index + int(end) for index in range(len(stream)) for end in stream[index]["cu_seqlens"][1:]}
    assert ends <= seen
