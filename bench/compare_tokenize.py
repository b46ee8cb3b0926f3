"""`trainer tokenize` beside the Python package `tokenizers` on the same file: both with the same tokenizer and threads.

    python bench/compare_tokenize.py TRAINER FOLDER [MEGABYTES] [ROUNDS]

TRAINER is the release binary; the interpreter running this needs `pip install tokenizers`. The text is the UTF-8 files
of FOLDER, MEGABYTES of them (40), one document a file, as JSON lines; the tokenizer is a byte-level BPE of 32,000 tokens
trained on its first tenth. Each side reads the JSON lines, encodes every document, ends it with the end-of-text token and
writes 16-bit tokens; what is timed is the whole process. The tokens must be the same, or this fails. Prints the median
of all rounds and their range.
"""

import array
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# The peer, as a process of its own: reads JSON lines, writes tokens.
PEER = """
import array, json, sys
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
end = tokenizer.token_to_id("<|endoftext|>")
with open(sys.argv[2]) as lines, open(sys.argv[3], "wb") as out:
    batch = []
    def flush():
        tokens = array.array("H")
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            tokens.extend(encoding.ids)
            tokens.append(end)
        tokens.tofile(out)
        batch.clear()
    for line in lines:
        batch.append(json.loads(line)["text"])
        if len(batch) == 1000:
            flush()
    flush()
"""


def corpus(folder, size):
    """Documents of up to a megabyte, in the order of their paths, `size` bytes in all."""
    documents, total = [], 0
    for path in sorted(Path(folder).rglob("*")):
        if total >= size:
            break
        try:
            text = path.read_text() if path.is_file() and path.stat().st_size <= 1_000_000 else ""
        except (UnicodeDecodeError, OSError):
            continue
        if text and "<|endoftext|>" not in text:
            documents.append(text)
            total += len(text.encode())
    return documents, total


def train(documents, path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=32000, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.save(str(path))


def timed(command, threads):
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
    began = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def llmc_tokens(folder):
    """The tokens of all shards: files of llm.c, 1024 bytes of header and 16-bit tokens."""
    tokens = array.array("H")
    for shard in sorted(folder.glob("*.bin")):
        tokens.frombytes(shard.read_bytes()[1024:])
    return tokens


def main():
    trainer, folder = sys.argv[1:3]
    megabytes, rounds = (int(sys.argv[at]) if len(sys.argv) > at else default for at, default in [(3, 40), (4, 5)])
    documents, total = corpus(folder, megabytes * 10**6)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        text, tokenizer, ids = scratch / "text.jsonl", scratch / "tokenizer.json", scratch / "theirs.bin"
        text.write_text("".join(json.dumps({"text": document}, ensure_ascii=False) + "\n" for document in documents))
        train(documents[: max(1, len(documents) // 10)], tokenizer)
        print(f"{len(documents)} documents, {total / 1e6:.1f} MB, {rounds} rounds in turn\n")
        print("| threads | trainer tokenize, MB/s | Python tokenizers, MB/s | ratio |\n|---|---|---|---|")
        for threads in sorted({1, os.cpu_count()}):
            rates = {"ours": [], "theirs": []}
            for number in range(rounds):
                ours = scratch / f"ours-{threads}-{number}"
                command = [trainer, "tokenize", "--tokenizer", tokenizer, "--output", ours, text]
                rates["ours"].append(total / 1e6 / timed(command, threads))
                rates["theirs"].append(total / 1e6 / timed([sys.executable, "-c", PEER, tokenizer, text, ids], threads))
                theirs = array.array("H")
                theirs.frombytes(ids.read_bytes())
                assert llmc_tokens(ours) == theirs, "the tokens differ"
            medians = {side: statistics.median(values) for side, values in rates.items()}
            cells = [f"{medians[side]:.1f} ({min(values):.1f} to {max(values):.1f})" for side, values in rates.items()]
            print(f"| {threads} | {cells[0]} | {cells[1]} | {medians['ours'] / medians['theirs']:.2f} |", flush=True)
        print(f"\n{len(theirs)} tokens, the same on both sides.")


if __name__ == "__main__":
    main()
