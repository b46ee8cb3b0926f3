"""A case of `reference.py`: its keys, and the weights that it calls for."""

from itertools import pairwise

import torch

RUN_KEYS = {"kind", "steps", "microbatches", "optimizer"}
SIZES = {"layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "seq", "tied", "eps", "rope_base",
         "rope_scaling", "config"}
# Kind: the name of its classes in `transformers`.
FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "olmo2": "Olmo2",
            "gemma2": "Gemma2", "gemma3": "Gemma3", "mixtral": "Mixtral", "qwen3moe": "Qwen3Moe",
            "olmoe": "Olmoe", "gptoss": "GptOss", "deepseekv3": "DeepseekV3"}
EXPERT_KEYS = {"count", "per_token", "ffn", "shared_ffn", "score", "normalise", "scale", "blocks", "balance",
               "balance_over", "z_loss", "capacity", "keeps", "groups", "groups_per_token"}
# Kind: the norms of its blocks before attention and feed-forward, and after them, where it is not the first two alone.
SANDWICH = (("ln_1", "ln_2"), ("post_ln_1", "post_ln_2"))
NORMS = {"olmo2": ((), ("post_ln_1", "post_ln_2")), "gemma2": SANDWICH, "gemma3": SANDWICH}
CASE_KEYS = {
    "gpt": RUN_KEYS | SIZES | {"z_loss", "norm", "activation", "position", "bias"},
    "mlp": RUN_KEYS | {"layer_sizes"},
} | {kind: RUN_KEYS | SIZES for kind in FAMILIES}
OPTIMIZER_KEYS = {
    "adamw": {"kind", "lr", "weight_decay", "clip", "beta1", "beta2", "eps"},
    "muon": {"kind", "lr", "weight_decay", "clip", "beta1", "beta2", "eps", "momentum", "ns_steps"},
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
        required = {key: value for key, value in table.items() if key not in ("lora", "own", "experts", "further")}
        require_keys(where, required, keys_of_kind[kind])
    if "experts" in case:
        require_keys("experts", case["experts"], EXPERT_KEYS)
    if len(case["optimizer"]["lr"]) != case["steps"]:
        raise SystemExit(f"optimizer: lr has {len(case['optimizer']['lr'])} values for {case['steps']} steps")


def weight_shapes(case):
    """Every weight's name and shape, `vocab` not yet padded. Matrices are (out, in), as nn.Linear keeps them."""
    shapes = {}
    if case["kind"] == "mlp":
        for i, (n_in, n_out) in enumerate(pairwise(case["layer_sizes"])):
            shapes |= {f"layers.{i}.weight": (n_out, n_in), f"layers.{i}.bias": (n_out,)}
        return shapes
    hidden, ffn, bias, head_dim = case["hidden"], case["ffn"], case.get("bias", case["kind"] == "gptoss"), case["head_dim"]
    qkv = head_dim * (case["heads"] + 2 * case["kv_heads"])
    up = 2 * ffn if case.get("activation", "swiglu") == "swiglu" else ffn

    def linear(name, n_out, n_in):
        return {f"{name}.weight": (n_out, n_in)} | ({f"{name}.bias": (n_out,)} if bias else {})

    def norm(name):
        has_bias = bias and case.get("norm") == "layernorm"
        return {f"{name}.weight": (hidden,)} | ({f"{name}.bias": (hidden,)} if has_bias else {})

    shapes |= {"wte.weight": (case["vocab"], hidden)}
    if case.get("position") == "learned":
        shapes |= {"wpe.weight": (case["seq"], hidden)}
    for i in range(case["layers"] + depths(case)):
        h = f"h.{i}"
        if i >= case["layers"]:
            shapes |= {f"{h}.mtp.eh_proj.weight": (hidden, 2 * hidden)}
            for name in ("enorm", "hnorm", "norm"):
                shapes |= norm(f"{h}.mtp.{name}")
        before, after = NORMS.get(case["kind"], (("ln_1", "ln_2"), ()))
        for name in (*before, *after):
            shapes |= norm(f"{h}.{name}")
        if case["kind"] == "deepseekv3":
            c = case["config"]
            query, of_kv = head_dim * case["heads"], c["qk_nope_head_dim"] + c["v_head_dim"]
            first = (c["q_lora_rank"] or query) + c["kv_lora_rank"] + c["qk_rope_head_dim"]
            shapes |= {f"{h}.attn.c_attn.weight": (first, hidden), f"{h}.attn.kv_b_norm.weight": (c["kv_lora_rank"],),
                       f"{h}.attn.kv_b.weight": (case["heads"] * of_kv, c["kv_lora_rank"])}
            if c["q_lora_rank"]:
                shapes |= {f"{h}.attn.q_b_norm.weight": (c["q_lora_rank"],),
                           f"{h}.attn.q_b.weight": (query, c["q_lora_rank"])}
        else:
            shapes |= linear(f"{h}.attn.c_attn", qkv, hidden)
        if case["kind"] == "qwen2":
            shapes |= {f"{h}.attn.c_attn.bias": (qkv,)}
        if case["kind"] in ("qwen3", "qwen3moe", "gemma3"):
            shapes |= {f"{h}.attn.{norm}.weight": (head_dim,) for norm in ("q_norm", "k_norm")}
        if case["kind"] in ("olmo2", "olmoe"):
            shapes |= {f"{h}.attn.q_norm.weight": (head_dim * case["heads"],),
                       f"{h}.attn.k_norm.weight": (head_dim * case["kv_heads"],)}
        shapes |= linear(f"{h}.attn.c_proj", hidden, case["config"].get("v_head_dim", head_dim) * case["heads"])
        if case["kind"] == "gptoss":
            shapes |= {f"{h}.attn.sinks": (case["heads"],)}
        if not has_experts(case, i):
            shapes |= linear(f"{h}.mlp.c_fc", up, hidden) | linear(f"{h}.mlp.c_proj", hidden, ffn)
            continue
        count, width, shared = (case["experts"][key] for key in ("count", "ffn", "shared_ffn"))
        shapes |= {f"{h}.mlp.router.weight": (count, hidden), f"{h}.mlp.experts.c_fc.weight": (count * 2 * width, hidden),
                   f"{h}.mlp.experts.c_proj.weight": (count * hidden, width)}
        if bias:
            shapes |= {f"{h}.mlp.router.logit_bias": (count,), f"{h}.mlp.experts.c_fc.bias": (count * 2 * width,),
                       f"{h}.mlp.experts.c_proj.bias": (count * hidden,)}
        if shared:
            shapes |= {f"{h}.mlp.shared.c_fc.weight": (2 * shared, hidden),
                       f"{h}.mlp.shared.c_proj.weight": (hidden, shared)}
    shapes |= norm("ln_f")
    if not case["tied"]:
        shapes |= {"lm_head.weight": (case["vocab"], hidden)}
    for name, rows in adapters(case):
        rank, (_, n_in) = case["lora"]["rank"], shapes[f"{name}.weight"]
        shapes |= {f"{name}.lora_A": (rank * len(rows), n_in)}
        shapes |= {f"{name}.lora_B": (sum(end - start for start, end, *_ in rows), rank)}
    return shapes


def depths(case):
    return case["further"]["depths"] if "further" in case else 0


def has_experts(case, block):
    return "experts" in case and case["experts"]["blocks"][block]


def adapters(case):
    """The layers with adapters. Of each adapter the rows [start, end) of the weight that it covers, and its first rows of A
    and of B."""
    return case["lora"]["layers"].items() if "lora" in case else ()


def adapted(case, w):
    """The weights of the model whose adapters are merged: W + scale B A, by autograd's leave."""
    merged = {name: p for name, p in w.items() if ".lora_" not in name}
    for name, rows in adapters(case):
        parts, done, rank = [], 0, case["lora"]["rank"]
        weight, a, b = merged[f"{name}.weight"], w[f"{name}.lora_A"], w[f"{name}.lora_B"]
        for start, end, of_a, of_b in rows:
            product = b[of_b:of_b + end - start] @ a[of_a:of_a + rank]
            parts += [weight[done:start], weight[start:end] + case["lora"]["scale"] * product]
            done = end
        merged[f"{name}.weight"] = torch.cat([*parts, weight[done:]])
    return merged


def take_weights(case, tensors, dtype):
    """The weights of `tensors` as parameters of `dtype`; fails on a name or shape that the case does not call for."""
    shapes = weight_shapes(case)
    require_keys("weights", {n: t for n, t in tensors.items() if not n.startswith("batch.")}, shapes.keys())
    for name, shape in shapes.items():
        found, may_pad = tuple(tensors[name].shape), name in ("wte.weight", "lm_head.weight")
        if found != shape and not (may_pad and found[1:] == shape[1:] and found[0] > shape[0]):
            raise SystemExit(f"weights: {name} has shape {found}, the case says {shape}")
    trained = [name for name in shapes if "lora" not in case or ".lora_" in name]
    return {name: tensors[name].to(dtype, copy=True).requires_grad_(name in trained) for name in shapes}
