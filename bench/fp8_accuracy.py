"""Accuracy of 8-bit products: one model trained in bf16 and with each recipe, on the same samples in the same order.

    python3 bench/fp8_accuracy.py --tokens FOLDER [--preset gpt2-124m] [--steps 2000 | --seconds 240]
        [--work fp8-accuracy] [--output fp8-accuracy/results] [RUN ...] [-- TRAINER FLAGS]

FOLDER, or an archive of it, holds the token files of `trainer tokenize` in train/ and validation/. A RUN is a recipe, such
as `delayed`, or NAME=FLAGS, such as `'delayed e4m3=--fp8-format e4m3 --fp8-recipe delayed'`. bf16 comes first and need not
be named. `'again=--seed 7'` is bf16 from other first weights: it says how large a gap chance alone makes. All runs have
the same number of steps; with --seconds it is what bf16 does in that time. Flags after `--` go to every run.

Each run has a GPU of its own, and as many run at once as there are GPUs; `--device host` trains on the CPU, in turn. A
run that is complete in --work is not done again. While runs train, and at the end, --output gets

  curves.csv   a row a step: loss, validation loss and gradient norm of each run
  summary.md   the tables that are also printed at the end

which plot_fp8_accuracy.py makes a picture of. Needs Python 3.9 and nothing else.
"""

import argparse
import csv
import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from real_run import gpus, replace, rows, say

BASELINE = "bf16"
NUMBERS = ["loss", "validation_loss", "grad_norm"]
# Steps of the run that measures a step, and how many of the last of them count.
MEASURED, COUNTED = 24, 12
# Training losses are compared as means of the last steps.
LAST = 100


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a recipe, or NAME=FLAGS; tensorwise and delayed if none")
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--trainer", default="target/release/trainer")
    parser.add_argument("--work", type=Path, default=Path("fp8-accuracy"))
    parser.add_argument("--output", type=Path, help="--work/results if not given")
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    parser.add_argument("--preset", default="gpt2-124m")
    parser.add_argument("--vocab", type=int, default=32000)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, default=2000)
    length.add_argument("--seconds", type=float, help="training time of bf16, without its start")
    for name, default in [("batch", 64), ("micro-batch", 16), ("evaluations", 20), ("eval-batches", 8)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=6e-4)
    own, common = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, common = own[:at], own[at + 1 :]
    options = parser.parse_args(own)
    options.common = common
    options.output = options.output or options.work / "results"
    options.flags = {BASELINE: []} | dict(map(run_flags, options.runs or ["tensorwise", "delayed"]))
    return options


def run_flags(run):
    """A run's name, and the flags that set it apart."""
    name, is_named, flags = run.partition("=")
    if "/" in name or not name:
        raise SystemExit(f"`{run}` is no run: a name is a folder's name too")
    return name, shlex.split(flags) if is_named else ["--fp8-format", "hybrid", "--fp8-recipe", name]


def command(bench, name, steps, folder):
    every = max(1, steps // bench.evaluations)
    flags = ["--preset", bench.preset, "--vocab", bench.vocab, "--bf16", "--device", bench.device, "--steps", steps]
    flags += ["--data-path", bench.data / "train", "--validation-path", bench.data / "validation"]
    flags += ["--global-batch-size", bench.batch, "--micro-batch-size", bench.micro_batch]
    flags += ["--lr", bench.lr, "--min-lr", f"{bench.lr / 10:g}", "--lr-schedule", "cosine"]
    flags += ["--lr-warmup-steps", min(250, steps // 20)]
    flags += ["--eval-interval", every, "--eval-iters", bench.eval_batches]
    flags += ["--enable-cuda-graph", "--log-interval", max(1, steps // 50), "--log-dir", folder]
    return [bench.trainer, *map(str, flags), *bench.common, *bench.flags[name]]


def unpacked(bench):
    """The folder with train/ and validation/."""
    if bench.tokens.is_dir():
        return bench.tokens
    folder = bench.work / "tokens"
    if not folder.exists():
        say(f"unpacking {bench.tokens}")
        partial = bench.work / f"tokens-partial-{os.getpid()}"
        with tarfile.open(bench.tokens) as archive:
            archive.extractall(partial, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        partial.rename(folder)
    found = sorted(folder.glob("**/validation"))
    if not found:
        raise SystemExit(f"{bench.tokens} has no folder named validation")
    return found[0].parent


def metrics(folder):
    return rows(folder / "metrics.jsonl")


def start(bench, name, steps, folder, gpu):
    """Starts a run in an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    line = command(bench, name, steps, folder)
    say(f"{name}: {shlex.join(line)}")
    (folder / "command.json").write_text(json.dumps(line))
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": str(gpu)} if bench.device == "cuda" else {})
    with open(folder / "output.log", "w") as log:
        return subprocess.Popen(line, env=environment, stdout=log, stderr=subprocess.STDOUT)


def complete(bench, name, steps):
    folder = bench.work / name
    done = folder / "command.json"
    same = done.exists() and json.loads(done.read_text()) == command(bench, name, steps, folder)
    return same and len(metrics(folder)) == steps


def steps_in_time(bench):
    """The number of steps that bf16 does in --seconds, evaluations included."""
    folder = bench.work / "measured"
    begins = argparse.Namespace(**vars(bench) | {"evaluations": 1})
    process = start(begins, BASELINE, MEASURED, folder, bench.gpus[0])
    if process.wait():
        raise SystemExit((folder / "output.log").read_text()[-2000:])
    ms = statistics.median(row["step_ms"] for row in metrics(folder)[-COUNTED:])
    # An evaluation's forward takes about a third of a step.
    evaluated = bench.evaluations * bench.eval_batches * ms / 3
    steps = int((bench.seconds * 1e3 - evaluated) / ms)
    say(f"{ms:.1f} ms a step: {steps} steps in {bench.seconds:.0f} s")
    if steps < bench.evaluations:
        raise SystemExit(f"{steps} steps are too few for {bench.evaluations} evaluations. Give more --seconds")
    return steps


def train(bench, steps):
    """Trains what is not trained yet; writes results all along. Returns the names of the runs that failed."""
    wanted = [name for name in bench.flags if not complete(bench, name, steps)]
    free, under_way, failed = list(bench.gpus), {}, []
    written = 0.0
    try:
        while wanted or under_way:
            while wanted and free:
                name, gpu = wanted.pop(0), free.pop(0)
                under_way[name] = gpu, start(bench, name, steps, bench.work / name, gpu)
            time.sleep(1)
            for name, (gpu, process) in list(under_way.items()):
                if process.poll() is not None:
                    del under_way[name]
                    free.append(gpu)
                    say(f"{name} ended with exit code {process.returncode}")
                    if process.returncode:
                        failed.append(name)
                        print((bench.work / name / "output.log").read_text()[-2000:], file=sys.stderr)
            if time.monotonic() > written + 20:
                write_results(bench, steps)
                written = time.monotonic()
    finally:
        for _, process in under_way.values():
            process.terminate()
    return failed


def write_results(bench, steps):
    bench.output.mkdir(parents=True, exist_ok=True)
    found = {name: {row["step"]: row for row in metrics(bench.work / name)} for name in bench.flags}
    table = [["step", *(f"{name}:{number}" for name in found for number in NUMBERS)]]
    for step in sorted(set().union(*found.values())):
        table.append([step, *(run.get(step, {}).get(number, "") for run in found.values() for number in NUMBERS)])
    replace(bench.output / "curves.csv", lambda file: csv.writer(file, lineterminator="\n").writerows(table))
    replace(bench.output / "summary.md", lambda file: file.write(summary(bench, steps, found)))


def evaluations(run):
    """Validation losses by step. A loss that is not finite is null in JSON."""
    found = {step: row["validation_loss"] for step, row in run.items() if "validation_loss" in row}
    return {step: math.nan if loss is None else loss for step, loss in found.items()}


def gap(run, baseline, step):
    """How far the validation loss of a step is above bf16's, relative."""
    return evaluations(run)[step] / evaluations(baseline)[step] - 1


def summary(bench, steps, found):
    """All runs in a table, then the gap of each evaluation, as Markdown."""
    where = f"{len(gpus())} x {gpus()[0].split(': ')[1]}" if bench.device == "cuda" else f"{os.cpu_count()} cores, no GPU"
    tokens = [row["tokens_per_s"] * row["step_ms"] / 1e3 for row in list(found[BASELINE].values())[:1]]
    batch = f" of {tokens[0]:,.0f} tokens" if tokens else ""
    baseline = found[BASELINE]
    lines = [
        f"# 8-bit products beside bf16: {bench.preset}, {steps} steps{batch}\n",
        f"{time.strftime('%Y-%m-%d')}, {where}. The same samples of {bench.tokens.name} in the same order.",
        f"Gaps are relative to {BASELINE}: of the last validation loss, the mean and the largest of the last half of",
        f"evaluations, and of the mean training loss of the last {LAST} steps.\n",
        "| run | steps | validation loss | gap | mean gap | largest gap | training loss | gap | tokens/s | x | skipped steps |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, run in found.items():
        if not run:
            lines.append(f"| {name} | 0 | | | | | | | | | |")
            continue
        # Only the steps that both have done are compared.
        both = sorted(run.keys() & baseline.keys())
        last = both[-LAST:]
        validation = list(evaluations(run).values())
        shared = sorted(evaluations(run).keys() & evaluations(baseline).keys())
        gaps = [gap(run, baseline, step) for step in shared]
        half = gaps[len(gaps) // 2 :]
        training = [statistics.fmean(number(side[step]["loss"]) for step in last) for side in (run, baseline)]
        speed, base_speed = (statistics.median(row["tokens_per_s"] for row in side.values()) for side in (run, baseline))
        # If a step's update was skipped, its norm is not finite. JSON has no number for that.
        skipped = sum(row["grad_norm"] is None for row in run.values())
        cells = [
            name, len(run), f"{validation[-1]:.4f}" if validation else "",
            *([f"{gaps[-1]:+.2%}", f"{statistics.fmean(half):+.2%}", f"{max(half, key=abs):+.2%}"] if gaps else [""] * 3),
            f"{training[0]:.4f}", f"{training[0] / training[1] - 1:+.2%}",
            f"{speed:,.0f}", f"{speed / base_speed:.2f}", skipped,
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    others = [name for name in found if name != BASELINE]
    lines += ["", f"| steps | {BASELINE} | {' | '.join(others)} |", "|---|---|" + "---|" * len(others)]
    for step, loss in evaluations(baseline).items():
        have = [step in evaluations(found[name]) for name in others]
        cells = [f"{gap(found[name], baseline, step):+.2%}" if has else "" for name, has in zip(others, have)]
        lines.append(f"| {step} | {loss:.4f} | {' | '.join(cells)} |")
    commands = [f"    {shlex.join(command(bench, name, steps, bench.work / name))}" for name in found]
    return "\n".join([*lines, "", "Commands:\n", *commands, ""])


def number(value):
    return math.nan if value is None else value


def main():
    bench = arguments()
    # A request to end ends the runs too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench.work.mkdir(parents=True, exist_ok=True)
    bench.gpus = list(range(len(gpus()))) if bench.device == "cuda" else [0]
    if not bench.gpus:
        raise SystemExit("nvidia-smi lists no GPU. For the CPU: --device host")
    bench.data = unpacked(bench)
    steps = steps_in_time(bench) if bench.seconds else bench.steps
    failed = train(bench, steps)
    write_results(bench, steps)
    print((bench.output / "summary.md").read_text())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
