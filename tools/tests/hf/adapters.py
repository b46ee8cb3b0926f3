"""Adapters of ours, loaded by PEFT on the base model that `transformers` loads.

    python adapters.py logits FOLDER    FOLDER has `base`, a model; `adapters`, what `trainer convert --to peft` wrote;
                                        `merged`, what `--to hf` wrote; and `tokens.safetensors`, tokens i32 (1, seq).
                                        Writes `logits.safetensors`, of all f32 (1, seq, vocab): base, adapters, merged.
"""

import sys
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

# Its matrices are (in, out). Version 5 says so itself: without it PEFT takes the one for the other.
GptOssExperts.is_transposed = True


def logits(folder):
    tokens = load_file(folder / "tokens.safetensors")["tokens"].long()

    def of(model):
        with torch.no_grad():
            return model.eval()(input_ids=tokens).logits.contiguous()

    def load(name):
        return AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32)

    adapted = PeftModel.from_pretrained(load("base"), str(folder / "adapters"))
    saved = load_file(folder / "adapters" / "adapter_model.safetensors")
    loaded = [name for name, _ in adapted.named_parameters() if ".lora_" in name]
    if len(loaded) != len(saved):
        raise SystemExit(f"PEFT has {len(loaded)} tensors of adapters, the file {len(saved)}")
    save_file({"base": of(load("base")), "adapters": of(adapted), "merged": of(load("merged"))},
              folder / "logits.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"logits": logits}[sys.argv[1]](Path(sys.argv[2]))
