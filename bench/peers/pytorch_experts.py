"""A training step of a model with experts in PyTorch: pytorch_qwen3.py with experts that the ranks divide.

    torchrun --nproc-per-node 2 pytorch_experts.py --layers 16 --hidden 2048 --heads 16 --kv-heads 16 --head-dim 128 \\
        --ffn 1024 --experts 64 --top-k 8 --seq 4096 --micro-batch 4 --accumulate 1

Each rank has its own tokens, and as many experts as the others. Rows go to the ranks of their experts and back by
all-to-all with the real counts, for which the host waits, as torchtitan does by default. Experts multiply by
`grouped_mm`. A balance loss has the factor 0.01. With --forced every expert has as many rows. A rank clips by the norm of
the weights that it has, so the peer's norm costs one transfer less than ours.
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

import pytorch_gpt
import pytorch_qwen3

BALANCE = 0.01


def exchange(rows, received, sent):
    """Sends `sent[r]` rows to rank r, and returns the `received[r]` rows of each rank, in the ranks' order."""
    if len(sent) == 1:
        return rows
    return all_to_all_single_autograd(rows, received, sent, dist.group.WORLD)


class Balance(torch.autograd.Function):
    """Gives a loss its gradient beside the stream that it belongs to."""

    @staticmethod
    def forward(ctx, x, loss):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad, torch.ones((), device=grad.device)


class Experts(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        self.experts, self.top_k, self.forced = case.experts, case.top_k, case.forced
        mine = case.experts // self.ranks
        self.router = nn.Linear(case.hidden, case.experts, bias=False)
        self.gate_up = nn.Parameter(torch.randn(mine, case.hidden, 2 * case.ffn) * 0.02)
        self.down = nn.Parameter(torch.randn(mine, case.ffn, case.hidden) * 0.02)
        self.gate_up.is_own = self.down.is_own = self.ranks > 1

    def route(self, x):
        """The chosen experts and their weights, `[tokens, top_k]`, and the balance loss."""
        scores = F.linear(x.float(), self.router.weight).softmax(-1)
        weights, chosen = scores.topk(self.top_k, dim=-1)
        if self.forced:
            first = torch.arange(x.shape[0], device=x.device)[:, None] * self.top_k
            chosen = (first + torch.arange(self.top_k, device=x.device)) % self.experts
            weights = scores.gather(-1, chosen)
        loads = torch.zeros(self.experts, device=x.device).index_add_(
            0, chosen.flatten(), torch.ones(chosen.numel(), device=x.device))
        loss = BALANCE * self.experts * (loads / chosen.numel() * scores.mean(0)).sum()
        return chosen, weights / weights.sum(-1, keepdim=True), loads, loss

    @torch.compiler.disable
    def dispatch(self, x, chosen, loads):
        """The rows of this rank's experts by expert, their ends, and what brings them back."""
        mine = self.experts // self.ranks
        order = chosen.flatten().argsort(stable=True)
        sent = loads.to(torch.int64)
        received = torch.empty_like(sent)
        if self.ranks > 1:
            dist.all_to_all_single(received, sent)
        else:
            received.copy_(sent)
        both = torch.stack((sent.view(self.ranks, mine).sum(1), received.view(self.ranks, mine).sum(1))).tolist()
        rows = exchange(x[order // self.top_k], both[1], both[0])
        # Rows come by rank and by expert; products take them by expert.
        of = torch.arange(mine, device=x.device).repeat(self.ranks).repeat_interleave(received, output_size=sum(both[1]))
        by_expert = of.argsort(stable=True)
        ends = received.view(self.ranks, mine).sum(0).cumsum(0).to(torch.int32)
        return rows[by_expert], ends, (order, by_expert, both)

    @torch.compiler.disable
    def combine(self, rows, back):
        """The rows in the order of tokens and choices."""
        order, by_expert, (sent, received) = back
        rows = exchange(rows[by_expert.argsort()], sent, received)
        return rows[order.argsort()]

    def multiply(self, rows, ends):
        gate, up = F.grouped_mm(rows, self.gate_up.to(torch.bfloat16), offs=ends).chunk(2, dim=-1)
        return F.grouped_mm(F.silu(gate) * up, self.down.to(torch.bfloat16), offs=ends)

    def forward(self, x):
        shape = x.shape
        x = x.flatten(0, 1).to(torch.bfloat16)
        chosen, weights, loads, loss = self.route(x)
        rows, ends, back = self.dispatch(x, chosen, loads)
        rows = self.combine(self.multiply(rows, ends), back)
        out = (rows.view(-1, self.top_k, shape[-1]) * weights[:, :, None]).sum(1)
        return Balance.apply(out, loss).view(shape)


class Block(pytorch_qwen3.Block):
    def make_feed_forward(self, case):
        return Experts(case)


class Model(pytorch_qwen3.Qwen3):
    block = Block


if __name__ == "__main__":
    torch._dynamo.config.optimize_ddp = False
    shape = pytorch_gpt.arguments(kv_heads=16, head_dim=128, ffn=1024, experts=64, top_k=8, forced=0)
    pytorch_gpt.main(shape, Model)
