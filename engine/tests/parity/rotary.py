"""The rotary tables of `transformers` that the trainer's are compared with.

    python rotary.py CASE.json IN.safetensors OUT.safetensors

CASE.json: positions, and models [{head_dim, base, context, scaling}]: `scaling` as in a configuration of `transformers`.
OUT: {number of the model}.cos and .sin, f32 (positions, head_dim / 2). `transformers` rounds an angle to f32.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


def table(model, positions):
    config = LlamaConfig(
        hidden_size=2 * model["head_dim"], num_attention_heads=2, head_dim=model["head_dim"],
        max_position_embeddings=model["context"], rope_theta=model["base"], rope_scaling=model["scaling"])
    both = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.tensor([positions]))
    return [values[0, :, :model["head_dim"] // 2].contiguous() for values in both]


def main(case, _, out):
    case = json.loads(Path(case).read_text())
    arrays = {}
    for number, model in enumerate(case["models"]):
        arrays[f"{number}.cos"], arrays[f"{number}.sin"] = table(model, case["positions"])
    save_file(arrays, out)


main(*sys.argv[1:])
