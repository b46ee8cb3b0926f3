"""Trains small models with one feature each, on one rank and on two in several layouts, and compares their losses.

    python bench/features_on_ranks.py TRAINER [--device host] [--jobs JOBS] [--from FEATURE]

TRAINER is the binary. Each feature trains ten steps with a graph per layer. Losses and the steps that were skipped on
two ranks are compared with those on one, in f32 gradient norms too. At the end one model answers multiple-choice
questions in each layout. Prints a table of the largest relative differences, and exits with 1 if a run fails or
differs. JOBS runs share the GPUs at a time. With FEATURE the table begins there, at the latest with conversations.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BASE = ("--layers 4 --hidden 256 --heads 4 --ffn 512 --seq-length 128 --global-batch-size 16 --micro-batch-size 2 "
        "--steps 10 --eval-interval 0 --lr-warmup-steps 0 --enable-cuda-graph --threads 2").split()
SMALL_VOCABULARY = ["--vocab", "512"]
LAYOUTS = {
    "dp2, distributed optimizer": ["--use-distributed-optimizer"],
    "tp2, sequence parallel": ["--tensor-model-parallel-size", "2", "--sequence-parallel"],
    "cp2": ["--context-parallel-size", "2"],
    "pp2": ["--pipeline-model-parallel-size", "2"],
}
# Deterministic runs need not time products, so they start sooner. They do not use cuDNN's attention.
PRECISIONS = {"f32": ["--compute", "f32", "--deterministic"], "bf16": ["--compute", "bf16"]}
# The relative difference that is allowed: sums over ranks add in another order.
TOLERANCES = {"f32": 1e-4, "bf16": 2e-2}
SPIKES, CHATS, CHOICES = "skipped spikes", "conversations", "multiple choice"
TEMPLATE = ("{% for m in messages %}{{ 'Q ' + m.content + ' ' if m.role == 'user' else 'A ' + m.content + ';' }}"
            "{% endfor %}{% if add_generation_prompt %}A {% endif %}")


def features(folder):
    """Precision and flags of each feature."""
    chats = ["--data-path", str(folder / "chats.jsonl"), "--chat-template", str(folder / "template.jinja"), "--sft",
             "--split", "1", "--lr", "2e-4", "--min-lr", "1e-5"]
    spikes = ["--skip-step-sigma-factor", "0.01", "--skip-step-rolling-interval-length", "4", "--lr", "0.03"]
    lengths = [*chats, "--seq-length-buckets", "48", "64", "128", "--group-by-length"]
    packed = [*chats, "--sft-packing", "4"]
    window = ["--sliding-window", "32"]
    family = ["--kv-heads", "2", "--head-dim", "64", *SMALL_VOCABULARY]
    return {
        "none": ("f32", []),
        "z-loss": ("f32", ["--z-loss-multiplier", "1e-3"]),
        SPIKES: ("f32", spikes),
        "moments in bf16": ("f32", ["--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16"]),
        "Muon": ("f32", ["--optimizer", "muon"]),
        "parameter groups": ("f32", ["--param-groups", "wte.*=0.1", "h.0.*=0.5,0.0", "*.bias=2"]),
        "sliding window": ("f32", window),
        "OLMo 2": ("f32", ["--preset", "olmo2-1b", *SMALL_VOCABULARY]),
        "Gemma 2": ("f32", ["--preset", "gemma2-2b", *family, *window]),
        "Gemma 3": ("f32", ["--preset", "gemma3-1b", *family, *window]),
        CHATS: ("f32", chats),
        "conversations, bf16": ("bf16", chats),
        "conversations of several lengths": ("f32", lengths),
        "packed conversations": ("f32", packed),
        "packed conversations, bf16": ("bf16", packed),
    }


def write_data(folder):
    """Conversations, their template, and questions."""
    turn = lambda n: [{"role": "user", "content": f"what is {n} and {n % 5}"},
                      {"role": "assistant", "content": f"it is {n + n % 5}"}]
    chats = [[message for i in range(1 + n % 3) for message in turn(n + i)] for n in range(200)]
    lines = [json.dumps({"messages": messages}) for messages in chats]
    (folder / "chats.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "template.jinja").write_text(TEMPLATE)
    questions = [json.dumps({"ctx": f"what is {n}", "endings": [f"it is {n + i}" for i in range(4)], "label": n % 4})
                 for n in range(20)]
    (folder / "questions.jsonl").write_text("\n".join(questions) + "\n")


class Runs:
    """Runs of the trainer in a folder. A layout is one of LAYOUTS, or None for one rank."""

    def __init__(self, trainer, device, folder):
        self.trainer, self.folder = trainer, folder
        self.device = ["--device", device] if device else []

    def run(self, layout, arguments):
        """Fails with the run's error if it fails."""
        command = [self.trainer, *arguments, *self.device]
        if layout is not None:
            mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]
            command = [*mpirun, *command, *LAYOUTS[layout]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240,
                              env={**os.environ, "NO_COLOR": "1"})
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "rror" in line]
            raise RuntimeError(errors[0] if errors else (done.stderr + done.stdout)[-600:])

    def train(self, name, layout):
        """Loss and skipped updates of each step, in f32 with its gradient norm."""
        log = self.folder / f"{name} {layout}".replace(" ", "-").replace(",", "")
        precision, flags = features(self.folder)[name]
        saved = name == CHATS and layout is None
        save = ["--save", str(self.folder / "saved"), "--save-interval", "100"] if saved else []
        self.run(layout, [*BASE, *PRECISIONS[precision], *flags, "--log-dir", str(log), *save])
        steps = map(json.loads, (log / "metrics.jsonl").read_text().splitlines())
        steps = [step for step in steps if "grad_norm" in step]
        if name == SPIKES and not steps[-1].get("skipped"):
            raise RuntimeError("no update was skipped")
        keys = ("loss", "skipped", "grad_norm") if precision == "f32" else ("loss", "skipped")
        return [step.get(key, 0) for step in steps for key in keys]

    def answer(self, layout):
        """Log-likelihoods of all endings."""
        answers = self.folder / f"answers {layout}".replace(" ", "-").replace(",", "")
        self.run(layout, ["eval", str(self.folder / "saved"), "--multiple-choice", str(self.folder / "questions.jsonl"),
                          "--write-choices", str(answers)])
        return [likelihood for line in answers.read_text().splitlines()
                for likelihood in json.loads(line)["log_likelihoods"]]


def difference(ours, theirs):
    """The largest relative difference."""
    if len(ours) != len(theirs) or not ours:
        return float("inf")
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(ours, theirs))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer")
    parser.add_argument("--device", default="")
    parser.add_argument("--jobs", type=int, default=1)
    names = list(features(Path()))
    # Multiple choice asks a model that learned from conversations.
    parser.add_argument("--from", dest="first", default="none", choices=names[:names.index(CHATS) + 1])
    arguments = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        folder = Path(temporary)
        write_data(folder)
        runs = Runs(str(Path(arguments.trainer).resolve()), arguments.device, folder)
        allowed = {name: TOLERANCES[precision] for name, (precision, _) in features(folder).items()}
        allowed = {name: allowed[name] for name in names[names.index(arguments.first):]}
        layouts = [None, *LAYOUTS]
        futures = {(name, layout): pool.submit(runs.train, name, layout) for name in allowed for layout in layouts}
        print("| feature | " + " | ".join(LAYOUTS) + " |\n|" + "---|" * (1 + len(LAYOUTS)), flush=True)
        for name, tolerance in [*allowed.items(), (CHOICES, TOLERANCES["f32"])]:
            if name == CHOICES:
                # The model that answers is saved by now.
                futures.update({(name, layout): pool.submit(runs.answer, layout) for layout in layouts})
            cells = []
            for layout in LAYOUTS:
                try:
                    found = difference(futures[name, layout].result(), futures[name, None].result())
                    right = found <= tolerance
                    cells.append(f"{found:.1e}" + ("" if right else " DIFFERS"))
                except Exception as error:
                    right = False
                    cells.append("FAILS")
                    print(f"{name}, {layout}: {error}", file=sys.stderr)
                wrong += not right
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
