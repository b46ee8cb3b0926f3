"""A real run: GPT-2 124M on the Linux kernel's text, the trainer beside PyTorch, the same samples in the same order.

    python bench/real_run.py --text linux-text.tar.xz --tokenizer tokenizer.json [--trainer target/release/trainer]
        [--work real-run] [--output real-run/results] [--steps 5400]

The text is made by real_run_data.sh, the tokenizer by real_run_tokenizer.py; the interpreter needs numpy and PyTorch.
With two GPUs both train at once, each on its own, otherwise one after the other. Everything is in --work: the text, its
tokens, the batches, a folder of metrics for each. What is complete there is not done again, so after a stop the same
command goes on with what is missing; a run that was cut off starts anew. While they train, and at the end, --output gets

  curves.csv   a row a step: losses, validation losses, and seconds since the process began, of both
  summary.md   a table of both, and the validation losses

which plot_real_run.py makes a picture of. Every option of the model may be made smaller for a test on a CPU:
`--device host` runs the trainer's host device, and PyTorch on the CPU without torch.compile.
"""

import argparse
import csv
import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import tarfile
import time
from importlib.metadata import version
from pathlib import Path

PEER = Path(__file__).parent / "peers" / "pytorch_real_run.py"
SIDES = {"ours": "trainer", "theirs": "PyTorch"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--trainer", default="target/release/trainer")
    parser.add_argument("--work", type=Path, default=Path("real-run"))
    parser.add_argument("--output", type=Path, help="--work/results if not given")
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    for name, default in [("layers", 12), ("hidden", 768), ("heads", 12), ("seq", 1024), ("vocab", 32000)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in [("steps", 5400), ("batch", 64), ("micro-batch", 64), ("warmup", 250)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in [("eval-interval", 250), ("eval-steps", 8)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in [("lr", 6e-4), ("min-lr", 6e-5)]:
        parser.add_argument(f"--{name}", type=float, default=default)
    options = parser.parse_args()
    options.output = options.output or options.work / "results"
    return options


def run_flags(run):
    """The trainer's flags: those of its run, and of the batches that PyTorch gets."""
    flags = ["--preset", "gpt2-124m", "--layers", run.layers, "--hidden", run.hidden, "--heads", run.heads]
    flags += ["--seq-length", run.seq, "--vocab", run.vocab, "--steps", run.steps]
    flags += ["--data-path", run.work / "tokens-train", "--validation-path", run.work / "tokens-validation"]
    flags += ["--global-batch-size", run.batch, "--micro-batch-size", run.micro_batch, "--compute", "bf16"]
    flags += ["--lr", run.lr, "--min-lr", run.min_lr, "--lr-schedule", "cosine", "--lr-warmup-steps", run.warmup]
    flags += ["--eval-interval", run.eval_interval, "--eval-iters", run.eval_steps]
    return [str(flag) for flag in flags]


def ours(run):
    graphs = ["--enable-cuda-graph", "--cuda-graph-scope", "full_iteration"]
    logging = ["--wandb", "--log-interval", "100", "--log-dir", str(run.work / "ours")]
    return [run.trainer, *run_flags(run), *graphs, "--device", run.device, *logging]


def theirs(run):
    flags = ["--layers", run.layers, "--hidden", run.hidden, "--heads", run.heads, "--seq", run.seq]
    flags += ["--vocab", run.vocab, "--micro-batch", run.micro_batch, "--accumulate", run.batch // run.micro_batch]
    flags += ["--steps", run.steps, "--lr", run.lr, "--min-lr", run.min_lr, "--warmup", run.warmup]
    flags += ["--eval-interval", run.eval_interval, "--output", run.work / "theirs" / "metrics.jsonl"]
    flags += ["--train", run.work / "train.bin", "--validation", run.work / "validation.bin"]
    flags += ["--device", "cuda"] if run.device == "cuda" else ["--device", "cpu", "--no-compile"]
    return [sys.executable, str(PEER), *map(str, flags)]


def prepare(run):
    """Unpacks, tokenises and writes the batches, as far as that is not done."""
    run.work.mkdir(parents=True, exist_ok=True)
    text = run.work / "text"
    if not text.exists():
        say(f"unpacking {run.text}")
        partial = run.work / f"text-partial-{os.getpid()}"
        with tarfile.open(run.text) as archive:
            archive.extractall(partial, filter="data")
        partial.rename(text)
    for split in ["train", "validation"]:
        tokens = run.work / f"tokens-{split}"
        if not tokens.exists():
            say(f"tokenising {split}")
            command = [run.trainer, "tokenize", "--tokenizer", run.tokenizer, "--output", tokens, text / split]
            subprocess.run(command, check=True)
    batches = {"--output": run.work / "train.bin", "--validation": run.work / "validation.bin"}
    flags, wanted = run.work / "flags.json", run_flags(run)
    if flags.exists() and json.loads(flags.read_text()) != wanted:
        raise SystemExit(f"{run.work} is of a run with other flags. Remove it, or name another with --work")
    if not all(path.exists() for path in batches.values()):
        say("writing batches")
        flags.write_text(json.dumps(wanted))
        for path in batches.values():
            path.unlink(missing_ok=True)
        files = [part for pair in batches.items() for part in pair]
        subprocess.run([run.trainer, "batches", *wanted, *files], check=True)


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def rows(path):
    """The objects of a file of JSON lines, but for one that is cut off."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found


def metrics(run, side):
    """Steps of a side, each with the seconds since its process began."""
    steps = rows(run.work / side / "metrics.jsonl")
    if side == "ours":
        began = run.work / side / "began"
        times = {row["_step"]: row["_timestamp"] for row in rows(run.work / side / "wandb-history.jsonl")}
        began = float(began.read_text()) if began.exists() else 0.0
        steps = [step | {"seconds": times[step["step"]] - began} for step in steps if step["step"] in times]
    return steps


def complete(run, side):
    return len(metrics(run, side)) == run.steps


def gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    except FileNotFoundError:
        return []
    return [line.split("(UUID")[0].strip() for line in listed.splitlines() if line.startswith("GPU")]


def start(run, side, gpu):
    folder = run.work / side
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    command = ours(run) if side == "ours" else theirs(run)
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": str(gpu)} if run.device == "cuda" else {})
    (folder / "began").write_text(str(time.time()))
    say(f"{SIDES[side]}: {shlex.join(command)}")
    with open(folder / "output.log", "w") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def train(run):
    """Trains what is not trained yet; writes results all along. Returns the sides that failed."""
    wanted = [side for side in SIDES if not complete(run, side)]
    together = run.device == "cuda" and len(gpus()) >= 2
    under_way, failed = {}, []
    try:
        while wanted or under_way:
            while wanted and (together or not under_way):
                side = wanted.pop(0)
                under_way[side] = start(run, side, list(SIDES).index(side) if together else 0)
            time.sleep(1 if run.device == "host" else 10)
            for side, process in list(under_way.items()):
                if process.poll() is not None:
                    del under_way[side]
                    say(f"{SIDES[side]} ended with exit code {process.returncode}")
                    if process.returncode:
                        failed.append(side)
                        print((run.work / side / "output.log").read_text()[-2000:], file=sys.stderr)
            write_results(run)
    finally:
        for process in under_way.values():
            process.terminate()
    return failed


def write_results(run):
    run.output.mkdir(parents=True, exist_ok=True)
    found = {side: {step["step"]: step for step in metrics(run, side)} for side in SIDES}
    names = ["loss", "validation_loss", "seconds"]
    table = [["step", *(f"{side}_{name}" for name in names for side in SIDES)]]
    for step in sorted(found["ours"] | found["theirs"]):
        values = (found[side].get(step, {}).get(name, "") for name in names for side in SIDES)
        table.append([step, *values])
    replace(run.output / "curves.csv", lambda file: csv.writer(file, lineterminator="\n").writerows(table))
    replace(run.output / "summary.md", lambda file: file.write(summary(run, found)))


def replace(path, write):
    """Writes a file anew: whoever reads it sees the old one or the new one."""
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "w") as file:
        write(file)
    partial.replace(path)


def summary(run, found):
    """Both sides in a table, then their validation losses, as Markdown."""
    tokens = run.batch * run.seq
    where = ", ".join(gpus() if run.device == "cuda" else [f"{os.cpu_count()} cores, no GPU"])
    lines = [
        f"# {run.layers} layers of {run.hidden}, {run.steps} steps of {tokens:,} tokens, the trainer beside PyTorch\n",
        f"{time.strftime('%Y-%m-%d')}, {where}; PyTorch {version('torch')}, Python {platform.python_version()}.",
        f"Both take the same samples of {run.text.name} in the same order. Seconds count from a process's start.\n",
        "| | steps | training loss, last 100 | validation loss | ms a step, median | tokens/s | s to step 1 | s in all |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for side, name in SIDES.items():
        steps = list(found[side].values())
        if not steps:
            lines.append(f"| {name} | 0 | | | | | | |")
            continue
        validation = [step["validation_loss"] for step in steps if "validation_loss" in step]
        ms = statistics.median(step["step_ms"] for step in steps)
        validated = f"{validation[-1]:.4f}" if validation else ""
        lines.append(
            f"| {name} | {len(steps)} | {statistics.mean(step['loss'] for step in steps[-100:]):.4f} "
            f"| {validated} | {ms:.2f} | {tokens / ms * 1e3:,.0f} "
            f"| {steps[0]['seconds']:.1f} | {steps[-1]['seconds']:.1f} |"
        )
    lines += ["", "| steps | trainer, validation loss | PyTorch | difference |", "|---|---|---|---|"]
    for step in sorted(found["ours"].keys() & found["theirs"].keys()):
        pair = [found[side][step].get("validation_loss") for side in SIDES]
        if None not in pair:
            lines.append(f"| {step} | {pair[0]:.4f} | {pair[1]:.4f} | {pair[0] - pair[1]:+.4f} |")
    commands = [f"    {shlex.join(command(run))}" for command in (ours, theirs)]
    return "\n".join([*lines, "", "Commands:\n", *commands, ""])


def main():
    run = arguments()
    if run.batch % run.micro_batch:
        raise SystemExit(f"--batch {run.batch} is not a multiple of --micro-batch {run.micro_batch}")
    # A request to end ends the runs too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prepare(run)
    failed = train(run)
    write_results(run)
    print((run.output / "summary.md").read_text())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
