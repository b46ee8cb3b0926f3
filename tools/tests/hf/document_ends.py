"""Losses of `transformers` on rows that hold several documents, for the tests of documents told apart.

    python document_ends.py check FOLDER    fails unless FOLDER/losses.json has the losses of FOLDER/exported on FOLDER/rows.json

`losses.json` has a list of [reset attention, reset positions, mask loss, loss]. `rows.json` has windows of tokens, in which 0
ends a document.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def documents(inputs):
    """The number of each token's document, and its position there. An end belongs to the document that it ends."""
    numbers, positions, number, position = [], [], 0, 0
    for token in inputs:
        numbers.append(number)
        positions.append(position)
        number, position = (number + 1, 0) if token == 0 else (number, position + 1)
    return torch.tensor(numbers), torch.tensor(positions)


def apart(model, inputs, targets):
    """The losses of each document of a row as a row of its own."""
    numbers, _ = documents(inputs.tolist())
    each = []
    for number in numbers.unique():
        logits = model(inputs[numbers == number][None]).logits[0]
        each.append(torch.nn.functional.cross_entropy(logits, targets[numbers == number], reduction="none"))
    return torch.cat(each)


def losses(model, inputs, targets, attention, positions):
    """The losses of a row under a mask and positions."""
    numbers, within = documents(inputs.tolist())
    seq = len(inputs)
    sees = torch.ones(seq, seq).tril().bool()
    if attention:
        sees &= numbers[:, None] == numbers[None, :]
    mask = torch.zeros(seq, seq).masked_fill(~sees, torch.finfo(torch.float32).min)
    ids = within if positions else torch.arange(seq)
    logits = model(inputs[None], attention_mask=mask[None, None], position_ids=ids[None]).logits[0]
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def check(folder):
    model = AutoModelForCausalLM.from_pretrained(folder / "exported", attn_implementation="eager").eval()
    rows = [torch.tensor(row) for row in json.loads((folder / "rows.json").read_text())]
    for attention, positions, masks, ours in json.loads((folder / "losses.json").read_text()):
        total, count = 0.0, 0
        for row in rows:
            inputs, targets = row[:-1], row[1:]
            with torch.no_grad():
                of_row = losses(model, inputs, targets, attention, positions)
                if attention and positions:
                    assert torch.allclose(of_row, apart(model, inputs, targets), atol=1e-4)
            kept = inputs != 0 if masks else torch.ones_like(inputs, dtype=bool)
            total, count = total + of_row[kept].sum().item(), count + kept.sum().item()
        what = f"attention {attention}, positions {positions}, masked {masks}: {ours}, transformers {total / count}"
        assert abs(ours / (total / count) - 1) < 1e-5, what


if __name__ == "__main__":
    {"check": check}[sys.argv[1]](Path(sys.argv[2]))
