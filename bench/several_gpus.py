"""Rows of models and layouts on all GPUs of a machine: measured, predicted by `trainer plan`, and PyTorch on the same GPUs.

    python bench/several_gpus.py --gpus 8 [--trainer TRAINER] [--gpu h200] [--rounds 3] [--limit 300] [--predict] [ROW ...]

ROWs are parts of names; all if none is given. Each round runs every contender of a row once. Prints a line a row: medians over
the rounds, memory of a rank, and the ratio to PyTorch. `--predict` runs nothing. A run that takes over `--limit` seconds is
ended, and its cell says so. Rows that need more GPUs are left out, by name.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).parent / "peers"
B = "--bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --enable-cuda-graph"
WHOLE = "--cuda-graph-scope full_iteration"
LLAMA = f"--preset llama-8b {B} --seq-length 4096 --micro-batch-size 2"
LLAMA_PEER = "--layers 32 --hidden 4096 --ffn 14336 --heads 32 --kv-heads 8 --head-dim 128 --vocab 128256 --seq 4096"
QWEN3 = f"--preset qwen3-30b-a3b {B} {WHOLE} --seq-length 4096 --micro-batch-size 1 --balance-loss-multiplier 0.01"
QWEN3_SPREAD = "--expert-model-parallel-size 4 --use-distributed-optimizer --store-param-remainders"
GPT_350M = f"--preset gpt2-350m --bf16 --seq-length 1024 --micro-batch-size 4 --enable-cuda-graph {WHOLE}"
FP8 = "--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather"
TP2, PP2, PP4 = (f"--{kind}-model-parallel-size {n}" for kind, n in [("tensor", 2), ("pipeline", 2), ("pipeline", 4)])
LONG = "--seq-length 131072 --recompute-granularity full --recompute-keep-attention --mlp-tiles 8 --loss-pieces 32"
OVERLAP = "--cuda-graph-overlap-microbatches"


def rows(gpus):
    """(name, least GPUs, samples a step, flags of the trainer, script and arguments of PyTorch or None)"""
    gpt = "pytorch_gpt.py --vocab 50304 --seq"
    shapes = {"124M": "--layers 12 --hidden 768 --heads 12", "350M": "--layers 24 --hidden 1024 --heads 16"}
    shapes["1.3B"] = "--layers 24 --hidden 2048 --heads 16"
    graphs = f"--bf16 --enable-cuda-graph {WHOLE}"
    spread = "--data-parallel-sharding-strategy"
    llama_peer = f"pytorch_qwen3.py --shard {LLAMA_PEER} --micro-batch 2 --accumulate 2"
    yield (f"124M, dp{gpus}", 2, 64 * gpus, f"--preset gpt2-124m --micro-batch-size 64 {graphs}",
           f"{gpt} 1024 {shapes['124M']} --micro-batch 64 --accumulate 1")
    yield (f"1.3B, dp{gpus}", 2, 8 * gpus, f"--preset gpt-1.3b --micro-batch-size 8 --use-distributed-optimizer {graphs}",
           f"{gpt} 2048 {shapes['1.3B']} --micro-batch 8 --accumulate 1")
    peer = f"{gpt} 1024 {shapes['350M']} --micro-batch 4 --accumulate 4"
    yield f"350M, dp{gpus}", 2, 16 * gpus, f"{GPT_350M} --use-distributed-optimizer", peer
    layouts = {"tp2": (2, TP2), "tp2, NCCL": (2, f"{TP2} --tensor-parallel-transfers nccl"), "pp2": (2, PP2)}
    layouts |= {"tp2, overlapping": (2, f"{TP2} {OVERLAP}"), "pp2, overlapping": (2, f"{PP2} {OVERLAP}")}
    layouts |= {"pp2 vp2": (2, f"{PP2} --set parallel.virtual_pipeline=2"), "pp4": (4, PP4), "tp2 pp2": (4, f"{TP2} {PP2}")}
    for name, (least, flags) in layouts.items():
        yield f"350M, {name}", least, 16 * gpus, f"{GPT_350M} --use-distributed-optimizer {flags}", None
    yield "Llama 8B, ZeRO-1", 2, 4 * gpus, f"{LLAMA} {WHOLE} {spread} optim", llama_peer
    yield "Llama 8B, ZeRO-3", 2, 4 * gpus, f"{LLAMA} {WHOLE} {spread} optim_grads_params", llama_peer
    yield "Llama 8B, ZeRO-1, 8 bits", 2, 4 * gpus, f"{LLAMA} {WHOLE} {FP8} {spread} optim", None
    yield "Llama 8B, ZeRO-3, 8 bits", 2, 4 * gpus, f"{LLAMA} {WHOLE} {FP8} {spread} optim_grads_params", None
    yield "Qwen3-30B-A3B, ep4", 4, gpus, f"{QWEN3} {QWEN3_SPREAD}", None
    yield "Qwen3-30B-A3B, ep4, forced balance", 4, gpus, f"{QWEN3} {QWEN3_SPREAD} --force-expert-balance", None
    context = f"--preset llama-8b {B} {LONG} --micro-batch-size 1 --use-distributed-optimizer"
    yield f"Llama 8B, 131,072 tokens, cp{gpus}", 2, 1, f"{context} --context-parallel-size {gpus}", None


def last_object(words, limit):
    """The JSON object that a command prints last, or why there is none."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"over {limit} s"
    if done.returncode != 0 or "{" not in done.stdout:
        print(f"{' '.join(map(str, words))}:\n{done.stderr[-2000:]}", file=sys.stderr)
        return "failed"
    return json.loads(done.stdout[done.stdout.index("{") :])


def predicted(options, flags):
    words = [options.trainer, "plan", "--gpu", options.gpu, "--ranks", str(options.gpus), "--as-given", "--json", "--"]
    page = last_object(words + flags, options.limit)
    return page if isinstance(page, str) else page["layouts"][0]


def median(found):
    """The figures of the run with the median step, or why a run has none."""
    failed = [result for result in found if isinstance(result, str)]
    return failed[0] if failed else sorted(found, key=lambda result: result["step_ms"])[len(found) // 2]


def cells(result):
    return [result, ""] if isinstance(result, str) else [f"{result['step_ms']:.1f}", f"{result['memory_bytes'] / 2**30:.1f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--trainer", default="target/release/trainer")
    parser.add_argument("--gpu", default="h200", help="of `trainer plan`")
    for name, value in [("rounds", 3), ("steps", 12), ("limit", 300)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--predict", action="store_true")
    options = parser.parse_args()
    print("| row | ms a step | GiB | predicted | GiB | PyTorch, ms | GiB | times |\n|---|---|---|---|---|---|---|---|")
    for name, least, samples, flags, peer in rows(options.gpus):
        if options.rows and not any(part in name for part in options.rows):
            continue
        if options.gpus < least:
            print(f"{name}: left out, it needs {least} GPUs", file=sys.stderr)
            continue
        flags = [*flags.split(), "--global-batch-size", str(samples)]
        mpirun = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", str(options.gpus)]
        contenders = {"ours": [*mpirun, options.trainer, "bench", *flags, "--steps", str(options.steps)]}
        if peer:
            script, *arguments = peer.split()
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(options.gpus)]
            contenders["theirs"] = [*torchrun, PEERS / script, *arguments, "--mode", "compile"]
        found = {contender: [] for contender in contenders}
        for _ in range(0 if options.predict else options.rounds):
            for contender, words in contenders.items():
                found[contender].append(last_object(words, options.limit))
        medians = {contender: median(results) for contender, results in found.items() if results}
        steps = [medians[key]["step_ms"] for key in ["theirs", "ours"] if isinstance(medians.get(key), dict)]
        line = cells(medians.get("ours", "")) + cells(predicted(options, flags)) + cells(medians.get("theirs", ""))
        print(f"| {name} | {' | '.join(line)} | {f'{steps[0] / steps[1]:.2f}' if len(steps) == 2 else ''} |", flush=True)


main()
