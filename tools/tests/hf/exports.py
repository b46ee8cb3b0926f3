"""Small models of `transformers` with tokenizers, for the tests of what an export has beside its weights.

    python exports.py make FOLDER     saves FOLDER/NAME for each model, and FOLDER/chats.jsonl
    python exports.py check FOLDER    fails unless FOLDER/NAME-back and FOLDER/NAME-trained have the files of FOLDER/NAME, its
                                      tokens of a text, and NAME-trained ends its answer to "sky"
    python exports.py generate FOLDER fails unless each model in FOLDER/NAME-exported goes on from what its own tokenizer
                                      makes of a text as it goes on from the tokens alone
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "head_dim": 16,
         "intermediate_size": 96, "vocab_size": 264, "max_position_embeddings": 256}
CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
LLAMA = ("{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
         "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}")
GEMMA = ("{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
         "{{ m.content }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}")
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Name: class, configuration, special tokens, the one before each text, those that end one, chat template.
MODELS = {
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, tie_word_embeddings=True, bos_token_id=0, eos_token_id=2), QWEN, None,
              [2, 0], CHATML),
    "qwen3-base": (Qwen3ForCausalLM, Qwen3Config(**SIZES, bos_token_id=0, eos_token_id=0), QWEN, None, 0, None),
    # Its table has rows behind its tokens.
    "plain": (LlamaForCausalLM, LlamaConfig(**SIZES, bos_token_id=0, eos_token_id=0), QWEN[:1], None, 0, None),
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, rope_theta=500000.0, bos_token_id=1, eos_token_id=[0, 2]),
              ["<|end_of_text|>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"], 1, [0, 2],
              LLAMA),
    "gemma": (Gemma3ForCausalLM, Gemma3TextConfig(**SIZES, sliding_window=32, query_pre_attn_scalar=16, pad_token_id=0,
                                                  bos_token_id=2, eos_token_id=1),
              ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"], 2, [1, 4], GEMMA),
}


def tokenizer(special, first, template):
    """One token for each byte, and the special ones; with that of number `first` before each text."""
    vocab = {text: number for number, text in enumerate(special + sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(special)
    words = {"eos_token": special[0], "pad_token": special[0]}
    if first is not None:
        before = special[first]
        made.post_processor = processors.TemplateProcessing(single=f"{before} $A", special_tokens=[(before, first)])
        words["bos_token"] = before
    whole = PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=256, **words)
    whole.chat_template = template
    return whole


def make(folder):
    torch.manual_seed(1)
    for name, (kind, config, special, first, ends, template) in MODELS.items():
        model = kind(config)
        model.generation_config = GenerationConfig(bos_token_id=config.bos_token_id, eos_token_id=ends, do_sample=True,
                                                   temperature=0.6, top_p=0.9)
        model.save_pretrained(folder / name)
        tokenizer(special, first, template).save_pretrained(folder / name)
    messages = [{"role": "user", "content": "sky"}, {"role": "assistant", "content": "blue"}]
    (folder / "chats.jsonl").write_text((json.dumps({"messages": messages}) + "\n") * 8)


def same_files(source, other, but=()):
    """Fails unless all files of `source` but the weights are in `other`, equal but for these keys of JSON."""
    for path in source.iterdir():
        if path.suffix == ".safetensors" or (path.name, None) in but:
            continue
        if path.name in ("config.json", "generation_config.json"):
            ours, theirs = ({key: value for key, value in json.loads((folder / path.name).read_text()).items()
                             if (path.name, key) not in but} for folder in (other, source))
        else:
            ours, theirs = (other / path.name).read_bytes(), path.read_bytes()
        if ours != theirs:
            raise SystemExit(f"{other.name}: {path.name} is {ours}, and was {theirs}")


def check(folder):
    for name, (*_, ends, template) in MODELS.items():
        source, ends = folder / name, [ends] if isinstance(ends, int) else ends
        same_files(source, folder / f"{name}-back")
        # A base model did not know that the end of a turn is one.
        same_files(source, folder / f"{name}-trained",
                   but=[] if template else [("generation_config.json", "eos_token_id"),
                                            *[(f"tokenizer{more}.json", None) for more in ("", "_config") if name == "plain"]])
        for made in ("back", "trained"):
            ours, theirs = (AutoTokenizer.from_pretrained(path) for path in (folder / f"{name}-{made}", source))
            if ours("sky").input_ids != theirs("sky").input_ids:
                raise SystemExit(f"{name}-{made}: tokens {ours('sky').input_ids}, not {theirs('sky').input_ids}")
        trained = folder / f"{name}-trained"
        words, model = AutoTokenizer.from_pretrained(trained), AutoModelForCausalLM.from_pretrained(trained)
        asked = words.apply_chat_template([{"role": "user", "content": "sky"}], add_generation_prompt=True,
                                          return_tensors="pt", return_dict=True)
        prompt = asked["input_ids"]
        written = model.generate(prompt, attention_mask=asked["attention_mask"], max_new_tokens=12, do_sample=False)
        answer = written[0, prompt.shape[1]:].tolist()
        end = words.convert_tokens_to_ids({"llama": "<|eot_id|>", "gemma": "<end_of_turn>"}.get(name, "<|im_end|>"))
        if name == "plain" and (end, len(words)) != (258, 259):
            raise SystemExit(f"{name}: <|im_end|> is {end} of {len(words)} tokens")
        if words.decode(answer[:-1]) != "blue" or answer[-1] != end:
            raise SystemExit(f"{name}: the answer is {words.decode(answer)!r}, tokens {answer}; it ends with {end}")
        if model.generation_config.eos_token_id not in ([*ends, end], ends):
            raise SystemExit(f"{name}: eos_token_id is {model.generation_config.eos_token_id}")


def generate(folder):
    for exported in sorted(folder.glob("*-exported")):
        words, model = AutoTokenizer.from_pretrained(exported), AutoModelForCausalLM.from_pretrained(exported)
        made = words("no warranty, to the extent", return_tensors="pt")
        options = {"max_new_tokens": 8, "do_sample": False}
        idiom = model.generate(**made, **options)
        alone = model.generate(made["input_ids"], attention_mask=torch.ones_like(made["input_ids"]), **options)
        if idiom.tolist() != alone.tolist():
            raise SystemExit(f"{exported.name}: {idiom.tolist()}, and from tokens alone {alone.tolist()}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"make": make, "check": check, "generate": generate}[sys.argv[1]](Path(sys.argv[2]))
