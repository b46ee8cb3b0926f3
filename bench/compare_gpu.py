"""The trainer on a GPU beside PyTorch on the same GPU, in turn.

    python bench/compare_gpu.py [--trainer TRAINER] [--before TRAINER] [--rounds 2] [--steps 30] [--ranks 1] [CASE ...]

Each round runs every contender of a case once, so that a change of clocks meets all alike. Prints one line a contender:
median milliseconds a step and throughput over the rounds, their range, memory, and the ratio to the best peer. With
--ranks several GPUs work data-parallel: the trainer under mpirun, PyTorch's DistributedDataParallel under torchrun.
--before takes another build of the trainer in turn with the rest.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).parent / "peers"
GPT_124M = ["--layers", "12", "--hidden", "768", "--heads", "12", "--seq", "1024"]
GPT_350M = ["--layers", "24", "--hidden", "1024", "--heads", "16", "--seq", "1024"]
GPT_13B = ["--layers", "24", "--hidden", "2048", "--heads", "16", "--seq", "2048"]
CASES = {
    "gpt2-124m-64x1": GPT_124M + ["--micro-batch", "64", "--accumulate", "1"],
    "gpt2-124m-4x8": GPT_124M + ["--micro-batch", "4", "--accumulate", "8"],
    "gpt2-350m-16x1": GPT_350M + ["--micro-batch", "16", "--accumulate", "1"],
    "gpt-1.3b-8x1": GPT_13B + ["--micro-batch", "8", "--accumulate", "1"],
    "gpt-1.3b-1x4": GPT_13B + ["--micro-batch", "1", "--accumulate", "4"],
    "mlp": [],
}
OURS = {
    "trainer, graphs off": [],
    "trainer, per_layer": ["--enable-cuda-graph"],
    "trainer, per_chunk": ["--enable-cuda-graph", "--cuda-graph-scope", "per_chunk"],
    "trainer, full_iteration": ["--enable-cuda-graph", "--cuda-graph-scope", "full_iteration"],
}
THEIRS = {"PyTorch eager": "eager", "PyTorch torch.compile": "compile", "PyTorch whole step in a graph": "graph"}
THEIRS_GPT = THEIRS | {"PyTorch torch.compile, whole step in a graph": "compile+graph"}


def last_object(command):
    """The JSON object a command prints last; None, with its complaint on stderr, if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{' '.join(map(str, command))}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout[done.stdout.index("{") :])


def ours(trainer, case, flags, options):
    launcher = ["mpirun", "--allow-run-as-root", "-n", str(options.ranks)] if options.ranks > 1 else []
    ranks = ["--global-batch-size", str(global_batch(case) * options.ranks)] if options.ranks > 1 else []
    command = launcher + [trainer, "bench", case, "--steps", str(options.steps)] + flags + ranks
    found = last_object(command)
    return found and (found["step_ms"], found["tokens_per_s"], found["memory_bytes"], found["issue_us"])


def theirs(case, mode, options):
    if case == "mlp":
        found = last_object([sys.executable, PEERS / "pytorch_mlp.py", "--mode", mode])
        return found and (found["step_ms"], 640 / found["step_ms"] * 1e3, 0, found["issue_us"])
    launcher = [sys.executable]
    if options.ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
    found = last_object(launcher + [PEERS / "pytorch_gpt.py", "--mode", mode, "--steps", str(options.steps)] + CASES[case])
    return found and (found["step_ms"], found["tokens_per_s"], found["memory_bytes"], None)


def global_batch(case):
    flags = dict(zip(CASES[case][::2], CASES[case][1::2]))
    return int(flags["--micro-batch"]) * int(flags["--accumulate"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default="target/release/trainer")
    parser.add_argument("--before", metavar="TRAINER", help="an earlier build, measured as full_iteration")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--peers", nargs="*", help="modes of PyTorch; those that suit the case if not given")
    parser.add_argument("cases", nargs="*", default=[], metavar="CASE", help=f"of {', '.join(CASES)}; all if none")
    options = parser.parse_args()
    print("| case | who | ms a step | per second | GiB | host us | ratio to the best peer |\n|---|---|---|---|---|---|---|")
    for case in options.cases or CASES:
        known = THEIRS if case == "mlp" else THEIRS_GPT
        wanted = options.peers or (["compile"] if options.ranks > 1 else list(known.values()))
        peers = {name: mode for name, mode in known.items() if mode in wanted}
        builds = {name: (options.trainer, flags) for name, flags in OURS.items()}
        if options.before:
            builds["build before, full_iteration"] = (options.before, OURS["trainer, full_iteration"])
        runs = {name: [] for name in (*builds, *peers)}
        for _ in range(options.rounds):
            for name, (trainer, flags) in builds.items():
                runs[name].append(ours(trainer, case, flags, options))
            for name, mode in peers.items():
                runs[name].append(theirs(case, mode, options))
        runs = {name: [run for run in found if run] for name, found in runs.items()}
        best = max((statistics.median(run[1] for run in runs[name]) for name in peers if runs[name]), default=None)
        for name, found in runs.items():
            if not found:
                print(f"| {case} | {name} | failed | | | | |", flush=True)
                continue
            ms, rates = [run[0] for run in found], [run[1] for run in found]
            rate = statistics.median(rates)
            issue = f"{found[0][3]:.0f}" if found[0][3] is not None else ""
            spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
            ratio = f"{rate / best:.3f}" if best else ""
            memory = f"{found[0][2] / 2**30:.1f}" if found[0][2] else ""
            print(
                f"| {case} | {name} | {statistics.median(ms):.3f} | {rate:,.0f} ({spread}) | {memory} | {issue} | {ratio} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
