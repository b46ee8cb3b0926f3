"""Tokenizers as Python's packages make and read them.

    python tokenizer_files.py make FOLDER     folders with vocab.json and merges.txt of FOLDER/tokenizer.json, and their tokens
    python tokenizer_files.py check FOLDER    FOLDER/tokenizer.json is what the package makes of FOLDER/text.txt
"""

import json
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2TokenizerFast, Qwen2TokenizerFast

WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|[\r\n]+\t*|\t+|\s+(?!\S)|\s+"
FOLDERS = {
    "gpt2": (GPT2TokenizerFast, {}),
    "qwen2": (Qwen2TokenizerFast, {"tokenizer_class": "Qwen2Tokenizer"}),
    "begins": (GPT2TokenizerFast, {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}),
}


def make(folder):
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    text = (folder / "probe.txt").read_text()
    for name, (tokenizer, config) in FOLDERS.items():
        path = folder / name
        path.mkdir()
        (path / "vocab.json").write_text(json.dumps(model["vocab"]))
        (path / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]) + "\n")
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        tokens = tokenizer.from_pretrained(path)(text)["input_ids"]
        # transformers 4 puts the token of add_bos_token in the slow class only.
        begin = [0] if config.get("add_bos_token") and tokens[0] != 0 else []
        (path / "expected.json").write_text(json.dumps([*begin, *tokens, 0]))


def check(folder):
    made = json.loads((folder / "tokenizer.json").read_text())
    special = [token["content"] for token in made["added_tokens"]]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(made["model"]["vocab"]), min_frequency=2, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([(folder / "text.txt").read_text()], trainer)
    assert json.loads(tokenizer.to_str()) == made
    text = (folder / "probe.txt").read_text()
    read = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert read.decode(read.encode(text).ids, skip_special_tokens=False) == text


{"make": make, "check": check}[sys.argv[1]](Path(sys.argv[2]))
