"""A GPT-2 style training step in PyTorch on one GPU or, under torchrun, on several: what the trainer is measured against.

    python pytorch_gpt.py --layers 12 --hidden 768 --heads 12 --seq 1024 --micro-batch 64 --accumulate 1 --mode compile

Prints one JSON object: step_ms (median), tokens_per_s, the versions of what ran. Weights are f32, layers run in bf16
autocast, attention is scaled_dot_product_attention with cuDNN first, AdamW is fused. Modes: `eager`; `compile`
(torch.compile); `graph` (eager, the whole step in one CUDA graph); `compile+graph` (both). With `--float8` the linear
layers of blocks multiply in 8 bits through torchao, by one of its recipes. With `--lora-rank` all weights are frozen, in bf16,
and each linear layer of blocks has an adapter as PEFT makes it.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, seq, hidden = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, seq, 3, self.heads, hidden // self.heads).unbind(2)
        context = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + self.projection(context.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.tokens = nn.Embedding(case.vocab, case.hidden)
        self.positions = nn.Embedding(case.seq, case.hidden)
        self.blocks = nn.ModuleList(Block(case.hidden, case.heads) for _ in range(case.layers))
        self.norm = nn.LayerNorm(case.hidden)
        self.apply(self.start)

    @staticmethod
    def start(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Adapted(nn.Module):
    """A linear layer that is frozen, with a low-rank adapter."""

    def __init__(self, base, rank, alpha=16.0):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x)) * self.scale


def add_adapters(model, rank):
    """Freezes a model and gives each linear layer of its blocks an adapter."""
    model.to(torch.bfloat16).requires_grad_(False)
    for block in model.blocks:
        linears = [(parent, name, child) for parent in block.modules() for name, child in parent.named_children()
                   if isinstance(child, nn.Linear)]
        for parent, name, child in linears:
            setattr(parent, name, Adapted(child, rank))


def arguments(**shape):
    """The command line. `shape` has defaults of further options of the model's shape."""
    parser = argparse.ArgumentParser()
    for name, default in [("layers", 12), ("hidden", 768), ("heads", 12), ("seq", 1024), ("vocab", 50304)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in [("micro-batch", 64), ("accumulate", 1), ("steps", 30)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in shape.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument("--float8", choices=["tensorwise", "rowwise", "rowwise_with_gw_hp"])
    parser.add_argument("--mode", choices=["eager", "compile", "graph", "compile+graph"], default="compile")
    parser.add_argument("--shard", action="store_true", help="ranks divide weights, gradients and state (FSDP2)")
    parser.add_argument("--profile", action="store_true", help="also print the operations of a step by torch.profiler")
    return parser.parse_args()


def shard(model, compiles):
    """As torchtitan does it: each block is compiled, and divided by itself; sums of gradients are f32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        if compiles:
            block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def main(case, make_model):
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with device:  # billions of weights take minutes on a CPU
        model = make_model(case)
        if case.lora_rank:
            add_adapters(model, case.lora_rank)
    if case.float8:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(case.float8))
    if case.shard:
        shard(model, "compile" in case.mode)
    weights = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in weights if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in weights if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True, capturable="graph" in case.mode)
    # Weights that only this rank has: experts that ranks divide.
    own = [name for name, p in model.named_parameters() if getattr(p, "is_own", False)]
    own_weights = [p for p in weights if getattr(p, "is_own", False)]
    parallel = model
    if ranks > 1 and not case.shard:
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
        parallel = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
    run = torch.compile(parallel) if "compile" in case.mode and not case.shard else parallel
    shape = (case.accumulate, case.micro_batch, case.seq)
    tokens = torch.randint(case.vocab, shape, device=device)
    targets = torch.randint(case.vocab, shape, device=device)

    def step():
        optimizer.zero_grad(set_to_none="graph" not in case.mode)
        for microbatch in range(case.accumulate):
            last = microbatch + 1 == case.accumulate
            if ranks > 1 and not case.shard:
                parallel.require_backward_grad_sync = last
            with torch.autocast("cuda", torch.bfloat16), sdpa_kernel(BACKENDS, set_priority=True):
                loss = run(tokens[microbatch], targets[microbatch])
            (loss / case.accumulate).backward()
        if ranks > 1 and own_weights:
            # They have the gradients of all ranks' mean losses.
            torch._foreach_div_([p.grad for p in own_weights], float(ranks))
        torch.nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
        optimizer.step()
        return loss

    started = time.perf_counter()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(5):
            loss = step()
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    replay = step
    if "graph" in case.mode:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        replay = graph.replay
    for _ in range(5):
        replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(case.steps):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        times.append((begin, end))
    torch.cuda.synchronize()
    step_ms = statistics.median(begin.elapsed_time(end) for begin, end in times)
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps({
            "mode": case.mode,
            "float8": case.float8,
            "lora_rank": case.lora_rank,
            "shard": case.shard,
            "ranks": ranks,
            "step_ms": step_ms,
            "tokens_per_s": case.accumulate * case.micro_batch * case.seq * ranks / step_ms * 1e3,
            "memory_bytes": torch.cuda.max_memory_reserved(),
            "warm_up_s": first,
            "loss": float(loss),
            "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(),
            "gpu": torch.cuda.get_device_name(),
        }))
        if case.profile:
            print(operations(replay))
    if ranks > 1:
        dist.destroy_process_group()


def operations(step, steps=3, rows=20):
    """The operations that take most of a step: name, shapes of inputs, count, milliseconds of their kernels."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    # Kernels are also listed by themselves, and ranges around them too: only the host's calls count.
    averages = profiler.key_averages(group_by_input_shape=True)
    found = [e for e in averages if e.self_device_time_total > 0 and e.device_type == DeviceType.CPU]
    found.sort(key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in found) / steps / 1e3
    lines = [f"{total:.2f} ms of kernels in a step"]
    for event in found[:rows]:
        ms = event.self_device_time_total / steps / 1e3
        shapes = str([shape for shape in event.input_shapes if shape][:3])
        lines.append(f"{event.key[:60]:60} {shapes[:60]:60} {event.count / steps:6.0f} {ms:8.3f} ms {ms / total:6.1%}")
    return "\n".join(lines)


if __name__ == "__main__":
    main(arguments(), Gpt)
