"""A PyTorch CPU reference the trainer is compared with.

    python reference.py CASE.json IN.safetensors OUT.safetensors

Trains the model of CASE.json from the weights and on the batches in IN, and writes what it saw to OUT.
The kinds of `case.py`'s FAMILIES are `transformers`' own classes. For the others norms, activations, attention, experts and
cross entropy are spelled out, and for all the losses of routers; the rest (autograd, clip, optimizer) is PyTorch's.

CASE.json, all keys of its kind required, none others accepted:
    kind "gpt", and those of `transformers`:
         layers hidden heads kv_heads head_dim ffn vocab seq tied eps rope_base rope_scaling config
         config: more keys for the configuration of `transformers`
         "gpt" also: z_loss (its multiplier), norm "layernorm" or "rmsnorm", activation "gelu" or "swiglu",
         position "learned", "rotary" or "none", bias
    "experts", of "gpt" and of the kinds that have them: {count, per_token, ffn, shared_ffn, score "softmax" or "sigmoid",
         normalise, scale, blocks [whether each block has experts], balance (its multiplier), balance_over "microbatch",
         "sequence" or "global_batch", z_loss (its multiplier), capacity (over the mean load; 0: nothing is dropped),
         keeps "weights" or "first": the choices that an expert with more keeps}
    kind "mlp": layer_sizes [in, ..., out]
    all: steps microbatches optimizer
    optimizer "adamw": lr [one per step] beta1 beta2 eps weight_decay clip
    optimizer "muon":  those of "adamw", and momentum ns_steps; matrices of blocks by Muon, the rest by AdamW
    "lora", of all but mlp, may be left out: {scale, rank, layers {name: of each adapter [first row, end, first
         row of A, of B]}}; only adapters are trained then
    "further", of "gpt", may be left out: {depths, factor}: layers that predict tokens beyond the next one
    "own", of all optimizers, may be left out: {parameter: [what its lr is multiplied by, its weight decay or null]}
    optimizer "sgd":   lr [one per step] momentum weight_decay clip
IN   the weights by the names `weight_shapes` gives, f32, and per step s and microbatch m
     batch.{s}.{m}.tokens and .targets  i32 (batch, seq)             all but mlp
     batch.{s}.{m}.inputs (batch, in) and .targets (batch, out) f32  mlp
OUT  loss, z_loss, balance_loss, router_z_loss, mtp_1_loss, mtp_2_loss and grad_norm (steps,) f64, the loss alone and the
     norm before clipping; grad.{name} of step 0 before clipping; final.{name}; but for mlp
     the logits (batch, seq, vocab) of step 0, microbatch 0.

Rows of `wte.weight` (and `lm_head.weight`) past `vocab` are padding: they get no gradient and take no part in
the loss, but weight decay reaches them like any other row. A clip of 0 means no clipping.
"""

import json
import math
import sys
from pathlib import Path

import torch
from case import adapted, check_case, depths, has_experts, take_weights
from families import family_model, family_weights
from safetensors.torch import load_file, save_file

TERMS = ("z_loss", "balance_loss", "router_z_loss", "mtp_1_loss", "mtp_2_loss")


def layer_norm(x, weight, bias, eps):
    return rms_norm(x - x.mean(-1, keepdim=True), weight, eps) + (0 if bias is None else bias)


def rms_norm(x, weight, eps):
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def swiglu(x):
    gate, up = x.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def rotate(x, base):
    """Turns x (batch, heads, seq, head_dim) by position: channel i pairs with i + head_dim / 2."""
    seq, head_dim = x.shape[-2:]
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    angles = torch.arange(seq, dtype=torch.float64).unsqueeze(-1) / base**pairs
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def attention(case, qkv):
    """Causal softmax attention. qkv (batch, seq, (heads + 2 kv_heads) * head_dim), its last axis [Q | K | V]
    -> (batch, seq, heads * head_dim)."""
    batch, seq, _ = qkv.shape
    heads, kv_heads = case["heads"], case["kv_heads"]
    parts = qkv.view(batch, seq, heads + 2 * kv_heads, -1).transpose(1, 2).split([heads, kv_heads, kv_heads], dim=1)
    q, k, v = parts
    if case["position"] == "rotary":
        q, k = rotate(q, case["rope_base"]), rotate(k, case["rope_base"])
    k, v = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # (batch, heads, seq, seq)
    future = torch.ones(seq, seq, dtype=torch.bool).triu(1)
    probabilities = scores.masked_fill(future, -math.inf).softmax(-1)
    return (probabilities @ v).transpose(1, 2).reshape(batch, seq, -1)


def mixture(case, w, h, x):
    """Every expert on every token, weighed: x (batch, seq, hidden) -> the same shape, and the router's logits (batch * seq,
    experts)."""
    experts = case["experts"]
    logits = (x @ w[f"{h}.router.weight"].T).flatten(0, 1)
    scores = logits.softmax(-1) if experts["score"] == "softmax" else torch.sigmoid(logits)
    weights, chosen = scores.topk(experts["per_token"], dim=-1)
    if experts["normalise"]:
        weights = weights / weights.sum(-1, keepdim=True)
    of_each = torch.zeros_like(scores).scatter(-1, chosen, weights * experts["scale"])
    if experts["capacity"]:
        of_each = of_each * within_capacity(experts, of_each.detach(), chosen)
    ups, downs = (w[f"{h}.experts.{name}.weight"].chunk(experts["count"]) for name in ("c_fc", "c_proj"))
    parts = [swiglu(x @ up.T) @ down.T for up, down in zip(ups, downs, strict=True)]
    total = sum(part * of_each[:, e].view(*x.shape[:2], 1) for e, part in enumerate(parts))
    if experts["shared_ffn"]:
        total = total + swiglu(x @ w[f"{h}.shared.c_fc.weight"].T) @ w[f"{h}.shared.c_proj.weight"].T
    return total, logits


def within_capacity(experts, of_each, chosen):
    """1 for the choices (tokens, experts) that experts keep: weights (tokens, experts), and the experts of each token."""
    tokens, count = of_each.shape
    most = math.ceil(tokens * experts["per_token"] / count * experts["capacity"])
    keys = of_each if experts["keeps"] == "weights" else torch.zeros_like(of_each)
    is_chosen = torch.zeros_like(of_each).scatter(-1, chosen, 1.0)
    order = keys.masked_fill(is_chosen == 0, -1.0).argsort(dim=0, descending=True, stable=True)
    return is_chosen * (order.argsort(dim=0) < most)


def router_losses(case, all_logits, batch, loads):
    """The balance loss and the z-loss of all routers of a microbatch, with their multipliers. `loads` has those of
    the step's microbatches before it, for each router; this one's are added."""
    balance, z_loss = 0.0, 0.0
    if "experts" not in case:
        return balance, z_loss
    experts = case["experts"]
    count, k = experts["count"], experts["per_token"]
    for at, logits in enumerate(all_logits):
        scores = logits.softmax(-1) if experts["score"] == "softmax" else torch.sigmoid(logits)
        load = torch.zeros_like(scores).scatter(-1, scores.topk(k, dim=-1).indices, 1.0)
        shares = scores / scores.sum(-1, keepdim=True)
        groups = batch if experts["balance_over"] == "sequence" else 1
        load, shares = (x.view(groups, -1, count).mean(1) for x in (load, shares))
        if experts["balance_over"] == "global_batch":
            loads.setdefault(at, []).append(load)
            load = torch.stack(loads[at]).mean(0)
        balance = balance + experts["balance"] * count / k * (load * shares).sum(-1).mean()
        z_loss = z_loss + experts["z_loss"] * logits.logsumexp(-1).square().mean()
    return balance, z_loss


def shifted(values, by, fill):
    """values (batch, seq) so many places further on; `fill` beyond the end."""
    return torch.cat([values[:, by:], torch.full_like(values[:, :by], fill)], dim=1)


def gpt_logits(case, w, tokens):
    """tokens (batch, seq) -> logits (batch, seq, vocab), padding left out, those of each router, and a list of those of
    each layer that predicts a further token."""
    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    def norm(x, name):
        if case["norm"] == "rmsnorm":
            return rms_norm(x, w[f"{name}.weight"], case["eps"])
        return layer_norm(x, w[f"{name}.weight"], w.get(f"{name}.bias"), case["eps"])

    activation = swiglu if case["activation"] == "swiglu" else gelu
    x, routers = w["wte.weight"][: case["vocab"]][tokens], []
    if case["position"] == "learned":
        x = x + w["wpe.weight"][: tokens.shape[1]]
    head = w["wte.weight" if case["tied"] else "lm_head.weight"][: case["vocab"]]
    for i in range(case["layers"] + depths(case)):
        h = f"h.{i}"
        if i == case["layers"]:
            x = norm(x, "ln_f")
            logits_of_all = [x @ head.T]
        if i >= case["layers"]:
            further = w["wte.weight"][: case["vocab"]][shifted(tokens, i - case["layers"] + 1, 0)]
            joined = torch.cat([norm(further, f"{h}.mtp.enorm"), norm(x, f"{h}.mtp.hnorm")], dim=-1)
            x = linear(joined, f"{h}.mtp.eh_proj")
        mixed = attention(case, linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn"))
        x = x + linear(mixed, f"{h}.attn.c_proj")
        normed = norm(x, f"{h}.ln_2")
        if has_experts(case, i):
            added, logits = mixture(case, w, f"{h}.mlp", normed)
            x, routers = x + added, [*routers, logits]
        else:
            x = x + linear(activation(linear(normed, f"{h}.mlp.c_fc")), f"{h}.mlp.c_proj")
        if i >= case["layers"]:
            x = norm(x, f"{h}.mtp.norm")
            logits_of_all.append(x @ head.T)
    if not depths(case):
        logits_of_all = [norm(x, "ln_f") @ head.T]
    return logits_of_all[0], routers, logits_of_all[1:]


def language_model(case, w, dtype):
    """A function from tokens (batch, seq) to logits (batch, seq, vocab), and those of each router, over the weights w."""
    if case["kind"] == "gpt":
        return lambda tokens: gpt_logits(case, adapted(case, w), tokens)
    model = family_model(case, dtype)

    def logits(tokens):
        named = family_weights(case, adapted(case, w))
        out = torch.func.functional_call(model, named, kwargs={"input_ids": tokens}, tie_weights=False)
        return out.logits, (getattr(out, "router_logits", None) or []) if "experts" in case else [], []

    return logits


def mlp_outputs(case, w, inputs):
    """inputs (batch, in) -> (batch, out), ReLU between layers and none after the last."""
    x = inputs
    for i in range(len(case["layer_sizes"]) - 1):
        x = (torch.relu(x) if i > 0 else x) @ w[f"layers.{i}.weight"].T + w[f"layers.{i}.bias"]
    return x


def summed_loss(case, w, model, tensors, batch, dtype, loads):
    """One microbatch: (the sum of its losses, one per target; that of its z-losses; the losses of its routers; those of
    further tokens; the model's output)."""
    targets = tensors[f"{batch}.targets"]
    if case["kind"] == "mlp":
        outputs = mlp_outputs(case, w, tensors[f"{batch}.inputs"].to(dtype))
        return (outputs - targets.to(dtype)).square().sum(), 0.0, (0.0, 0.0), [], outputs
    logits, routers, further = model(tensors[f"{batch}.tokens"].long())
    target_logits = logits.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    log_sums = logits.logsumexp(-1)
    z_loss = case.get("z_loss", 0.0) * log_sums.square().sum()
    # A token beyond the end of a sample has no loss.
    later = [shifted(targets.long(), depth + 1, -1).flatten() for depth in range(len(further))]
    of_further = [torch.nn.functional.cross_entropy(more.flatten(0, 1), ids, ignore_index=-1, reduction="sum")
                  for more, ids in zip(further, later, strict=True)]
    return (log_sums - target_logits).sum(), z_loss, router_losses(case, routers, len(targets), loads), of_further, logits


def orthogonal(g, ns_steps):
    """Newton-Schulz, as Keller Jordan wrote it, in g's own type."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ns_steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if g.shape[0] > g.shape[1] else x


class Muon:
    """Muon for the weights of linear layers in blocks, with what is packed in them taken apart; AdamW for the rest."""

    def __init__(self, case, settings, w):
        self.settings, self.momenta = settings, {}
        self.matrices = {name: p for name, p in w.items() if name.startswith("h.") and p.ndim == 2}
        heads = [case["head_dim"] * heads for heads in (case["heads"], case["kv_heads"], case["kv_heads"])]
        has_gate = case.get("activation", "swiglu") == "swiglu"
        self.rows = {"attn.c_attn.weight": heads, "mlp.c_fc.weight": [case["ffn"]] * (2 if has_gate else 1)}
        others = {name: p for name, p in w.items() if name not in self.matrices}
        self.adamw = make_optimizer(case, settings | {"kind": "adamw"}, others)
        self.param_groups = self.adamw.param_groups

    def zero_grad(self):
        self.adamw.zero_grad()
        for p in self.matrices.values():
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.adamw.step()
        beta, own = self.settings["momentum"], self.settings.get("own", {})
        for name, p in self.matrices.items():
            m = self.momenta.setdefault(name, torch.zeros_like(p))
            m.lerp_(p.grad, 1 - beta)
            rows = self.rows.get(name.split(".", 2)[2], [p.shape[0]])
            parts = p.grad.lerp(m, beta).split(rows)
            scaled = [0.2 * max(g.shape) ** 0.5 * orthogonal(g, self.settings["ns_steps"]) for g in parts]
            multiplier, decay = own.get(name, (1.0, None))
            lr = self.lr * multiplier
            p.mul_(1 - lr * (self.settings["weight_decay"] if decay is None else decay)).sub_(torch.cat(scaled), alpha=lr)


def make_optimizer(case, settings, w):
    """Weight decay is for matrices, embeddings among them: anything with two axes or more."""
    if settings["kind"] == "muon":
        return Muon(case, settings, w)
    members = {}
    for name, p in w.items():
        multiplier, decay = settings.get("own", {}).get(name, (1.0, None))
        usual = settings["weight_decay"] if p.ndim >= 2 else 0.0
        members.setdefault((multiplier, usual if decay is None else decay), []).append(p)
    groups = [{"params": params, "weight_decay": decay, "lr_multiplier": multiplier}
              for (multiplier, decay), params in members.items()]
    if settings["kind"] == "sgd":  # decay is added to the clipped gradient, so it goes through the momentum
        return torch.optim.SGD(groups, lr=0.0, momentum=settings["momentum"], foreach=False)
    betas = (settings["beta1"], settings["beta2"])
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=settings["eps"], foreach=False)


def train(case, tensors, dtype=torch.float32):
    """Runs the whole case in `dtype` and returns what OUT holds."""
    check_case(case)
    w = take_weights(case, tensors, dtype)
    model = None if case["kind"] == "mlp" else language_model(case, w, dtype)
    trained = {name: p for name, p in w.items() if p.requires_grad}
    optimizer = make_optimizer(case, case["optimizer"], trained)
    clip = case["optimizer"]["clip"] or math.inf
    out, losses, norms, added = {}, [], [], {name: [] for name in TERMS}
    for step, lr in enumerate(case["optimizer"]["lr"]):
        optimizer.zero_grad()
        batches = [f"batch.{step}.{m}" for m in range(case["microbatches"])]
        loss, terms, loads = 0.0, [0.0] * len(TERMS), {}
        total = sum(tensors[f"{batch}.targets"].numel() for batch in batches)
        for batch in batches:
            part, z_part, of_routers, of_further, outputs = summed_loss(case, w, model, tensors, batch, dtype, loads)
            means = [z_part / total, *(part / case["microbatches"] for part in of_routers)]
            further = [more / total for more in of_further]
            factor = case["further"]["factor"] / depths(case) if further else 0
            (part / total + sum(means) + factor * sum(further)).backward()
            loss += part.item() / total
            means += further + [0.0] * (2 - len(further))
            terms = [term + float(mean) for term, mean in zip(terms, means, strict=True)]
            if case["kind"] != "mlp" and batch == "batch.0.0":
                out["logits"] = outputs.detach()
        if step == 0:
            out |= {f"grad.{name}": p.grad.clone() for name, p in trained.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(trained.values(), clip, foreach=False).item())
        losses.append(loss)
        for values, term in zip(added.values(), terms, strict=True):
            values.append(term)
        optimizer.lr = lr
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_multiplier"]
        optimizer.step()
    out |= {f"final.{name}": p.detach() for name, p in w.items()}
    history = {"loss": losses, "grad_norm": norms} | added
    return out | {name: torch.tensor(values, dtype=torch.float64) for name, values in history.items()}


def main(arguments):
    if len(arguments) != 3:
        raise SystemExit("usage: reference.py CASE.json IN.safetensors OUT.safetensors")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    case, tensors = json.loads(Path(arguments[0]).read_text()), load_file(arguments[1])
    save_file({name: t.contiguous() for name, t in train(case, tensors).items()}, arguments[2])


if __name__ == "__main__":
    main(sys.argv[1:])
