"""Walks what people do on a first day with files that they have, and tells which of it works.

    python bench/first_day/idioms.py TRAINER

TRAINER is the binary. Needs transformers and PyTorch. Models are small and train on the host. `files/` holds a
configuration of Axolotl, a script and arguments of TRL, a launch script of Megatron and a job of torchtitan. Prints a
table, and exits with 1 if something fails.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

FILES = Path(__file__).resolve().parent / "files"
TRAINER = str(Path(sys.argv[1]).resolve()) if len(sys.argv) == 2 else sys.exit(__doc__)
SMALL = "--device host --threads 1 --seq-length 64 --global-batch-size 4 --micro-batch-size 2 --eval-interval 0".split()
TEXT = "The licence grants you freedom to share and to change the work. " * 60


def run(folder, *words):
    """The exit code of a command of the trainer, and what it printed."""
    done = subprocess.run([TRAINER, *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def works(folder, *words):
    code, out, errors = run(folder, *words)
    assert code == 0, f"{words[0]} ended with {code}: {errors.strip().splitlines()[-1:]}"
    return out


def refused(folder, *words, says):
    code, _, errors = run(folder, *words)
    errors = errors.strip()
    assert code == 2 and "Rule: " in errors and "Fix: " in errors, f"exit code {code}, {errors[-200:]}"
    missing = [part for part in says if part not in errors]
    assert not missing, f"{missing} is not in: {errors}"
    return errors


def text_and_tokenizer(folder):
    (folder / "text.txt").write_text(TEXT)
    works(folder, "tokenizer", "train", "--input", "text.txt", "--vocab-size", 300, "--output", "tokenizer.json")


def base_model(folder, preset):
    """A model that was trained on a text, as a folder for transformers."""
    text_and_tokenizer(folder)
    data = ["--data-path", "text.txt", "--tokenizer", "tokenizer.json", "--vocab", 512]
    works(folder, "--preset", preset, *SMALL, *data, "--steps", 60, "--lr", "3e-3", "--lr-warmup-steps", 2, "--save",
          "base")
    works(folder, "convert", "--to", "hf", "base", "hf")


def generated(folder, text, most):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tok, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    inputs = tok(text, return_tensors="pt")
    made = model.generate(**inputs, max_new_tokens=most, do_sample=False)
    new = made[0][inputs["input_ids"].shape[1]:]
    return tok.decode(made[0], skip_special_tokens=True), tok.decode(new, skip_special_tokens=False), len(new)


def export_generates(preset):
    def idiom(folder):
        base_model(folder, preset)
        text, _, _ = generated(folder / "hf", "The licence", 12)
        ours = works(folder, "sample", "--checkpoint", "base", "--prompt", "The licence", "--tokens", 12,
                     "--temperature", 0, "--device", "host").strip()
        assert ours.endswith(text.strip()) or text.strip() in ours, f"transformers: {text!r}, trainer: {ours!r}"
        return "the same text as `trainer sample`"
    return idiom


def base_with_chat_tokens(folder):
    base_model(folder, "tiny-llama")
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "The work."}]
    (folder / "chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 20)
    flags = ["--init-from", "hf", *SMALL, "--sft", "--data-path", "chats.jsonl", "--chat-template", "chatml"]
    refused(folder, *flags, "--steps", 1, says=["<|im_end|>", "--add-special-tokens"])
    works(folder, *flags, "--add-special-tokens", "--steps", 80, "--lr", "3e-3", "--lr-warmup-steps", 2, "--save", "chat")
    works(folder, "convert", "--to", "hf", "chat", "chat-hf")
    prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    _, new, count = generated(folder / "chat-hf", prompt, 40)
    assert count < 40 and new.endswith("<|im_end|>"), f"generate does not stop: {new!r}"
    return f"refused without the tokens; with them generate stops: {new!r}"


def imported(folder, name, expected, *flags, ranks):
    """Imports a file, compares values, and plans the run."""
    code, page, errors = run(folder, "import", FILES / name, *flags)
    assert code == 0, errors.strip()
    table = tomllib.loads(page)
    for key, value in expected.items():
        section, option = key.split(".")
        found = table.get(section, {}).get(option)
        assert found == value, f"{key} is {found}, not {value}"
    (folder / "run.toml").write_text(page)
    works(folder, "plan", "--ranks", ranks, "--gpu", "h200", "--as-given", "--", "--config", "run.toml")
    said = sum(line.startswith("# ") for line in page.splitlines()) - 1
    return f"{len(expected)} values are right, {said} comments, the plan fits"


def axolotl(folder):
    refused(folder, "import", FILES / "axolotl.yaml", says=["Axolotl's YAML", "docs/switching.md"])
    return "refused, with the way"


def trl_script(folder):
    refused(folder, "import", FILES / "trl_sft.py", says=["a script of TRL", "to_json_string"])
    return "refused, with the way: its arguments as JSON"


def trl_arguments(folder):
    expected = {"train.micro_batch_size": 2, "train.global_batch_size": 16, "model.seq_length": 1024,
                "optimizer.lr": 2e-5, "optimizer.schedule": "cosine", "precision.compute": "bf16", "data.sft": True,
                "logging.wandb": True, "checkpoint.interval": 500, "train.epochs": 1.0}
    code, page, errors = run(folder, "import", FILES / "trl_arguments.json")
    assert code == 0, errors
    table = tomllib.loads(page)
    wrong = {key: value for key, value in expected.items()
             if table.get(key.split(".")[0], {}).get(key.split(".")[1]) != value}
    named = ["warmup_ratio = 0.03", "packing"]
    assert not wrong and all(name in page for name in named), f"{wrong}\n{page}"
    return f"{len(expected)} values are right; warm-up and packing are named"


def megatron(folder):
    expected = {"model.layers": 24, "model.hidden": 1024, "parallel.tensor": 2, "train.global_batch_size": 64,
                "optimizer.warmup_steps": 3200, "data.split": 0.949, "train.steps": 500000, "optimizer.lr": 0.00015,
                "precision.compute": "bf16", "checkpoint.dir": "checkpoints/gpt2_345m"}
    return imported(folder, "megatron_gpt.sh", expected, ranks=8)


def torchtitan(folder):
    expected = {"model.preset": "llama-8b", "model.seq_length": 8192, "parallel.distributed_optimizer": True,
                "train.global_batch_size": 8, "optimizer.lr": 3e-4, "logging.tensorboard": True,
                "recompute.granularity": "selective"}
    return imported(folder, "torchtitan_llama3_8b.toml", expected, "--ranks", 8, ranks=8)


IDIOMS = [
    ("GPT-2: export, then `generate(**tok(...))`", export_generates("tiny")),
    ("Llama: export, then `generate(**tok(...))`", export_generates("tiny-llama")),
    ("a base model gets chat tokens, and stops", base_with_chat_tokens),
    ("Axolotl's YAML", axolotl),
    ("a script of TRL", trl_script),
    ("arguments of TRL as JSON", trl_arguments),
    ("a launch script of Megatron", megatron),
    ("a job of torchtitan", torchtitan),
]


def main():
    failures = 0
    print("| idiom | | |\n|---|---|---|")
    for name, idiom in IDIOMS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                said, outcome = idiom(Path(folder)), "works"
            except Exception as error:  # noqa: BLE001 - each failure is a row
                said, outcome = str(error), "FAILED"
                failures += 1
        said = " ".join(said.split())[:240].replace("|", "\\|")
        print(f"| {name} | {outcome} | {said} |", flush=True)
    print(f"\n{len(IDIOMS)} idioms, {failures} failed.")
    sys.exit(failures > 0)


main()
