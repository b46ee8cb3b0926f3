"""How far f32 rounding alone takes a run from the exact one: the least tolerance that means anything.

    python self_check.py

Makes random weights and batches, runs the reference in f32 and in f64 from the same f32 numbers, and prints one
JSON line a case. `loss` and `grad_norm` are the largest relative difference over the steps; `grad`, `final` and
`logits` the largest over the tensors of max |f32 - f64| / max |f64|, and that tensor's name.

The key rows of `c_attn.bias` shift every score of a query alike, so softmax ignores them and their true gradient is
zero. In f32 it is rounding noise, which AdamW scales up towards a step of lr: of all weights these agree least.
"""

import json

import torch

from case import weight_shapes
from reference import train

STEPS, MICROBATCHES = 20, 3
LR = [3e-3 * min(1, (step + 1) / 5) for step in range(STEPS)]  # a warm-up, so that a step's rate matters
ADAMW = {"kind": "adamw", "lr": LR, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
SGD = {"kind": "sgd", "lr": [0.1] * STEPS, "momentum": 0.9, "weight_decay": 0.01, "clip": 1.0}
RUN = {"steps": STEPS, "microbatches": MICROBATCHES}
SIZES = {"layers": 2, "hidden": 64, "heads": 4, "head_dim": 16, "ffn": 256, "vocab": 97, "seq": 32, "eps": 1e-5, **RUN}
ROPE = {"rope_base": 1e4, "rope_scaling": None, "config": {}}
CHOICES = {"norm": "layernorm", "activation": "gelu", "position": "learned", "bias": True, "kv_heads": 4,
           "z_loss": 1e-3}
GPT = {"kind": "gpt", **SIZES, **ROPE, **CHOICES}
LLAMA = {"kind": "llama", "kv_heads": 2, **SIZES, **ROPE}
WIDE_HEADS = {**LLAMA, "head_dim": 24, "tied": True, "optimizer": ADAMW}
MLP = {"kind": "mlp", "layer_sizes": [16, 64, 64, 8], **RUN}
CASES = {
    "gpt adamw": GPT | {"tied": True, "optimizer": ADAMW},
    "gpt adamw untied": GPT | {"tied": False, "optimizer": ADAMW},
    "gpt sgd": GPT | {"tied": True, "optimizer": SGD},
    "llama adamw": LLAMA | {"tied": False, "optimizer": ADAMW},
    "qwen2 adamw": WIDE_HEADS | {"kind": "qwen2"},
    "qwen3 adamw": WIDE_HEADS | {"kind": "qwen3"},
    "olmo2 adamw": WIDE_HEADS | {"kind": "olmo2"},
    "gemma2 adamw": WIDE_HEADS | {"kind": "gemma2"},
    "gemma3 adamw": WIDE_HEADS | {"kind": "gemma3"},
    "mlp adamw": MLP | {"optimizer": ADAMW},
    "mlp sgd": MLP | {"optimizer": SGD},
}


def random_tensors(case, batch=2, padded_vocab=128):
    """GPT-2's initial weights (normal, 0.02; norms one) or uniform 1/sqrt(in), and random batches."""
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name, shape in weight_shapes(case).items():
        if name in ("wte.weight", "lm_head.weight"):
            shape = (padded_vocab, *shape[1:])
        if case["kind"] == "mlp":
            bound = shape[-1] ** -0.5
            tensors[name] = torch.empty(shape).uniform_(-bound, bound, generator=generator)
        else:
            centre = 1.0 if ("ln_" in name or "_norm." in name) and name.endswith("weight") else 0.0
            tensors[name] = torch.empty(shape).normal_(centre, 0.02, generator=generator)
    for batch_name in (f"batch.{s}.{m}" for s in range(STEPS) for m in range(MICROBATCHES)):
        if case["kind"] != "mlp":  # something to learn: each token says what its target is
            tokens = torch.randint(case["vocab"], (batch, case["seq"]), generator=generator, dtype=torch.int32)
            tensors |= {f"{batch_name}.tokens": tokens, f"{batch_name}.targets": (5 * tokens + 1) % case["vocab"]}
        else:
            inputs = torch.randn(batch, case["layer_sizes"][0], generator=generator)
            targets = inputs[:, : case["layer_sizes"][-1]].sin()
            tensors |= {f"{batch_name}.inputs": inputs, f"{batch_name}.targets": targets}
    return tensors


def compare(case):
    """The differences between the f32 and the f64 run of `case`, by what is compared."""
    tensors = random_tensors(case)
    single, double = train(case, tensors, torch.float32), train(case, tensors, torch.float64)
    worst = {}
    for name, exact in double.items():
        difference = (single[name].double() - exact).abs()
        if name in ("loss", "grad_norm"):
            relative = (difference / exact.abs()).max().item()
        else:
            relative = (difference.max() / exact.abs().max()).item()
        kind, _, tensor = name.partition(".")
        worst[kind] = max(worst.get(kind, (0.0, "")), (relative, tensor))
    return {"losses": [double["loss"][0].item(), double["loss"][-1].item()]} | {
        kind: f"{relative:.2e} {tensor}".strip() for kind, (relative, tensor) in worst.items()
    }


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name, case in CASES.items():
        print(json.dumps({"case": name} | compare(case)), flush=True)


if __name__ == "__main__":
    main()
