"""The benchmarks' MLP in PyTorch on one GPU: 4096 -> 2048 -> 1024 -> 512 -> 256, batch 640, TF32, dropout, MSE, SGD.

    python pytorch_mlp.py --mode graph

Prints one JSON object: step_ms (wall, steady), issue_us (host, idle GPU), memory_mib (the most that tensors took, and what
PyTorch holds for them). Modes: `eager`, `compile`, `graph` (forward, backward and optimizer in one CUDA graph), `callables`
(make_graphed_callables of the model; loss and optimizer outside), `block2` (make_graphed_callables of the second block
alone).
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["eager", "compile", "graph", "callables", "block2"], default="graph")
    parser.add_argument("--steps", type=int, default=200)
    case = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    sizes, dropouts = [4096, 2048, 1024, 512, 256], [0.2, 0.1, 0.1]
    blocks = []
    for i, (n_in, n_out) in enumerate(zip(sizes, sizes[1:])):
        rest = [nn.ReLU(), nn.Dropout(dropouts[i])] if i < len(sizes) - 2 else []
        blocks.append(nn.Sequential(nn.Linear(n_in, n_out), *rest))
    model = nn.Sequential(*blocks).cuda()
    run = torch.compile(model) if case.mode == "compile" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(640, sizes[0], device="cuda"), torch.randn(640, sizes[-1], device="cuda")

    if case.mode == "callables":
        run = torch.cuda.make_graphed_callables(model, (inputs,))
    if case.mode == "block2":
        model[1] = torch.cuda.make_graphed_callables(model[1], (torch.randn(640, sizes[1], device="cuda", requires_grad=True),))

    def step():
        # Graphs of backward write into gradients. These must stay at their addresses.
        optimizer.zero_grad(set_to_none=case.mode != "callables")
        loss = nn.functional.mse_loss(run(inputs), targets)
        loss.backward()
        optimizer.step()

    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(10):
            step()
    torch.cuda.synchronize()
    replay = step
    if case.mode == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        replay = graph.replay
    issue = []
    for _ in range(50):
        torch.cuda.synchronize()
        started = time.perf_counter()
        replay()
        issue.append((time.perf_counter() - started) * 1e6)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(case.steps):
        replay()
    torch.cuda.synchronize()
    step_ms = (time.perf_counter() - started) / case.steps * 1e3
    result = {"mode": case.mode, "step_ms": step_ms, "issue_us": statistics.median(issue), "torch": torch.__version__}
    result["memory_mib"] = [round(n / 2**20, 1) for n in (torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved())]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
