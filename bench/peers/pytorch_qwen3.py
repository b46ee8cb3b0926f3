"""A training step of Qwen3's shape in PyTorch, otherwise as pytorch_gpt.py.

    python pytorch_qwen3.py --layers 28 --hidden 1024 --ffn 3072 --seq 4096 --micro-batch 4 --accumulate 1

Written for speed: queries, keys and values are one product, as are gate and up. The layers are those of Qwen3:
RMSNorm, norms of heads, rotary embeddings, grouped queries, SwiGLU, and a head tied to the embedding.
"""

import torch
import torch.nn.functional as F
from torch import nn

import pytorch_gpt


def rotate(x, cos, sin):
    """Rotates pairs (i, i + half) of each head; x is [batch, seq, heads, head_dim]."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


class SwiGlu(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.gate_up = nn.Linear(case.hidden, 2 * case.ffn, bias=False)
        self.down = nn.Linear(case.ffn, case.hidden, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = case.heads, case.kv_heads, case.head_dim
        width = case.heads * case.head_dim
        self.norm_1, self.norm_2 = nn.RMSNorm(case.hidden, 1e-6), nn.RMSNorm(case.hidden, 1e-6)
        self.norm_q, self.norm_k = nn.RMSNorm(case.head_dim, 1e-6), nn.RMSNorm(case.head_dim, 1e-6)
        self.qkv = nn.Linear(case.hidden, width + 2 * case.kv_heads * case.head_dim, bias=False)
        self.projection = nn.Linear(width, case.hidden, bias=False)
        self.feed_forward = self.make_feed_forward(case)

    def make_feed_forward(self, case):
        return SwiGlu(case)

    def forward(self, x, cos, sin):
        batch, seq, _ = x.shape
        heads = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = self.qkv(self.norm_1(x)).view(batch, seq, -1, self.head_dim).split(heads, dim=2)
        q, k = rotate(self.norm_q(q), cos, sin), rotate(self.norm_k(k), cos, sin)
        q, k, v = (t.to(torch.bfloat16).transpose(1, 2) for t in (q, k, v))
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.projection(context.transpose(1, 2).reshape(batch, seq, -1))
        return x + self.feed_forward(self.norm_2(x))


class Qwen3(nn.Module):
    block = Block

    def __init__(self, case):
        super().__init__()
        self.tokens = nn.Embedding(case.vocab, case.hidden)
        self.blocks = nn.ModuleList(self.block(case) for _ in range(case.layers))
        self.norm = nn.RMSNorm(case.hidden, 1e-6)
        self.apply(pytorch_gpt.Gpt.start)
        steps = torch.arange(0, case.head_dim, 2) / case.head_dim
        angles = torch.outer(torch.arange(case.seq), 1e6**-steps)[None, :, None, :]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


if __name__ == "__main__":
    shape = pytorch_gpt.arguments(kv_heads=8, head_dim=128, ffn=3072)
    pytorch_gpt.main(shape, Qwen3)
