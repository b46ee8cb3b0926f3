"""A PyTorch CPU reference the trainer is compared with.

    python reference.py CASE.json IN.safetensors OUT.safetensors

Trains the model of CASE.json from the weights and on the batches in IN, and writes what it saw to OUT.
Layer norm, GELU, attention and cross entropy are spelled out; the rest (autograd, clip, optimizer) is PyTorch's.

CASE.json, all keys of its kind required, none others accepted:
    kind "gpt": layers hidden heads ffn vocab seq tied eps      kind "mlp": layer_sizes [in, ..., out]
    both: steps microbatches optimizer
    optimizer "adamw": lr [one per step] beta1 beta2 eps weight_decay clip
    optimizer "sgd":   lr [one per step] momentum weight_decay clip
IN   the weights by the names `weight_shapes` gives, f32, and per step s and microbatch m
     batch.{s}.{m}.tokens and .targets  i32 (batch, seq)             gpt
     batch.{s}.{m}.inputs (batch, in) and .targets (batch, out) f32  mlp
OUT  loss (steps,) and grad_norm (steps,) f64, the norm before clipping; grad.{name} of step 0 before
     clipping; final.{name}; for gpt the logits (batch, seq, vocab) of step 0, microbatch 0.

Rows of `wte.weight` (and `lm_head.weight`) past `vocab` are padding: they get no gradient and take no part in
the loss, but weight decay reaches them like any other row. A clip of 0 means no clipping.
"""

import json
import math
import sys
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

RUN_KEYS = {"kind", "steps", "microbatches", "optimizer"}
CASE_KEYS = {
    "gpt": RUN_KEYS | {"layers", "hidden", "heads", "ffn", "vocab", "seq", "tied", "eps"},
    "mlp": RUN_KEYS | {"layer_sizes"},
}
OPTIMIZER_KEYS = {
    "adamw": {"kind", "lr", "weight_decay", "clip", "beta1", "beta2", "eps"},
    "sgd": {"kind", "lr", "weight_decay", "clip", "momentum"},
}


def require_keys(where, found, allowed):
    """Fails unless `found` has exactly the keys `allowed`."""
    unknown, missing = sorted(found.keys() - allowed), sorted(allowed - found.keys())
    if unknown or missing:
        raise SystemExit(f"{where}: unknown keys {unknown}, missing keys {missing}")


def check_case(case):
    """Fails on a case this file does not fully understand."""
    for where, table, keys_of_kind in [("case", case, CASE_KEYS), ("optimizer", case.get("optimizer"), OPTIMIZER_KEYS)]:
        kind = (table or {}).get("kind")
        if kind not in keys_of_kind:
            raise SystemExit(f"{where}: kind is {kind!r}, not one of {sorted(keys_of_kind)}")
        require_keys(where, table, keys_of_kind[kind])
    if len(case["optimizer"]["lr"]) != case["steps"]:
        raise SystemExit(f"optimizer: lr has {len(case['optimizer']['lr'])} values for {case['steps']} steps")


def weight_shapes(case):
    """Every weight's name and shape, `vocab` not yet padded. Matrices are (out, in), as nn.Linear keeps them."""
    shapes = {}
    if case["kind"] == "mlp":
        for i, (n_in, n_out) in enumerate(pairwise(case["layer_sizes"])):
            shapes |= {f"layers.{i}.weight": (n_out, n_in), f"layers.{i}.bias": (n_out,)}
        return shapes
    hidden, ffn = case["hidden"], case["ffn"]
    shapes |= {"wte.weight": (case["vocab"], hidden), "wpe.weight": (case["seq"], hidden)}
    for h in (f"h.{i}" for i in range(case["layers"])):
        shapes |= {f"{h}.ln_1.weight": (hidden,), f"{h}.ln_1.bias": (hidden,)}
        shapes |= {f"{h}.attn.c_attn.weight": (3 * hidden, hidden), f"{h}.attn.c_attn.bias": (3 * hidden,)}
        shapes |= {f"{h}.attn.c_proj.weight": (hidden, hidden), f"{h}.attn.c_proj.bias": (hidden,)}
        shapes |= {f"{h}.ln_2.weight": (hidden,), f"{h}.ln_2.bias": (hidden,)}
        shapes |= {f"{h}.mlp.c_fc.weight": (ffn, hidden), f"{h}.mlp.c_fc.bias": (ffn,)}
        shapes |= {f"{h}.mlp.c_proj.weight": (hidden, ffn), f"{h}.mlp.c_proj.bias": (hidden,)}
    shapes |= {"ln_f.weight": (hidden,), "ln_f.bias": (hidden,)}
    if not case["tied"]:
        shapes |= {"lm_head.weight": (case["vocab"], hidden)}
    return shapes


def take_weights(case, tensors, dtype):
    """The weights of `tensors` as parameters of `dtype`; fails on a name or shape that the case does not call for."""
    shapes = weight_shapes(case)
    require_keys("weights", {n: t for n, t in tensors.items() if not n.startswith("batch.")}, shapes.keys())
    for name, shape in shapes.items():
        found, may_pad = tuple(tensors[name].shape), name in ("wte.weight", "lm_head.weight")
        if found != shape and not (may_pad and found[1:] == shape[1:] and found[0] > shape[0]):
            raise SystemExit(f"weights: {name} has shape {found}, the case says {shape}")
    return {name: tensors[name].to(dtype, copy=True).requires_grad_() for name in shapes}


def layer_norm(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps) * weight + bias


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention(qkv, heads):
    """Causal softmax attention. qkv (batch, seq, 3*hidden), its last axis [Q | K | V] -> (batch, seq, hidden)."""
    batch, seq, width = qkv.shape
    head_dim = width // 3 // heads
    q, k, v = (part.view(batch, seq, heads, head_dim).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    scores = q @ k.transpose(-1, -2) / math.sqrt(head_dim)  # (batch, heads, seq, seq)
    future = torch.ones(seq, seq, dtype=torch.bool).triu(1)
    probabilities = scores.masked_fill(future, -math.inf).softmax(-1)
    return (probabilities @ v).transpose(1, 2).reshape(batch, seq, width // 3)


def gpt_logits(case, w, tokens):
    """tokens (batch, seq) -> logits (batch, seq, vocab), padding left out."""
    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], case["eps"])

    x = w["wte.weight"][: case["vocab"]][tokens] + w["wpe.weight"][: tokens.shape[1]]
    for i in range(case["layers"]):
        h = f"h.{i}"
        mixed = attention(linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn"), case["heads"])
        x = x + linear(mixed, f"{h}.attn.c_proj")
        x = x + linear(gelu(linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc")), f"{h}.mlp.c_proj")
    head = w["wte.weight" if case["tied"] else "lm_head.weight"][: case["vocab"]]
    return norm(x, "ln_f") @ head.T


def mlp_outputs(case, w, inputs):
    """inputs (batch, in) -> (batch, out), ReLU between layers and none after the last."""
    x = inputs
    for i in range(len(case["layer_sizes"]) - 1):
        x = (torch.relu(x) if i > 0 else x) @ w[f"layers.{i}.weight"].T + w[f"layers.{i}.bias"]
    return x


def summed_loss(case, w, tensors, batch, dtype):
    """One microbatch: (the sum of its losses, one per target; the model's output)."""
    targets = tensors[f"{batch}.targets"]
    if case["kind"] == "mlp":
        outputs = mlp_outputs(case, w, tensors[f"{batch}.inputs"].to(dtype))
        return (outputs - targets.to(dtype)).square().sum(), outputs
    logits = gpt_logits(case, w, tensors[f"{batch}.tokens"].long())
    target_logits = logits.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    return (logits.logsumexp(-1) - target_logits).sum(), logits


def make_optimizer(settings, w):
    """Weight decay is for matrices, embeddings among them: anything with two axes or more."""
    matrices = {"params": [p for p in w.values() if p.ndim >= 2], "weight_decay": settings["weight_decay"]}
    vectors = {"params": [p for p in w.values() if p.ndim < 2], "weight_decay": 0.0}
    if settings["kind"] == "sgd":  # decay is added to the clipped gradient, so it goes through the momentum
        return torch.optim.SGD([matrices, vectors], lr=0.0, momentum=settings["momentum"], foreach=False)
    betas = (settings["beta1"], settings["beta2"])
    return torch.optim.AdamW([matrices, vectors], lr=0.0, betas=betas, eps=settings["eps"], foreach=False)


def train(case, tensors, dtype=torch.float32):
    """Runs the whole case in `dtype` and returns what OUT holds."""
    check_case(case)
    w = take_weights(case, tensors, dtype)
    optimizer = make_optimizer(case["optimizer"], w)
    clip = case["optimizer"]["clip"] or math.inf
    out, losses, norms = {}, [], []
    for step, lr in enumerate(case["optimizer"]["lr"]):
        optimizer.zero_grad()
        batches, loss = [f"batch.{step}.{m}" for m in range(case["microbatches"])], 0.0
        total = sum(tensors[f"{batch}.targets"].numel() for batch in batches)
        for batch in batches:
            part, outputs = summed_loss(case, w, tensors, batch, dtype)
            (part / total).backward()
            loss += part.item() / total
            if case["kind"] == "gpt" and batch == "batch.0.0":
                out["logits"] = outputs.detach()
        if step == 0:
            out |= {f"grad.{name}": p.grad.clone() for name, p in w.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(w.values(), clip, foreach=False).item())
        losses.append(loss)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    out |= {f"final.{name}": p.detach() for name, p in w.items()}
    history = torch.tensor([losses, norms], dtype=torch.float64)
    return out | {"loss": history[0].clone(), "grad_norm": history[1].clone()}


def main(arguments):
    if len(arguments) != 3:
        raise SystemExit("usage: reference.py CASE.json IN.safetensors OUT.safetensors")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    case, tensors = json.loads(Path(arguments[0]).read_text()), load_file(arguments[1])
    save_file({name: t.contiguous() for name, t in train(case, tensors).items()}, arguments[2])


if __name__ == "__main__":
    main(sys.argv[1:])
