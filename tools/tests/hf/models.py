"""Small random models of `transformers` for the tests of conversions.

    python models.py make FOLDER     saves FOLDER/NAME for each model, with tokens.safetensors: tokens and targets
                                     i32 (2, seq), the model's logits of every position, f64
                                     (2, seq, vocab), and its mean loss, f64 (1)
    python models.py check FOLDER    loads each FOLDER/NAME-back and fails unless it is FOLDER/NAME, bit for bit
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

SEQ, VOCAB = 12, 97
GPT2 = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": SEQ, "vocab_size": VOCAB}
LLAMA = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
         "intermediate_size": 48, "vocab_size": VOCAB, "max_position_embeddings": SEQ, "rms_norm_eps": 1e-5}
SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 2.0, "beta_slow": 0.5}
# Heads together wider or narrower than the residual stream, and one key and value head.
WIDE, NARROW = LLAMA | {"num_key_value_heads": 1, "head_dim": 12}, LLAMA | {"head_dim": 6}
# Wide enough for blocks of MXFP4.
GPT_OSS = LLAMA | {"intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5,
                   "head_dim": 12, "rope_theta": 100.0, "rope_scaling": YARN | {"truncate": False}}
LATENT = LLAMA | {"num_key_value_heads": 4, "kv_lora_rank": 18, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8,
                  "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_shared_experts": 2,
                  "first_k_dense_replace": 1}
# Caps that bend, a window in some layers, and a width with a whole root, which no type rounds.
GEMMA = {"query_pre_attn_scalar": 7, "sliding_window": 5, "hidden_size": 36}
CAPS = {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 5.0}
# Name: class, configuration, type, largest file.
MODELS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(**GPT2), torch.float32, "5GB"),
    "gpt2-untied": (GPT2LMHeadModel, GPT2Config(**GPT2, n_inner=48, tie_word_embeddings=False), torch.float16, "5GB"),
    "llama": (LlamaForCausalLM, LlamaConfig(**LLAMA, rope_theta=500000.0), torch.float32, "5GB"),
    "llama-sharded": (
        LlamaForCausalLM,
        LlamaConfig(**LLAMA, rope_theta=100.0, rope_scaling=SCALING, tie_word_embeddings=True, attention_bias=True,
                    mlp_bias=True),
        torch.bfloat16, "10KB",
    ),
    "llama-wide": (LlamaForCausalLM, LlamaConfig(**WIDE, rope_theta=500000.0), torch.float32, "5GB"),
    "mistral": (MistralForCausalLM, MistralConfig(**WIDE, sliding_window=5), torch.float32, "5GB"),
    "mistral-full": (MistralForCausalLM, MistralConfig(**WIDE, sliding_window=None), torch.float32, "5GB"),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**LLAMA, rope_theta=1e6), torch.float32, "5GB"),
    "qwen2-tied": (
        Qwen2ForCausalLM,
        Qwen2Config(**NARROW, tie_word_embeddings=True, use_sliding_window=True, sliding_window=3,
                    max_window_layers=1),
        torch.float16, "5GB",
    ),
    "qwen2-yarn": (Qwen2ForCausalLM, Qwen2Config(**LLAMA, rope_theta=100.0, rope_scaling=YARN), torch.float32, "5GB"),
    "llama-linear": (LlamaForCausalLM, LlamaConfig(**LLAMA, rope_scaling={"rope_type": "linear", "factor": 8.0}),
                     torch.float32, "5GB"),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**WIDE, rope_theta=1e6), torch.float32, "5GB"),
    "qwen3-tied": (
        Qwen3ForCausalLM,
        Qwen3Config(**NARROW, rope_theta=100.0, rope_scaling=SCALING, tie_word_embeddings=True,
                    use_sliding_window=True, sliding_window=1,
                    layer_types=["sliding_attention", "full_attention"]),
        torch.bfloat16, "5GB",
    ),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config(**WIDE, rope_theta=500000.0), torch.float32, "5GB"),
    "olmo2-tied": (
        Olmo2ForCausalLM, Olmo2Config(**NARROW, rope_theta=500000.0, tie_word_embeddings=True), torch.bfloat16, "5GB",
    ),
    "mixtral": (
        MixtralForCausalLM, MixtralConfig(**WIDE, num_local_experts=4, num_experts_per_tok=2), torch.float32, "5GB",
    ),
    "mixtral-sharded": (
        MixtralForCausalLM,
        MixtralConfig(**NARROW, num_local_experts=5, num_experts_per_tok=3, rope_theta=100.0, sliding_window=5,
                      tie_word_embeddings=True),
        torch.bfloat16, "10KB",
    ),
    # One block of two dense, or by the list alone.
    "qwen3-moe": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(**WIDE | {"num_hidden_layers": 3}, moe_intermediate_size=20, num_experts=6, num_experts_per_tok=3,
                       norm_topk_prob=True, rope_theta=1e6, mlp_only_layers=[1]),
        torch.float32, "5GB",
    ),
    "qwen3-moe-step": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(**LLAMA, moe_intermediate_size=20, num_experts=4, num_experts_per_tok=4, decoder_sparse_step=2,
                       use_sliding_window=True, sliding_window=5),
        torch.bfloat16, "5GB",
    ),
    "olmoe": (
        OlmoeForCausalLM, OlmoeConfig(**LLAMA, num_experts=8, num_experts_per_tok=2), torch.float32, "5GB",
    ),
    "olmoe-tied": (
        OlmoeForCausalLM,
        OlmoeConfig(**LLAMA | {"num_key_value_heads": 4}, num_experts=4, num_experts_per_tok=3, norm_topk_prob=True,
                    tie_word_embeddings=True),
        torch.float16, "5GB",
    ),
    "deepseek-v2": (
        DeepseekV2ForCausalLM,
        DeepseekV2Config(**LATENT | {"n_routed_experts": 6}, q_lora_rank=None, topk_method="group_limited_greedy", n_group=3,
                         topk_group=2, routed_scaling_factor=1.5),
        torch.float32, "5GB",
    ),
    "deepseek-v3": (
        DeepseekV3ForCausalLM,
        DeepseekV3Config(**LATENT | {"n_routed_experts": 6}, q_lora_rank=14, n_group=2, topk_group=1, routed_scaling_factor=2.446, rope_theta=100.0,
                         rope_scaling=YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}),
        torch.float32, "5GB",
    ),
    "gpt-oss": (GptOssForCausalLM, GptOssConfig(**GPT_OSS), torch.float32, "5GB"),
    "gpt-oss-mxfp4": (GptOssForCausalLM, GptOssConfig(**GPT_OSS), torch.bfloat16, "5GB"),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(**WIDE | GEMMA | CAPS), torch.float32, "5GB"),
    "gemma2-untied": (
        Gemma2ForCausalLM,
        Gemma2Config(**NARROW | GEMMA, attn_logit_softcapping=None, final_logit_softcapping=None,
                     tie_word_embeddings=False),
        torch.bfloat16, "5GB",
    ),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(**WIDE | GEMMA, rope_theta=1000.0, rope_local_base_freq=100.0,
                         rope_scaling={"rope_type": "linear", "factor": 8.0},
                         layer_types=["sliding_attention", "full_attention"]),
        torch.float32, "5GB",
    ),
    "gemma3-capped": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(**NARROW | GEMMA, sliding_window_pattern=2, final_logit_softcapping=5.0), torch.float16, "5GB",
    ),
}


def load(kind, folder, name, dtype):
    """The model in a folder. Only the plain attention of `transformers` has Gemma 2's soft cap, and sinks."""
    attention = "eager" if name.startswith(("gemma", "gpt-oss")) else "sdpa"
    return kind.from_pretrained(folder, dtype=dtype, attn_implementation=attention, output_loading_info=True)


def logits(model, tokens):
    for module in model.modules():  # the router of DeepSeek-V3 computes in f32, and its experts add nothing of another type
        if isinstance(module, DeepseekV3MoE):
            theirs = module.moe
            module.moe = lambda x, chosen, weights, theirs=theirs: theirs(x, chosen, weights.to(x.dtype))
    with torch.no_grad():
        return model.double().eval()(input_ids=tokens.long()).logits.contiguous()


def mxfp4(model, generator):
    """Sets the matrices of experts to numbers of MXFP4, and returns their blocks and scales as the hub has them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    packed = {}
    for name, parameter in model.named_parameters():
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        experts, columns, rows = parameter.shape
        blocks = torch.randint(256, (experts, rows, columns // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(118, 126, (experts, rows, columns // 32), generator=generator, dtype=torch.uint8)
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        parameter.data.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16))
    return packed


def make(folder):
    generator = torch.Generator().manual_seed(1)
    for name, (kind, config, dtype, largest) in MODELS.items():
        model = kind(config)
        for parameter in model.parameters():  # biases and norms too, so that none can be mistaken for another
            centre = 1.0 if parameter.ndim == 1 and not name.startswith("gemma") else 0.0  # Gemma's norms add 1
            parameter.data.normal_(centre, 0.1, generator=generator)
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.1, generator=generator)
        packed = mxfp4(model, generator) if name.endswith("mxfp4") else {}
        model.to(dtype).save_pretrained(folder / name, max_shard_size=largest)
        if packed:
            whole = load_file(folder / name / "model.safetensors")
            kept = {key: tensor for key, tensor in whole.items() if f"{key}_blocks" not in packed}
            (folder / f"{name}-packed").mkdir()
            save_file(kept | packed, folder / f"{name}-packed" / "model.safetensors")
            config = json.loads((folder / name / "config.json").read_text())
            config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
            (folder / f"{name}-packed" / "config.json").write_text(json.dumps(config))
        # As loaded, not as cast: casting a model rounds its rotary frequencies too, loading does not.
        model, _ = load(kind, folder / name, name, dtype)
        tokens = torch.randint(VOCAB, (2, SEQ + 1), generator=generator, dtype=torch.int32)
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        theirs = logits(model, inputs)
        loss = torch.nn.functional.cross_entropy(theirs.view(-1, VOCAB), targets.long().view(-1)).view(1)
        save_file({"tokens": inputs, "targets": targets, "logits": theirs, "loss": loss},
                  folder / name / "tokens.safetensors")


def check(folder):
    for name, (kind, _, dtype, _) in MODELS.items():
        # By the class that our configuration names.
        back = folder / f"{name}-back"
        ours, info = load(AutoModelForCausalLM, back, name, dtype)
        if type(ours) is not kind:
            raise SystemExit(f"{name}: it came back as {type(ours).__name__}")
        problems = {key: keys for key, keys in info.items() if keys}
        if problems:
            raise SystemExit(f"{name}: {problems}")
        theirs, _ = load(kind, folder / name, name, dtype)
        for (key, a), b in zip(theirs.state_dict().items(), ours.state_dict().values(), strict=True):
            if not torch.equal(a, b):
                raise SystemExit(f"{name}: {key} differs")
        batch = load_file(folder / name / "tokens.safetensors")
        if not torch.equal(logits(ours, batch["tokens"]), batch["logits"]):
            raise SystemExit(f"{name}: the logits differ, so the configuration does")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"make": make, "check": check}[sys.argv[1]](Path(sys.argv[2]))
