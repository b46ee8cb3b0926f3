"""The numbers that TRL has for the pairs and the labelled answers of `tools/tests/app/tuning/dpo.rs` and `kto.rs`, for
`pairs_trl.json` beside this file.

    pip install trl==1.16.0 torch transformers datasets
    python tools/tests/hf/pairs_trl.py FOLDER tools/tests/hf/pairs_trl.json

FOLDER has the model and the data: the test `pairs_have_the_losses_rewards_and_gradients_of_trl` writes them, and leaves them there
with DPO_FOLDER=FOLDER in its environment. With torch 2.11, transformers 5.24 and TRL 1.16.
"""

import json
import sys
import tempfile

import torch
from datasets import load_dataset
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

REWARDS = ["rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected"]


class Recorded:
    """Keeps what each step tells, before anything is rounded."""

    def compute_loss(self, *args, **kwargs):
        result = super().compute_loss(*args, **kwargs)
        loss = result[0] if isinstance(result, tuple) else result
        step = {"loss": loss.item()}
        step.update({name: self._metrics["train"][name][-1] for name in self.names})
        self.steps.append(step)
        return result

    def log(self, logs, *args, **kwargs):
        if "grad_norm" in logs:
            self.steps[-1]["grad_norm"] = float(logs["grad_norm"])
        super().log(logs, *args, **kwargs)


class RecordedPairs(Recorded, DPOTrainer):
    names = [*REWARDS, "rewards/accuracies"]


class RecordedLabels(Recorded, KTOTrainer):
    names = [*REWARDS, "kl"]


def steps(folder, trainer_class, config_class, data, batch, **settings):
    """Three steps on all of the data."""
    torch.manual_seed(1)
    load = lambda: LlamaForCausalLM.from_pretrained(f"{folder}/base", dtype=torch.float32, attn_implementation="eager")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/base/tokenizer.json", eos_token="<|endoftext|>")
    tokenizer.pad_token = tokenizer.eos_token
    config = config_class(
        output_dir=tempfile.mkdtemp(), max_length=64, per_device_train_batch_size=batch, max_steps=3, learning_rate=1e-2,
        lr_scheduler_type="constant", weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8,
        max_grad_norm=1e9, logging_steps=1, report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
        save_strategy="no", **settings,
    )
    data = load_dataset("json", data_files=f"{folder}/{data}", split="train")
    trainer = trainer_class(load(), ref_model=load(), args=config, train_dataset=data, processing_class=tokenizer)
    trainer.steps = []
    trainer.train()
    return trainer.steps


if __name__ == "__main__":
    folder = sys.argv[1]
    pairs = lambda loss_type, beta: steps(
        folder, RecordedPairs, DPOConfig, "pairs.jsonl", 4, loss_type=loss_type, beta=beta
    )
    numbers = {"sigmoid": pairs("sigmoid", 0.5), "ipo": pairs("ipo", 0.25)}
    weights = {"desirable_weight": 1.0, "undesirable_weight": 1.5}
    numbers["kto"] = steps(folder, RecordedLabels, KTOConfig, "labelled.jsonl", 5, beta=0.5, **weights)
    with open(sys.argv[2], "w") as file:
        file.write(json.dumps(numbers, indent=1) + "\n")
