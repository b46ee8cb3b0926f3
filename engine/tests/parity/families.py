"""The families of `transformers`: a model of a case's kind, and our weights by its names."""

import transformers
from case import FAMILIES, NORMS, has_experts

# What `transformers` calls the norms.
THEIR_NORMS = {"ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "post_ln_1": "post_attention_layernorm",
               "post_ln_2": "post_feedforward_layernorm"}
THEIR_GEMMA_NORMS = THEIR_NORMS | {"ln_2": "pre_feedforward_layernorm"}


def family_experts(case):
    """The keys of experts in the configuration of the case's kind."""
    if "experts" not in case:
        return {}
    experts = case["experts"]
    if case["kind"] == "deepseekv3":
        return {"n_routed_experts": experts["count"], "num_experts_per_tok": experts["per_token"],
                "moe_intermediate_size": experts["ffn"], "n_shared_experts": experts["shared_ffn"] // experts["ffn"],
                "n_group": experts["groups"], "topk_group": experts["groups_per_token"],
                "norm_topk_prob": experts["normalise"],
                "routed_scaling_factor": experts["scale"], "first_k_dense_replace": experts["blocks"].index(True)}
    if experts["score"] != "softmax" or experts["scale"] != 1 or experts["shared_ffn"]:
        raise SystemExit("experts: no such family")
    keys = {"num_experts_per_tok": experts["per_token"], "output_router_logits": True}
    if case["kind"] in ("mixtral", "gptoss"):
        return keys | {"num_local_experts": experts["count"], "intermediate_size": experts["ffn"]}
    keys |= {"num_experts": experts["count"], "norm_topk_prob": experts["normalise"]}
    if case["kind"] == "olmoe":
        return keys | {"intermediate_size": experts["ffn"]}
    dense = [i for i, here in enumerate(experts["blocks"]) if not here]
    return keys | {"moe_intermediate_size": experts["ffn"], "mlp_only_layers": dense}


def family_model(case, dtype):
    """A model of `transformers` of the case's kind and sizes; its own weights are never used."""
    family = FAMILIES[case["kind"]]
    if case["kind"] == "deepseekv3":  # its router computes in f32, and its experts add nothing of another type
        experts = transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3MoE
        theirs = experts.moe
        experts.moe = lambda self, x, chosen, weights: theirs(self, x, chosen, weights.to(x.dtype))
    config = getattr(transformers, f"{family}TextConfig" if family == "Gemma3" else f"{family}Config")(
        num_hidden_layers=case["layers"], hidden_size=case["hidden"], num_attention_heads=case["heads"],
        vocab_size=case["vocab"],
        max_position_embeddings=case["seq"], rms_norm_eps=case["eps"], rope_theta=case["rope_base"],
        rope_scaling=case["rope_scaling"], tie_word_embeddings=case["tied"], attn_implementation="eager", use_cache=False,
        pad_token_id=None,  # a padding token would get no gradient: it is 1 in OLMo 2, 0 in Gemma
        **{"intermediate_size": case["ffn"], "head_dim": case["head_dim"], "num_key_value_heads": case["kv_heads"]}
        | family_experts(case) | case["config"],
    )
    return getattr(transformers, f"{family}ForCausalLM")(config).to(dtype)


def gated(w, ours, theirs):
    """A dense layer by the names of `transformers`."""
    gate, up = w[f"{ours}.c_fc.weight"].chunk(2)
    return {f"{theirs}.gate_proj.weight": gate, f"{theirs}.up_proj.weight": up,
            f"{theirs}.down_proj.weight": w[f"{ours}.c_proj.weight"]}


def family_experts_weights(case, w, h, layer):
    """A layer of experts by the names of `transformers`."""
    if case["kind"] == "gptoss":
        count, width, hidden = case["experts"]["count"], case["experts"]["ffn"], case["hidden"]
        ours, theirs = f"{h}.mlp", f"{layer}.mlp"
        up, down = (w[f"{ours}.experts.{name}.weight"] for name in ("c_fc", "c_proj"))
        return {
            f"{theirs}.router.weight": w[f"{ours}.router.weight"],
            f"{theirs}.router.bias": w[f"{ours}.router.logit_bias"],
            f"{theirs}.experts.gate_up_proj":
                up.view(count, 2, width, hidden).permute(0, 3, 2, 1).reshape(count, hidden, 2 * width),
            f"{theirs}.experts.gate_up_proj_bias":
                w[f"{ours}.experts.c_fc.bias"].view(count, 2, width).mT.reshape(count, 2 * width),
            f"{theirs}.experts.down_proj": down.view(count, hidden, width).mT,
            f"{theirs}.experts.down_proj_bias": w[f"{ours}.experts.c_proj.bias"].view(count, hidden),
        }
    ups, downs = (w[f"{h}.mlp.experts.{name}.weight"].chunk(case["experts"]["count"]) for name in ("c_fc", "c_proj"))
    part, names = f"{layer}.mlp", ("gate_proj", "up_proj", "down_proj")
    if case["kind"] == "mixtral":
        part, names = f"{layer}.block_sparse_moe", ("w1", "w3", "w2")
    named = {f"{part}.gate.weight": w[f"{h}.mlp.router.weight"]}
    if case["experts"]["shared_ffn"]:
        named |= gated(w, f"{h}.mlp.shared", f"{part}.shared_experts")
    for e, (up, down) in enumerate(zip(ups, downs, strict=True)):
        matrices = (*up.chunk(2), down)
        named |= {f"{part}.experts.{e}.{name}.weight": matrix for name, matrix in zip(names, matrices, strict=True)}
    return named


def family_weights(case, w):
    """Our weights by the names of `transformers`: packed rows taken apart, padding left out."""
    rows = [case["head_dim"] * heads for heads in (case["heads"], case["kv_heads"], case["kv_heads"])]
    named = {"model.embed_tokens.weight": w["wte.weight"][: case["vocab"]], "model.norm.weight": w["ln_f.weight"]}
    named["lm_head.weight"] = w["wte.weight" if case["tied"] else "lm_head.weight"][: case["vocab"]]
    for i in range(case["layers"]):
        h, layer = f"h.{i}", f"model.layers.{i}"
        if case["kind"] == "deepseekv3":
            c, theirs = case["config"], f"{layer}.self_attn"
            first = w[f"{h}.attn.c_attn.weight"]
            queries = c["q_lora_rank"] or case["head_dim"] * case["heads"]
            named |= {f"{theirs}.{'q_a_proj' if c['q_lora_rank'] else 'q_proj'}.weight": first[:queries],
                      f"{theirs}.kv_a_proj_with_mqa.weight": first[queries:],
                      f"{theirs}.kv_a_layernorm.weight": w[f"{h}.attn.kv_b_norm.weight"],
                      f"{theirs}.kv_b_proj.weight": w[f"{h}.attn.kv_b.weight"]}
            if c["q_lora_rank"]:
                named |= {f"{theirs}.q_a_layernorm.weight": w[f"{h}.attn.q_b_norm.weight"],
                          f"{theirs}.q_b_proj.weight": w[f"{h}.attn.q_b.weight"]}
        else:
            q, k, v = w[f"{h}.attn.c_attn.weight"].split(rows)
            named |= {f"{layer}.self_attn.{part}_proj.weight": matrix for part, matrix in zip("qkv", (q, k, v), strict=True)}
        named |= family_experts_weights(case, w, h, layer) if has_experts(case, i) else gated(w, f"{h}.mlp", f"{layer}.mlp")
        named |= {f"{layer}.self_attn.o_proj.weight": w[f"{h}.attn.c_proj.weight"]}
        before, after = NORMS.get(case["kind"], (("ln_1", "ln_2"), ()))
        theirs = THEIR_GEMMA_NORMS if case["kind"].startswith("gemma") else THEIR_NORMS
        named |= {f"{layer}.{theirs[norm]}.weight": w[f"{h}.{norm}.weight"] for norm in (*before, *after)}
        if case["kind"] == "gptoss":
            named |= {f"{layer}.self_attn.sinks": w[f"{h}.attn.sinks"],
                      f"{layer}.self_attn.o_proj.bias": w[f"{h}.attn.c_proj.bias"]}
        if case["kind"] in ("qwen2", "gptoss"):
            biases = w[f"{h}.attn.c_attn.bias"].split(rows)
            named |= {f"{layer}.self_attn.{part}_proj.bias": bias for part, bias in zip("qkv", biases, strict=True)}
        if case["kind"] in ("qwen3", "qwen3moe", "olmo2", "olmoe", "gemma3"):
            named |= {f"{layer}.self_attn.{part}_norm.weight": w[f"{h}.attn.{part}_norm.weight"] for part in "qk"}
    return named
