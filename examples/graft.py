"""Compute a document's KV state once, graft it, and show that nothing changed by that.

    python examples/graft.py MODEL_DIRECTORY DOCUMENT.txt "a question about it"

Uses the node in $KVSYNC_HOME (`kvsync init` makes one). The model is loaded by transformers and used by
transformers: `graft.cache` goes straight into `generate`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import kvsync


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("model", type=Path)
    words.add_argument("document", type=Path)
    words.add_argument("question")
    given = words.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForCausalLM.from_pretrained(given.model).eval()
    document = tokenizer(given.document.read_text("utf-8"))["input_ids"]
    question = tokenizer(given.question, add_special_tokens=False)["input_ids"]
    tokens = [*document, *question]

    with kvsync.Client() as client:
        # Once, on any host whose arithmetic matches. Others fetch it with client.pull(peer, name).
        artifact = client.deposit(model, document, name="examples/document")
        print(f"artifact   {artifact.artifact}, {artifact.bytes} bytes")

        # Everything is verified before a byte reaches the cache. A refused graft says why, and touches nothing.
        graft = client.graft(model, tokens)
        if graft.report.refused is not None:
            print(f"refused    {graft.report.refused.message}")
            raise SystemExit(1)
        print(f"grafted    {graft.report.tokens_grafted} tokens, {graft.report.tokens_recomputed} left to compute")
        print(f"checks     {', '.join(graft.report.checks)}")

        answer = model.generate(torch.tensor([tokens]), cache=graft.cache, max_new_tokens=16, do_sample=False)
    print(f"answer     {tokenizer.decode(answer[0, len(tokens) :])!r}")


if __name__ == "__main__":
    main()
