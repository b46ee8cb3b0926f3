"""The trainer's default GPT in plain PyTorch on the CPU, f32: what the host device is measured beside.

    python bench/peers/pytorch_cpu.py --threads 2 [--compile]

Random tokens, no dropout, AdamW, gradient clipping at 1. Prints one JSON line: the median milliseconds of a
step after the warm-up, and the tokens per second that follow from it.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """One pre-norm transformer layer. (batch, seq, hidden) -> the same."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.c_attn, self.attn_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.c_fc, self.mlp_proj = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, seq, hidden = x.shape
        qkv = self.c_attn(self.ln_1(x)).view(batch, seq, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, seq, head_dim)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(mixed.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2 with its head tied to the token embedding."""

    def __init__(self, layers, hidden, heads, seq, vocab):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, hidden), nn.Embedding(seq, hidden)
        self.h = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)
        self.apply(self.initialise)

    @staticmethod
    def initialise(module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, tokens, targets):
        """tokens, targets (batch, seq) -> the mean loss, a scalar."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag, default in [("layers", 2), ("hidden", 64), ("heads", 4), ("seq", 64), ("vocab", 128)]:
        parser.add_argument(f"--{flag}", type=int, default=default)
    parser.add_argument("--micro-batch", type=int, default=2, help="sequences a microbatch")
    parser.add_argument("--accumulate", type=int, default=4, help="microbatches a step")
    parser.add_argument("--steps", type=int, default=50, help="steps measured")
    parser.add_argument("--warmup", type=int, default=10, help="steps before them, compilation included")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model; needs a C++ compiler")
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = Gpt(args.layers, args.hidden, args.heads, args.seq, args.vocab)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    loss_of = torch.compile(model) if args.compile else model

    def train_step():
        tokens = torch.randint(args.vocab, (args.accumulate, args.micro_batch, args.seq + 1))
        optimizer.zero_grad(set_to_none=True)
        for microbatch in tokens:
            (loss_of(microbatch[:, :-1], microbatch[:, 1:]) / args.accumulate).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    for _ in range(args.warmup):
        train_step()
    milliseconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        train_step()
        milliseconds.append(1e3 * (time.perf_counter() - start))
    median = statistics.median(milliseconds)
    tokens_per_s = 1e3 * args.accumulate * args.micro_batch * args.seq / median
    result = {"median_ms": round(median, 3), "tokens_per_s": round(tokens_per_s), "torch": torch.__version__}
    print(json.dumps(result | vars(args)))


if __name__ == "__main__":
    main()
