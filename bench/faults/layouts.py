"""The runs that kills and disk faults disturb: parallel layouts, and kinds of training that write files of their own."""

import json

# Of the conversations and their template; `CHATS` stands for the folder that they are in.
SFT = ["--sft", "--sft-packing=3", "--data-path=CHATS/chats.jsonl", "--chat-template=CHATS/template.jinja", "--split=0.8"]
LORA = ["--lora-rank=4", "--lora-dropout=0.1"]
# Name, ranks, flags.
LAYOUTS = [
    ("one process", 1, []),
    ("data 2", 2, []),
    ("data 2, distributed optimizer", 2, ["--use-distributed-optimizer"]),
    ("tensor 2", 2, ["--tensor-model-parallel-size=2"]),
    ("tensor 2, sequence parallel", 2, ["--tensor-model-parallel-size=2", "--sequence-parallel"]),
    ("pipeline 2, 1f1b", 2, ["--pipeline-model-parallel-size=2"]),
    ("pipeline 2, zero bubble", 2, ["--pipeline-model-parallel-size=2", "--pipeline-schedule=zero_bubble"]),
    ("pipeline 2, two chunks", 2, ["--pipeline-model-parallel-size=2", "--virtual-pipeline-model-parallel-size=2",
                                   "--layers=4"]),
    ("tensor 2 x data 2", 4, ["--tensor-model-parallel-size=2"]),
    ("data 2, packed conversations", 2, SFT),
    ("data 2, adapters", 2, LORA),
    ("data 2, 8 bits", 2, ["--fp8-format=hybrid", "--bf16"]),
    ("data 2, Muon", 2, ["--optimizer=muon"]),
    ("tensor 2, overlapping microbatches", 2, ["--tensor-model-parallel-size=2", "--enable-cuda-graph",
                                               "--overlap-microbatches"]),
]
# One process each: calls that write are counted in one.
DISK_LAYOUTS = [("plain", []), ("packed conversations", SFT), ("adapters", LORA)]


def write_chats(folder):
    """Writes short conversations and their template to a folder."""
    folder.mkdir(exist_ok=True)
    turn = "{{ ('Q ' if m.role == 'user' else 'A ') + m.content + (' ' if m.role == 'user' else ';') }}"
    (folder / "template.jinja").write_text("{% for m in messages %}" + turn + "{% endfor %}")
    with open(folder / "chats.jsonl", "w") as out:
        for number in range(100, 400):
            messages = [{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": f"{number}"[::-1]}]
            out.write(json.dumps({"messages": messages}) + "\n")


def with_chats(flags, folder):
    """Flags with the folder of the conversations in place."""
    return [flag.replace("CHATS", str(folder)) for flag in flags]
