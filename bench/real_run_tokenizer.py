"""The tokenizer of the real run: a byte-level BPE trained on a part of its training text.

    python bench/real_run_tokenizer.py FOLDER tokenizer.json [--vocab 32000] [--megabytes 60]

FOLDER is the `train` folder that real_run_data.sh leaves. Which files are taken is decided by a hash of their paths. The
interpreter needs `pip install tokenizers`. A file of the result is read by `trainer tokenize` and by Hugging Face alike.
"""

import argparse
import hashlib
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

# GPT-2's splits (Radford et al., 2019), but numbers of at most three digits, as in GPT-4, and line ends together with
# the tabs that follow them: code is indented.
SPLITS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|[\r\n]+\t*|\t+|\s+(?!\S)|\s+"


def texts(folder, size):
    """Texts of files in the order of their hashes, until `size` bytes are reached."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted(paths, key=lambda name: hashlib.sha256(name.encode()).digest()):
        try:
            text = paths[name].read_text()
        except UnicodeDecodeError:
            continue
        yield text
        size -= len(text.encode())
        if size <= 0:
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--megabytes", type=float, default=60)
    options = parser.parse_args()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLITS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts(options.folder, options.megabytes * 1e6), trainer)
    tokenizer.save(str(options.output))
    print(f"{tokenizer.get_vocab_size()} tokens, {options.output.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
