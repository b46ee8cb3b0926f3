"""A training run of the GPT of pytorch_gpt.py in PyTorch, on the batches that `trainer batches` wrote.

    python pytorch_real_run.py --train train.bin --validation validation.bin --steps 5400 --output metrics.jsonl

What it does is what the trainer does with the same flags: the same samples in the same order, GPT-2's initial weights
with smaller residual projections, linear warm-up and a cosine to --min-lr at the last step, AdamW with decay on matrices
alone, clipping at 1, and an evaluation on the same validation batches after every --eval-interval steps and the last
(0 for none).
Weights are f32, layers run in bf16 autocast under torch.compile, AdamW is fused. It appends one JSON object a step to
--output, flushed at once: step, loss, grad_norm, lr, step_ms, seconds since the process began, and validation_loss where
there was an evaluation.
"""

import argparse
import json
import math
import time

BEGAN = time.perf_counter()

import numpy as np
import torch
from torch import nn
from torch.nn.attention import sdpa_kernel

from pytorch_gpt import BACKENDS, Gpt


def start_weights(model, layers):
    """As the trainer's model/gpt.rs: std 0.02, for what writes to the residual stream 0.02 / sqrt(2 layers); biases 0."""
    for name, weight in model.named_parameters():
        if weight.ndim >= 2:
            residual = name.endswith(("projection.weight", "down.weight"))
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(weight)


def learning_rate(step, run):
    """As the trainer's schedule.rs: warm-up step i has lr (i + 1) / (warmup + 1), the last step has min_lr."""
    if step < run.warmup:
        return run.lr * (step + 1) / (run.warmup + 1)
    span = run.steps - 1 - run.warmup
    if step == run.warmup or span <= 0:
        return run.lr
    return run.min_lr + 0.5 * (1 + math.cos(math.pi * (step - run.warmup) / span)) * (run.lr - run.min_lr)


class Batches:
    """The batches of a file, (accumulate, micro_batch, seq) inputs and targets each, by way of pinned memory."""

    def __init__(self, path, run, device):
        self.samples = np.memmap(path, np.uint16 if run.vocab <= 1 << 16 else np.uint32, "r").reshape(-1, run.seq + 1)
        self.shape = (run.accumulate, run.micro_batch, run.seq + 1)
        self.size = run.accumulate * run.micro_batch
        self.device = device
        # The host is at most one step ahead: a copy begun two steps ago has arrived.
        pinned = device.type == "cuda"
        self.buffers = [torch.empty(self.shape, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]

    def __len__(self):
        return len(self.samples) // self.size

    def load(self, number):
        buffer = self.buffers[number % 2]
        buffer.numpy()[:] = self.samples[number * self.size : (number + 1) * self.size].reshape(self.shape)
        tokens = buffer.to(self.device, non_blocking=True)
        return tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()


class Trainer:
    def __init__(self, run, device):
        self.run, self.device = run, device
        torch.manual_seed(run.seed)
        torch.set_float32_matmul_precision("high")
        model = Gpt(run)
        start_weights(model, run.layers)
        model.to(device)
        self.weights = list(model.parameters())
        groups = [
            {"params": [p for p in self.weights if p.ndim >= 2], "weight_decay": 0.1},
            {"params": [p for p in self.weights if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=run.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
        self.model = torch.compile(model) if run.compile else model
        # (loss, gradient norm) of a step, read one step later.
        pinned = device.type == "cuda"
        self.results = [torch.empty(2, pin_memory=pinned) for _ in range(2)]

    def loss(self, inputs, targets):
        with torch.autocast(self.device.type, torch.bfloat16), sdpa_kernel(BACKENDS, set_priority=True):
            return self.model(inputs, targets)

    def step(self, number, inputs, targets):
        """Submits a step; what it returns waits for it and gives its loss and gradient norm."""
        rate = learning_rate(number, self.run)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for microbatch in range(self.run.accumulate):
            loss = self.loss(inputs[microbatch], targets[microbatch]) / self.run.accumulate
            loss.backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.weights, 1.0, foreach=True)
        self.optimizer.step()
        result = self.results[number % 2]
        result.copy_(torch.stack([total, norm]), non_blocking=True)
        done = None
        if self.device.type == "cuda":
            done = torch.cuda.Event()
            done.record()

        def wait():
            if done:
                done.synchronize()
            return result.tolist()

        return wait

    @torch.no_grad()
    def evaluate(self, batches):
        total = torch.zeros((), device=self.device)
        for number in range(len(batches)):
            inputs, targets = batches.load(number)
            for microbatch in range(self.run.accumulate):
                total += self.loss(inputs[microbatch], targets[microbatch])
            if number % 2:
                total.item()  # Two pinned buffers: no more than two batches under way.
        return total.item() / len(batches) / self.run.accumulate


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in [("layers", 12), ("hidden", 768), ("heads", 12), ("seq", 1024), ("vocab", 32000)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in [("micro-batch", 64), ("accumulate", 1), ("steps", 5400), ("warmup", 250), ("seed", 0)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--eval-interval", type=int, default=250)
    for name, default in [("lr", 6e-4), ("min-lr", 6e-5)]:
        parser.add_argument(f"--{name}", type=float, default=default)
    for name in ["train", "validation", "output"]:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    return parser.parse_args()


def main():
    run = arguments()
    device = torch.device(run.device, 0)
    training, validation = (Batches(path, run, device) for path in (run.train, run.validation))
    if len(training) < run.steps:
        raise SystemExit(f"{run.train} has {len(training)} batches, --steps {run.steps} needs as many as steps")
    trainer = Trainer(run, device)
    ended = None
    with open(run.output, "a") as output:

        def tell(under_way, evaluate=False):
            """Waits for a step and writes it down; it took from its start, or the end of the one before, until now; on a
            CPU, which ends a step before it is waited for, as long as its submission."""
            nonlocal ended
            number, began, host, wait = under_way
            loss, norm = wait()
            began, ended = max(began, ended or began), time.perf_counter()
            row = {"step": number + 1, "loss": loss, "grad_norm": norm, "lr": learning_rate(number, run)}
            row["step_ms"] = max(ended - began, host) * 1e3
            if evaluate:
                row["validation_loss"] = trainer.evaluate(validation)
            row["seconds"] = time.perf_counter() - BEGAN
            print(json.dumps(row), file=output, flush=True)

        before = None
        for number in range(run.steps):
            began = time.perf_counter()
            wait = trainer.step(number, *training.load(number))
            under_way = (number, began, time.perf_counter() - began, wait)
            if before:
                tell(before)
            before = under_way
            last = number + 1 == run.steps
            evaluate = run.eval_interval > 0 and (last or (number + 1) % run.eval_interval == 0)
            if last or evaluate:
                tell(before, evaluate)
                before = None


if __name__ == "__main__":
    main()
