"""Steps of LoRA in PyTorch: a model of transformers with random weights, adapters of PEFT, the base in bf16 or, with
bitsandbytes, in 8 or 4 bits.

    python pytorch_lora.py --config llama --layers 32 --hidden 4096 --ffn 14336 --heads 32 --kv-heads 8 --vocab 128256 \\
        --base nf4 --seq 4096 --micro-batch 2
    python pytorch_lora.py --config qwen3_moe --layers 48 --hidden 2048 --ffn 768 --heads 32 --kv-heads 4 --head-dim 128 \\
        --vocab 151936 --experts 128 --top-k 8 --seq 4096 --micro-batch 2

bitsandbytes has no experts that lie in one tensor, so these stay in bf16, and PEFT adapts them as parameters. Adapters are
bf16, attention is SDPA unless another is named, the optimizer is fused AdamW. `--rank 0` has no adapters: all weights, and
the optimizer's state, are bf16 and trained. Prints one line of JSON.
"""

import argparse
import json
import statistics
import time

import peft
import torch
import transformers
from torch import nn


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="llama", help="a model type of transformers")
    for name in ["layers", "hidden", "ffn", "heads", "kv-heads", "vocab", "seq"]:
        parser.add_argument(f"--{name}", type=int, required=True)
    for name, value in [("head-dim", 0), ("experts", 0), ("top-k", 0), ("micro-batch", 1), ("rank", 16), ("steps", 6)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--base", choices=["bf16", "nf4", "int8"], default="bf16")
    parser.add_argument("--attention", default="sdpa", help="of transformers; gpt_oss, with its sinks, has no sdpa")
    parser.add_argument("--checkpointing", action="store_true", help="recompute blocks in backward")
    parser.add_argument("--mode", choices=["eager", "compile"], default="eager")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def config(case):
    sizes = dict(
        num_hidden_layers=case.layers,
        hidden_size=case.hidden,
        intermediate_size=case.ffn,
        num_attention_heads=case.heads,
        num_key_value_heads=case.kv_heads,
        vocab_size=case.vocab,
        max_position_embeddings=case.seq,
        head_dim=case.head_dim or case.hidden // case.heads,
        use_cache=False,
    )
    if case.experts:
        sizes |= dict(moe_intermediate_size=case.ffn, num_experts=case.experts, num_experts_per_tok=case.top_k)
        sizes |= dict(norm_topk_prob=True, output_router_logits=False)
        if case.config == "gpt_oss":
            sizes["num_local_experts"] = sizes.pop("num_experts")
    if case.config == "deepseek_v3":
        # Moonlight's: latent attention with whole queries, experts in one group, two shared ones, a dense first block.
        sizes |= dict(q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
        sizes |= dict(n_routed_experts=sizes.pop("num_experts"), n_shared_experts=2, n_group=1, topk_group=1)
        sizes |= dict(first_k_dense_replace=1, intermediate_size=11264, routed_scaling_factor=2.446)
        del sizes["head_dim"]
    made = transformers.AutoConfig.for_model(case.config, **sizes)
    if case.experts:
        made._experts_implementation = "grouped_mm"
    return made


def coded(linear, base):
    """The layer of bitsandbytes with the codes of a linear layer's weight."""
    import bitsandbytes as bnb

    sizes = (linear.in_features, linear.out_features)
    weight = linear.weight.data
    if base == "nf4":
        layer = bnb.nn.Linear4bit(*sizes, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4", device="meta")
        layer.weight = bnb.nn.Params4bit(weight.cpu(), requires_grad=False, quant_type="nf4").to(weight.device)
    else:
        layer = bnb.nn.Linear8bitLt(*sizes, bias=False, has_fp16_weights=False, device="meta")
        layer.weight = bnb.nn.Int8Params(weight.cpu(), requires_grad=False, has_fp16_weights=False).to(weight.device)
    return layer


def checkpointed(model, case):
    if case.checkpointing:
        model.enable_input_require_grads()
        getattr(model, "base_model", model).gradient_checkpointing_enable({"use_reentrant": False})
    return model


def model_of(case):
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(case.device):
        model = transformers.AutoModelForCausalLM.from_config(config(case), attn_implementation=case.attention)
    if case.base != "bf16":
        for name, module in list(model.model.layers.named_modules()):
            if isinstance(module, nn.Linear) and not name.endswith("gate"):
                parent = model.model.layers.get_submodule(name.rpartition(".")[0])
                setattr(parent, name.rpartition(".")[2], coded(module, case.base))
        setattr(model, "is_loaded_in_4bit" if case.base == "nf4" else "is_loaded_in_8bit", True)
    if case.rank == 0:
        return checkpointed(model, case).train()
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    of_experts = {}
    if case.experts:
        of_experts = dict(target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    if case.config == "deepseek_v3":
        targets += ["kv_a_proj_with_mqa", "kv_b_proj"]
    # The shared experts and the dense blocks of deepseek_v3 are linear layers.
    if case.config == "deepseek_v3" or not case.experts:
        targets += ["gate_proj", "up_proj", "down_proj"]
    adapters = peft.LoraConfig(r=case.rank, lora_alpha=2 * case.rank, target_modules=targets, **of_experts)
    model = peft.get_peft_model(model, adapters, autocast_adapter_dtype=False)
    return checkpointed(model, case).train()


def main():
    case = arguments()
    torch.manual_seed(1)
    is_gpu = case.device == "cuda"
    started = time.time()
    model = model_of(case)
    ready_s = time.time() - started
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=is_gpu)
    forward = torch.compile(model) if case.mode == "compile" else model

    def step():
        tokens = torch.randint(case.vocab, (case.micro_batch, case.seq), device=case.device)
        loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    times = []
    for _ in range(case.steps):
        started = time.time()
        loss = step().item()
        times.append((time.time() - started) * 1000)
    median = statistics.median(times[2:] or times)
    print(json.dumps({
        "step_ms": round(median, 2),
        "tokens_per_s": round(case.micro_batch * case.seq / median * 1000, 1),
        "memory_bytes": torch.cuda.max_memory_allocated() if is_gpu else None,
        "first_step_s": round(times[0] / 1000, 1),
        "ready_s": round(ready_s, 1),
        "loss": loss,
        "trained": sum(parameter.numel() for parameter in trained),
        "versions": [torch.__version__, transformers.__version__, peft.__version__],
    }))


if __name__ == "__main__":
    main()
