"""Products of 8-bit factors in PyTorch on the CPU: what the engine's 8-bit layers are compared with.

    python fp8.py CASE.json IN.safetensors OUT.safetensors

Factors are cast to PyTorch's float8_e4m3fn and float8_e5m2 and back, and multiplied in f32. A scale of 0 is made from the
tensor's largest magnitude; another one is taken as it is. Values beyond the largest number become it.

CASE.json
    kind "linear": input_type grad_type ("e4m3" or "e5m2")
    kind "gpt":    the keys of reference.py's "gpt" that say what a model is, ffn and bias left out; input_type, grad_type
IN   linear: input (rows, in), weight (out, in), bias (out), grad_output (rows, out), values that bf16 has;
             scale.input and scale.grad_output (1)
     gpt:    the weights by the names of reference.py, tokens and targets (batch, seq), and for each 8-bit weight
             scale.{name}.input and scale.{name}.grad_output (1)
OUT  linear: output, grad_input, grad_weight, grad_bias
     gpt:    loss (1), grad.{name} of each weight, and exact.{name}: the gradient with everything in f32
"""

import json
import sys
from pathlib import Path

import torch
from reference import attention, gelu, layer_norm, rms_norm, swiglu
from safetensors.torch import load_file, save_file

TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def quantized(x, dtype, scale):
    """What x stands for as 8-bit numbers times a scale."""
    largest = torch.finfo(dtype).max
    scale = x.abs().max() / largest if scale == 0 else scale
    return (x * (1 / scale)).clamp(-largest, largest).to(dtype).float() * scale


class Fp8Linear(torch.autograd.Function):
    """x (rows, in) @ weight (out, in).T; weights have their own scale."""

    @staticmethod
    def forward(ctx, x, weight, types, scales):
        x = quantized(x, types[0], scales[0])
        weight = quantized(weight, types[0], 0)
        ctx.save_for_backward(x, weight)
        ctx.grad_type, ctx.grad_scale = types[1], scales[1]
        return x @ weight.T

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = quantized(grad, ctx.grad_type, ctx.grad_scale)
        return grad @ weight, grad.T @ x, None, None


class Rounded(torch.autograd.Function):
    """x as bf16 if it is stored, and its gradient if that is stored."""

    @staticmethod
    def forward(ctx, x, value, gradient):
        ctx.gradient = gradient
        return x.bfloat16().float() if value else x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.bfloat16().float() if ctx.gradient else grad, None, None


def types(case):
    return TYPES[case["input_type"]], TYPES[case["grad_type"]]


def linear(case, tensors):
    """One layer, forward and backward."""
    x, weight = (tensors[name].requires_grad_() for name in ["input", "weight"])
    scales = [tensors[f"scale.{name}"].squeeze() for name in ["input", "grad_output"]]
    output = Fp8Linear.apply(x, weight, types(case), scales) + tensors["bias"]
    output.backward(tensors["grad_output"])
    out = {"output": output.detach(), "grad_input": x.grad, "grad_weight": weight.grad}
    return out | {"grad_bias": tensors["grad_output"].sum(0)}


def gradients(case, tensors, eight_bit):
    """The mean loss of a transformer and its gradients by name. In 8 bits, what the engine stores in bf16 is rounded."""
    others = {"tokens", "targets"} | {name for name in tensors if name.startswith("scale.")}
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items() if name not in others}
    # The gradients of weights are f32.
    w = {name: x + (x.bfloat16().float() - x).detach() if eight_bit else x for name, x in leaves.items()}
    tokens, targets = tensors["tokens"].long(), tensors["targets"].long()

    def rounded(x, value=True, gradient=True):
        return Rounded.apply(x, value, gradient) if eight_bit else x

    def product(x, name):
        if not eight_bit:
            return x @ w[f"{name}.weight"].T
        scales = [tensors[f"scale.{name}.weight.{of}"].squeeze() for of in ["input", "grad_output"]]
        flat = Fp8Linear.apply(x.flatten(0, -2), w[f"{name}.weight"], types(case), scales)
        return flat.unflatten(0, x.shape[:-1])

    def dense(x, name, **stored):
        return rounded(product(x, name) + w.get(f"{name}.bias", 0), **stored)

    def norm(x, name, **stored):
        if case["norm"] == "rmsnorm":
            return rounded(rms_norm(x, w[f"{name}.weight"], case["eps"]), **stored)
        return rounded(layer_norm(x, w[f"{name}.weight"], w.get(f"{name}.bias"), case["eps"]), **stored)

    activation = swiglu if case["activation"] == "swiglu" else gelu
    x = w["wte.weight"][: case["vocab"]][tokens]
    if case["position"] == "learned":
        x = x + w["wpe.weight"][: tokens.shape[1]]
    x = rounded(x)
    for h in (f"h.{i}" for i in range(case["layers"])):
        # What an 8-bit layer reads of a norm or an activation, and the gradient before the activation, go from f32 to 8 bits.
        mixed = rounded(attention(case, dense(norm(x, f"{h}.ln_1", value=False), f"{h}.attn.c_attn")))
        x = rounded(x + dense(mixed, f"{h}.attn.c_proj"))
        before = dense(norm(x, f"{h}.ln_2", value=False), f"{h}.mlp.c_fc", gradient=False)
        x = rounded(x + dense(rounded(activation(before), value=False), f"{h}.mlp.c_proj"))
    head = w["wte.weight" if case["tied"] else "lm_head.weight"][: case["vocab"]]
    logits = rounded(norm(x, "ln_f") @ head.T)
    loss = (logits.logsumexp(-1) - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)).mean()
    loss.backward()
    return loss.detach().reshape(1), {name: x.grad for name, x in leaves.items()}


def gpt(case, tensors):
    """A transformer, forward and backward: in 8 bits, and in f32."""
    loss, eight = gradients(case, tensors, True)
    _, exact = gradients(case, tensors, False)
    out = {"loss": loss} | {f"grad.{name}": grad for name, grad in eight.items()}
    return out | {f"exact.{name}": grad for name, grad in exact.items()}


def main(arguments):
    torch.set_num_threads(1)
    case, tensors = json.loads(Path(arguments[0]).read_text()), load_file(arguments[1])
    out = {"linear": linear, "gpt": gpt}[case["kind"]](case, tensors)
    save_file({name: t.contiguous() for name, t in out.items()}, arguments[2])


if __name__ == "__main__":
    main(sys.argv[1:])
