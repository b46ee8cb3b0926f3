"""Compares `trainer plan` with the steps that bench/results has measured on 1, 2 and 4 GPUs, and prints a table.

    python3 bench/plan_against_results.py --trainer target/release/trainer [--gpu FILE]

A row is the flags of a measured run, its milliseconds a step, and its memory in use in GiB (None where the result has none).
Where one case was measured with several builds, the newest counts. Rows of an older build say so. Rows were measured on
H200s, those of results in H100S on H100s. FILE replaces the H200.
"""

import argparse
import json
import statistics
import subprocess

GRAPHS = "--bf16 --eval-interval 0 --enable-cuda-graph"
WHOLE = GRAPHS + " --cuda-graph-scope full_iteration"
GPT_124M = "--preset gpt2-124m --loss-pieces 8 --micro-batch-size 64 --global-batch-size"
GPT_350M = "--preset gpt2-350m --micro-batch-size 4 --global-batch-size"
GPT_1_3B = "--preset gpt-1.3b --micro-batch-size 8 --global-batch-size"
LLAMA_8B = "--preset llama-8b --loss-pieces 2 --seq-length 4096 --micro-batch-size 2 --global-batch-size 16"
# In how many pieces the builds of that time computed the logits.
PIECES = "--loss-pieces 2"
FP8 = "--fp8-format hybrid --fp8-recipe delayed"
TP2, SP, NCCL = "--tensor-model-parallel-size 2", "--sequence-parallel", "--tensor-parallel-transfers nccl"
PP2, PP4 = "--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 4"
ZERO_BUBBLE = "--set parallel.pipeline_schedule=zero_bubble"
DIVIDED = "--use-distributed-optimizer"
CHUNKS = "--set parallel.virtual_pipeline=2"
OVERLAP = "--cuda-graph-overlap-microbatches"

ONE, FOUR, TENSOR = "2026-11-21-h200.md", "2026-11-21-four-h200.md", "2026-11-21-tensor-parallel.md"
PEERS = "2026-11-25-peer-memory.md"
PIPELINES = "2026-11-25-pipeline-overlap.md"
H100S = [PEERS, PIPELINES]
EIGHT_BITS, SUPERVISED, BRANCHES = "2026-11-22-fp8.md", "2026-11-22-supervised-two-h200.md", "2026-11-23-branches.md"

# name, cards, flags, ms a step, GiB in use, result
ROWS = [
    ("124M, 64 x 1", 1, f"{GPT_124M} 64 {WHOLE}", 108.2, 22.06, BRANCHES),
    ("124M, 4 x 8", 1, f"--preset gpt2-124m --micro-batch-size 4 --global-batch-size 32 {WHOLE}", 62.3, 4.28, BRANCHES),
    ("1.3B, 8 x 1", 1, f"{GPT_1_3B} 8 {WHOLE} {PIECES}", 249.7, 47.82, BRANCHES),
    ("1.3B, 1 x 4", 1, f"--preset gpt-1.3b --micro-batch-size 1 --global-batch-size 4 {WHOLE}", 142.1, 25.93, BRANCHES),
    ("1.3B, selective recompute", 1, f"{GPT_1_3B} 8 --recompute-granularity selective {WHOLE} {PIECES}", 254.8, 38.8, ONE),
    ("1.3B, full recompute", 1, f"{GPT_1_3B} 8 --recompute-granularity full {GRAPHS} {PIECES}", 321.3, 27.1, ONE),
    ("350M, 16 x 1", 1, f"--preset gpt2-350m --micro-batch-size 16 --global-batch-size 16 {WHOLE} {PIECES}", 77.2, None, "2026-11-22-graph-library.md"),
    ("350M, 4 x 4", 1, f"{GPT_350M} 16 {WHOLE}", 84.2, 10.0, FOUR),
    ("1.3B, 8 bits", 1, f"{GPT_1_3B} 8 {WHOLE} {FP8} {PIECES}", 183.0, None, EIGHT_BITS),
    ("1.3B, 1 x 4, 8 bits", 1, f"--preset gpt-1.3b --micro-batch-size 1 --global-batch-size 4 {WHOLE} {FP8}", 113.0, 25.5, BRANCHES),
    ("124M, dp2", 2, f"{GPT_124M} 128 {WHOLE}", 114.4, None, ONE),
    ("350M, dp2", 2, f"--preset gpt2-350m --micro-batch-size 16 --global-batch-size 32 {WHOLE} {PIECES}", 81.5, None, SUPERVISED),
    ("350M, dp2, divided optimizer", 2, f"--preset gpt2-350m --micro-batch-size 16 --global-batch-size 32 {DIVIDED} {WHOLE} {PIECES}", 79.9, None, SUPERVISED),
    ("350M, pp2", 2, f"{GPT_350M} 32 {PP2} {WHOLE}", 100.0, None, SUPERVISED),
    ("350M, tp2", 2, f"{GPT_350M} 32 {TP2} {NCCL} {WHOLE}", 127.0, 6.5, TENSOR),
    ("350M, tp2, sp", 2, f"{GPT_350M} 32 {TP2} {NCCL} {SP} {WHOLE}", 149.6, 6.1, TENSOR),
    ("350M, tp2, 16 microbatches", 2, f"{GPT_350M} 64 {TP2} {NCCL} {WHOLE}", 249.6, 6.6, BRANCHES),
    ("350M, tp2, sp, 16 microbatches", 2, f"{GPT_350M} 64 {TP2} {NCCL} {SP} {WHOLE}", 284.9, 6.3, BRANCHES),
    ("350M, tp2, overlapping", 2, f"{GPT_350M} 64 {TP2} {NCCL} {OVERLAP} {WHOLE}", 221.3, 9.3, BRANCHES),
    ("350M, tp2, sp, overlapping", 2, f"{GPT_350M} 64 {TP2} {NCCL} {SP} {OVERLAP} {WHOLE}", 238.8, 8.4, BRANCHES),
    ("1.3B, tp2, sp", 2, f"{GPT_1_3B} 8 {TP2} {NCCL} {SP} {GRAPHS}", 158.4, 25.4, EIGHT_BITS),
    ("1.3B, tp2, sp, 8 bits", 2, f"{GPT_1_3B} 8 {TP2} {NCCL} {SP} {GRAPHS} {FP8}", 117.5, 23.6, EIGHT_BITS),
    ("Llama 8B, dp2, divided optimizer, 8 bits", 2, f"{LLAMA_8B} {DIVIDED} {GRAPHS} {FP8}", 1840.0, None, EIGHT_BITS),
    ("350M, tp2, H100", 2, f"{GPT_350M} 32 {TP2} {NCCL} {WHOLE}", 138.2, None, PEERS),
    ("350M, tp2, overlapping, H100", 2, f"{GPT_350M} 32 {TP2} {NCCL} {OVERLAP} {WHOLE}", 120.9, None, PEERS),
    ("350M, tp2, sp, overlapping, H100", 2, f"{GPT_350M} 32 {TP2} {NCCL} {SP} {OVERLAP} {WHOLE}", 131.8, None, PEERS),
    ("350M, tp2, kernels, H100", 2, f"{GPT_350M} 32 {TP2} {WHOLE}", 124.0, None, PEERS),
    ("350M, tp2, kernels, overlapping, H100", 2, f"{GPT_350M} 32 {TP2} {OVERLAP} {WHOLE}", 118.6, None, PEERS),
    ("350M, tp2, sp, kernels, overlapping, H100", 2, f"{GPT_350M} 32 {TP2} {SP} {OVERLAP} {WHOLE}", 119.5, None, PEERS),
    ("350M, pp2, H100", 2, f"{GPT_350M} 32 {PP2} {WHOLE}", 99.5, None, PIPELINES),
    ("350M, pp2, overlapping, H100", 2, f"{GPT_350M} 32 {PP2} {OVERLAP} {WHOLE}", 96.4, None, PIPELINES),
    ("350M, pp2 vp2, H100", 2, f"{GPT_350M} 32 {PP2} {CHUNKS} {WHOLE}", 95.3, None, PIPELINES),
    ("350M, pp2 vp2, overlapping, H100", 2, f"{GPT_350M} 32 {PP2} {CHUNKS} {OVERLAP} {WHOLE}", 95.1, None, PIPELINES),
    ("350M, pp2, 64 sequences, H100", 2, f"{GPT_350M} 64 {PP2} {WHOLE}", 189.1, None, PIPELINES),
    ("350M, pp2, 64 sequences, overlapping, H100", 2, f"{GPT_350M} 64 {PP2} {OVERLAP} {WHOLE}", 182.5, None, PIPELINES),
    ("124M, dp4", 4, f"{GPT_124M} 256 {WHOLE}", 113.1, 22.8, FOUR),
    ("124M, dp4, divided optimizer", 4, f"{GPT_124M} 256 {DIVIDED} {WHOLE}", 112.5, 21.8, FOUR),
    ("1.3B, dp4", 4, f"{GPT_1_3B} 32 {WHOLE} {PIECES}", 265.4, 48.6, FOUR),
    ("1.3B, dp4, divided optimizer", 4, f"{GPT_1_3B} 32 {DIVIDED} {WHOLE} {PIECES}", 258.2, 37.6, FOUR),
    ("Llama 8B, dp4, divided optimizer", 4, f"{LLAMA_8B} {DIVIDED} {GRAPHS}", 1380.0, 104.2, FOUR),
    ("350M, dp4", 4, f"{GPT_350M} 64 {WHOLE}", 91.5, 10.8, TENSOR),
    ("350M, dp4, divided optimizer", 4, f"{GPT_350M} 64 {DIVIDED} {WHOLE}", 88.6, 7.8, TENSOR),
    ("350M, pp2 dp2", 4, f"{GPT_350M} 64 {PP2} {DIVIDED} {WHOLE}", 101.4, 10.1, FOUR),
    ("350M, pp2 dp2, zero bubble", 4, f"{GPT_350M} 64 {PP2} {ZERO_BUBBLE} {DIVIDED} {WHOLE}", 96.3, 10.1, FOUR),
    ("350M, pp2 vp2 dp2", 4, f"{GPT_350M} 64 {PP2} {CHUNKS} {DIVIDED} {WHOLE}", 95.6, 11.4, TENSOR),
    ("350M, pp4", 4, f"{GPT_350M} 64 {PP4} {WHOLE}", 109.7, 8.2, FOUR),
    ("350M, pp4, zero bubble", 4, f"{GPT_350M} 64 {PP4} {ZERO_BUBBLE} {WHOLE}", 99.4, 8.2, TENSOR),
    ("350M, tp2 dp2, sp", 4, f"{GPT_350M} 64 {TP2} {NCCL} {SP} {DIVIDED} {WHOLE}", 157.1, 6.8, TENSOR),
    ("350M, tp2 pp2, sp", 4, f"{GPT_350M} 64 {TP2} {NCCL} {SP} {PP2} {WHOLE}", 175.0, 6.7, TENSOR),
]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--trainer", default="target/release/trainer")
    options.add_argument("--gpu", default="h200")
    options = options.parse_args()
    print("| case | cards | ms measured | predicted | | GiB measured | predicted | | measured in |")
    print("|---|---|---|---|---|---|---|---|---|")
    steps, memory = {}, []
    for name, cards, flags, ms, gib, result in ROWS:
        gpu = "h100-80" if result in H100S else options.gpu
        words = [options.trainer, "plan", "--gpu", gpu, "--ranks", str(cards), "--as-given", "--json", "--"]
        page = json.loads(subprocess.run(words + flags.split(), check=True, capture_output=True, text=True).stdout)
        layout = page["layouts"][0]
        predicted, in_use = layout["step_ms"], layout["memory_bytes"] / 2**30
        error = predicted / ms - 1
        steps.setdefault((gpu, cards), []).append((abs(error), name, layout["tensor"]))
        cells = ["", f"{in_use:.2f}", ""]
        if gib:
            memory.append(abs(in_use / gib - 1))
            cells = [f"{gib:.2f}", f"{in_use:.2f}", f"{in_use / gib - 1:+.1%}"]
        print(f"| {name} | {cards} | {ms:.1f} | {predicted:.1f} | {error:+.1%} | {' | '.join(cells)} | {result} |")
    print()
    for (gpu, cards), errors in steps.items():
        bound = sum(error <= (0.10 if tensor > 1 else 0.05) for error, _, tensor in errors)
        mean = statistics.mean(error for error, _, _ in errors)
        print(f"{cards} x {gpu}: mean {mean:.1%}, largest {max(errors)[0]:.1%} ({max(errors)[1]});"
              f" {bound} of {len(errors)} within 5 % (10 % with tensor parallelism)")
    print(f"memory: mean {statistics.mean(memory):.1%}, largest {max(memory):.1%};"
          f" {sum(error <= 0.03 for error in memory)} of {len(memory)} within 3 %")


main()
