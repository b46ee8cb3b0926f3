"""Writes conversations of one to six turns, in which the assistant says words backwards: python bench/chats.py FILE NUMBER."""

import json
import random
import sys

random.seed(5)
words = "sky sun grass snow river stone cloud tree bird fish house road lamp book chair table glass bread salt".split()
with open(sys.argv[1], "w") as out:
    for i in range(int(sys.argv[2])):
        n = random.choice([1, 1, 1, 2, 3, 6])
        messages = []
        for _ in range(n):
            w = random.sample(words, random.randint(2, 12))
            messages += [{"role": "user", "content": "Say backwards: " + " ".join(w)},
                         {"role": "assistant", "content": " ".join(reversed(w))}]
        out.write(json.dumps({"messages": messages}) + "\n")
