"""A mixture of experts beside the dense model of as many active parameters, on the Linux kernel's text, one after the other.

    python bench/experts_run.py --text linux-text.tar.xz --tokenizer tokenizer.json [--trainer target/release/trainer]
        [--work experts-run] [--steps 2289] [--device cuda]

real_run_data.sh makes the text; `trainer tokenizer train --vocab-size 16384` makes the tokenizer. Both models see the same
samples in the same order: --steps of 64 x 1024 tokens, 150 million unless it is given. Prints a table, and leaves
`dense.jsonl` and `experts.jsonl` in --work, a line a step, which plot_experts_run.py makes a picture of.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import tarfile
import time
from pathlib import Path

TOKENS = 64 * 1024
SHAPE = ["--preset", "llama-1b", "--layers", "12", "--hidden", "512", "--heads", "8", "--kv-heads", "8", "--vocab", "16384",
         "--seq-length", "1024", "--micro-batch-size", "64", "--global-batch-size", "64", "--bf16"]
MODELS = {
    "dense": ["--ffn", "1536"],
    "experts": ["--experts", "16", "--experts-per-token", "2", "--expert-ffn", "768", "--balance-loss-multiplier", "0.01"],
}


def prepare(run):
    """Unpacks the text and makes tokens of it."""
    run.work.mkdir(parents=True)
    with tarfile.open(run.text) as archive:
        archive.extractall(run.work / "text", filter="data")
    for split in ["train", "validation"]:
        command = [run.trainer, "tokenize", "--tokenizer", run.tokenizer, "--output", run.work / split,
                   run.work / "text" / split]
        subprocess.run(command, check=True)


def train(run, name):
    """Trains one of the models; returns its steps and the seconds from start to end."""
    schedule = ["--steps", run.steps, "--lr", "1e-3", "--min-lr", "1e-4", "--lr-schedule", "cosine",
                "--lr-warmup-steps", min(200, run.steps // 5), "--eval-interval", max(1, run.steps // 15), "--eval-iters", "8"]
    data = ["--data-path", run.work / "train", "--validation-path", run.work / "validation"]
    logs = ["--log-dir", run.work / name, "--log-interval", max(1, run.steps // 5)]
    graphs = ["--enable-cuda-graph", "--cuda-graph-scope", "full_iteration", "--device", run.device]
    began = time.time()
    subprocess.run([str(word) for word in [run.trainer, *SHAPE, *MODELS[name], *schedule, *data, *logs, *graphs]], check=True)
    seconds = time.time() - began
    shutil.copy(run.work / name / "metrics.jsonl", run.work / f"{name}.jsonl")
    return [json.loads(line) for line in (run.work / f"{name}.jsonl").read_text().splitlines()], seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--trainer", type=Path, default=Path("target/release/trainer"))
    parser.add_argument("--work", type=Path, default=Path("experts-run"))
    parser.add_argument("--steps", type=int, default=-(-150_000_000 // TOKENS))
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    run = parser.parse_args()
    prepare(run)
    print("| model | training loss, last 100 | validation loss | ms a step | tokens/s | s in all |\n|---|---|---|---|---|---|")
    curves = {}
    for name in MODELS:
        steps, seconds = train(run, name)
        validation = {step["step"]: step["validation_loss"] for step in steps if step.get("validation_loss") is not None}
        last = statistics.mean(step["loss"] for step in steps[-100:])
        ms = statistics.median(step["step_ms"] for step in steps)
        curves[name] = validation
        print(f"| {name} | {last:.4f} | {validation[run.steps]:.4f} | {ms:.2f} | {TOKENS / ms * 1e3:,.0f} | {seconds:.1f} |")
    print("\n| steps | dense, validation loss | experts | difference |\n|---|---|---|---|")
    for step, dense in curves["dense"].items():
        experts = curves["experts"][step]
        print(f"| {step} | {dense:.4f} | {experts:.4f} | {experts - dense:+.4f} |")


if __name__ == "__main__":
    main()
