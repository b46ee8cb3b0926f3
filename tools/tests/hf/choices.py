"""Multiple choice on a small random model of `transformers`, for the test of `trainer eval --multiple-choice`.

    python choices.py make FOLDER     saves FOLDER/model, a model of bytes with its tokenizer; FOLDER/questions.jsonl,
                                      questions in HellaSwag's form; and FOLDER/expected.json: for each question the sums
                                      of its endings' log-likelihoods, the label, and what is chosen by the sum and by the sum over
                                      characters; and acc and acc_norm with their standard errors

Text and choice are those of EleutherAI's lm-evaluation-harness, written down here again: the task hellaswag, the division of
tokens between context and ending, contexts cut from the left, and the standard error of a mean.
"""

import json
import random
import re
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

SEQ = 48
WORDS = "a man is seen on the roof and he begins to pull up pieces of wood while others watch café".split()


def trained_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([" ".join(WORDS)] * 20, trainer)
    return tokenizer


def questions():
    rng = random.Random(3)

    def text(least, most):
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))

    def question(index):
        wiki = index % 3 == 0
        ctx_a = f"[header] {text(2, 4)} [title] {text(3, 40)}." if wiki else f"{text(4, 12)}."
        endings = [f"{text(2, 6)} [substeps] {text(1, 3)}." if wiki and n % 2 else f"{text(2, 9)}." for n in range(4)]
        label = rng.randrange(4)
        return {"ind": index, "activity_label": text(1, 2), "ctx_a": ctx_a, "ctx_b": text(1, 2) if index % 4 else "",
                "ctx": "not read", "endings": endings, "source_id": "x", "label": str(label) if index % 2 else label}

    return [question(index) for index in range(25)]


def preprocess(text):
    text = text.strip()
    text = text.replace(" [title]", ". ")
    text = re.sub("\\[.*?\\]", "", text)
    text = text.replace("  ", " ")
    return text


def log_likelihood(model, tokenizer, context, ending):
    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    spaces = len(context) - len(context.rstrip())
    if spaces > 0:
        context, ending = context[:-spaces], context[-spaces:] + ending
    whole, begin = encode(context + ending), len(encode(context))
    ending = whole[begin:]
    inputs = torch.tensor(whole[-(SEQ + 1):][:-1])
    with torch.no_grad():
        of_tokens = model(input_ids=inputs[None]).logits[0].log_softmax(-1)[-len(ending):]
    return of_tokens.gather(1, torch.tensor(ending)[:, None]).sum().item(), len(whole) > SEQ + 1


def first_largest(values):
    return values.index(max(values))


def make(folder):
    tokenizer = trained_tokenizer()
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=48,
                         vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=SEQ, rms_norm_eps=1e-5)
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2, generator=generator)
    model.save_pretrained(folder / "model")
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    model = model.double().eval()
    docs = questions()
    (folder / "questions.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    answers, cut = [], 0
    for doc in docs:
        query = preprocess(doc["activity_label"] + ": " + doc["ctx_a"] + " " + doc["ctx_b"].capitalize())
        choices = [preprocess(ending) for ending in doc["endings"]]
        found = [log_likelihood(model, tokenizer, query, " " + choice) for choice in choices]
        sums = [each for each, _ in found]
        cut += sum(is_cut for _, is_cut in found)
        answers.append({"label": int(doc["label"]), "log_likelihoods": sums, "chosen": first_largest(sums),
                        "chosen_norm": first_largest([s / len(choice) for s, choice in zip(sums, choices, strict=True)])})
    if cut == 0:
        raise SystemExit("no context is cut, so the test would not see it")
    expected = {"answers": answers, "cut": cut}
    for name, chosen in [("acc", "chosen"), ("acc_norm", "chosen_norm")]:
        right = torch.tensor([float(answer[chosen] == answer["label"]) for answer in answers], dtype=torch.float64)
        expected[name], expected[f"{name}_stderr"] = right.mean().item(), right.std().item() / len(right) ** 0.5
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"make": make}[sys.argv[1]](Path(sys.argv[2]))
