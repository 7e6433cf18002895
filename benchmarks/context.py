"""A corpus as context: memory, access time and retrieval from the first document to the last.

    python benchmarks/context.py --model random --tokens 2900000
    python benchmarks/context.py --model smollm2-135m --tokens 50000

Writes a seeded corpus of invented places, one document each, whose seven facts stand in seven of its paragraphs among
invented prose; other documents mention the same kinds of facts and other places. Ingests it in three steps, 1 %, 10 %
and all of it, and after each asks from a new process, whose largest resident memory (VmHWM) is reported. Access is
routing, verifying and grafting; questions on the first, the middle and the last document take turns. "random" is a
Llama of one layer with random weights and SmolLM2's tokenizer, whose state takes 64 bytes per token.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvsync.library.tasks.draws import Draws
from kvsync.library.tasks.handbook import FACTS, Page, pages

STEPS = (0.01, 0.1, 1.0)
STAGES = ("route", "verify", "restore")
TOKENIZER = "smollm2-135m"
CHARS_PER_TOKEN = 4.2  # of this text under SmolLM2's tokenizer: 4.1

VERBS = ("carries", "keeps", "mends", "paints", "counts", "borrows", "hides", "sells", "weighs", "polishes")
ADJECTIVES = ("narrow", "quiet", "old", "crooked", "bright", "heavy", "empty", "long", "cold", "painted")
NOUNS = (
    "bridge",
    "ledger",
    "ladder",
    "kettle",
    "basket",
    "orchard",
    "window",
    "wagon",
    "bell",
    "cellar",
    "map",
    "rope",
)
TIMES = ("in spring", "before dawn", "after the fair", "every other week", "when it rains", "at low tide")


def sentence(draws: Draws, places: list[str]) -> str:
    place = draws.choice(places)
    kind = draws.between(0, 29)
    if kind == 0:
        return f"{draws.name()} of {place} once lost a {draws.choice(FACTS)} {draws.choice(TIMES)}."
    first, second = draws.choice(NOUNS), draws.choice(NOUNS)
    who = draws.name() if kind < 20 else f"The {draws.choice(ADJECTIVES)} {draws.choice(NOUNS)} of {place}"
    return (
        f"{who} {draws.choice(VERBS)} the {draws.choice(ADJECTIVES)} {first} near the {second} {draws.choice(TIMES)}."
    )


def document(page: Page, places: list[str], seed: int, number: int, paragraphs: int) -> str:
    """A title, then chapters of paragraphs; every seventh of the document holds one fact."""
    draws = Draws(seed, "context", "document", number)
    lines = [f"# Handbook of {page.place}\n"]
    share = paragraphs // len(FACTS)
    for chapter, what in enumerate(page.facts):
        lines.append(f"## Chapter {chapter + 1}\n")
        planted = draws.between(0, share - 1)
        for paragraph in range(share):
            said = [sentence(draws, places) for _ in range(draws.between(4, 7))]
            if paragraph == planted:
                said.insert(draws.between(0, len(said)), page.sentence(what))
            lines.append(" ".join(said) + "\n")
    return "\n".join(lines)


def corpus(seed: int, tokens: int, paragraphs: int) -> Iterator[tuple[Page, str]]:
    """Documents for about this many tokens, a little more."""
    per_document = paragraphs * 80  # at least; what is too many is not written
    known = pages(seed, tokens // per_document + 40)
    places = [page.place for page in known]
    made = 0
    for number, page in enumerate(known):
        if made > tokens * CHARS_PER_TOKEN * 1.02:
            return
        text = document(page, places, seed, number, paragraphs)
        made += len(text)
        yield page, text


def random_model(folder: Path) -> Path:
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from kvsync.models import resolve

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(resolve(TOKENIZER))
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=8192,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


# each of these runs in a process of its own


def prepare(model: str, folder: str) -> str:
    from kvsync.models import resolve

    return str(random_model(Path(folder) / "model") if model == "random" else resolve(model).absolute())


def ingest(home: str, model: str, folder: str, max_tokens: int) -> dict[str, Any]:
    import kvsync
    from kvsync.library.library import Library

    with kvsync.Client(home) as client:
        found = Library.open(client, "context").ingest(folder, load(model), max_tokens=max_tokens).as_dict()
    return {**found, "peak_rss": peak()}


def ask(home: str, model: str, places: dict[str, list[str]], rounds: int) -> dict[str, Any]:
    """Medians of every stage, by place in the corpus; questions take turns."""
    import kvsync
    from kvsync.library.library import Library

    taken: dict[str, list[dict[str, float]]] = {name: [] for name in places}
    with kvsync.Client(home) as client:
        library, engine = Library.open(client, "context"), load(model)
        library.ask(next(iter(places.values()))[0], engine, max_tokens=1)
        for round_ in range(rounds):
            for name, questions in places.items():
                asked = library.ask(questions[round_ % len(questions)], engine, max_tokens=4)
                taken[name].append({"access": asked.access_s, **asked.seconds})
    medians = {
        name: {stage: statistics.median(each[stage] for each in found) for stage in ("access", *STAGES)}
        for name, found in taken.items()
    }
    return {"medians_s": medians, "peak_rss": peak()}


def retrieve(home: str, asked: list[tuple[str, str]]) -> dict[str, Any]:
    """How often the passage with the fact comes first, and among the first five."""
    import kvsync
    from kvsync.library.library import Library

    first = five = 0
    with kvsync.Client(home) as client:
        library = Library.open(client, "context")
        for question, said in asked:
            held = [said in " ".join(each.passage.text.split()) for each in library.route(question, 5)]
            first += held[:1] == [True]
            five += any(held)
    return {"questions": len(asked), "top1": first / len(asked), "top5": five / len(asked)}


def answer(home: str, model: str, asked: list[tuple[str, str]]) -> dict[str, Any]:
    """How often the value stands in what the model says."""
    import kvsync
    from kvsync.library.library import Library

    right, seconds = 0, []
    with kvsync.Client(home) as client:
        library, engine = Library.open(client, "context"), load(model)
        for question, value in asked:
            began = time.perf_counter()
            found = library.ask(question, engine, max_tokens=24)
            seconds.append(time.perf_counter() - began)
            right += value.lower() in (found.answer or "").lower()
    return {"questions": len(asked), "accuracy": right / len(asked), "median_s": statistics.median(seconds)}


def load(model: str) -> Any:
    from kvsync.engines import load_engine

    return load_engine(Path(model), threads=1)


def peak() -> int:
    """The largest resident size of this process so far, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def measure(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    from kvsync.config import Home
    from kvsync.graft.client import Client
    from kvsync.keys import NodeKeys
    from kvsync.library.library import Library

    home = Home(root / "home")
    home.create()
    NodeKeys.create(home)
    with Client(home.root) as client:
        Library.create(client, "context")
    model = apart(prepare, options.model, str(root))
    made = list(corpus(options.seed, options.tokens, options.paragraphs))
    folder = root / "corpus"
    folder.mkdir()
    order = sorted(range(len(made)), key=lambda number: made[number][0].source)
    report: dict[str, Any] = {"model": options.model, "seed": options.seed, "documents": len(made), "steps": []}
    there = 0
    for step in STEPS:
        count = max(3, round(len(made) * step))
        for number in range(there, count):
            page, text = made[number]
            (folder / page.source.replace(".txt", ".md")).write_text(text)
        there = count
        found = apart(ingest, str(home.root), model, str(folder), options.max_tokens)
        here = [made[number][0] for number in order if number < count]
        places = {"first": here[0], "middle": here[len(here) // 2], "last": here[-1]}
        questions = {name: [ask_for(page, what) for what in page.facts] for name, page in places.items()}
        asked = apart(ask, str(home.root), model, questions, options.rounds)
        report["steps"].append({"share": step, "documents": count, "ingest": found, **asked})
        print(f"{step:.0%}: {found['tokens']} tokens, {found['passages']['all']} passages", file=sys.stderr)
    facts = [(ask_for(page, what), page.sentence(what), page.facts[what]) for page, _ in made for what in page.facts]
    chosen = facts[:: max(1, len(facts) // options.questions)]
    report["retrieval"] = apart(retrieve, str(home.root), [(asked, said) for asked, said, _ in chosen])
    if options.model != "random":
        chosen = facts[:: max(1, len(facts) // options.answers)]
        report["answers"] = apart(answer, str(home.root), model, [(asked, value) for asked, _, value in chosen])
    whole, peaks = report["steps"][-1], [step["peak_rss"] for step in report["steps"]]
    first, last = (whole["medians_s"][name]["access"] for name in ("first", "last"))
    report["tokens"] = whole["ingest"]["tokens"]
    report["memory_spread"] = max(peaks) / min(peaks) - 1
    report["last_over_first"] = last / first
    return report


def ask_for(page: Page, what: str) -> str:
    return f"What is the {what} of {page.place}?"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random", help="random, or a name from `kvsync model ls`")
    parser.add_argument("--tokens", type=int, default=2_900_000, help="length of the corpus, about")
    parser.add_argument("--max-tokens", type=int, default=1024, help="longest passage")
    parser.add_argument("--paragraphs", type=int, default=56, help="of a document")
    parser.add_argument("--rounds", type=int, default=21, help="questions on each of the three documents")
    parser.add_argument("--questions", type=int, default=700, help="facts whose retrieval is tried")
    parser.add_argument("--answers", type=int, default=56, help="facts that a real model is asked for")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--store", type=Path, default=Path("/dev/shm"))  # noqa: S108
    parser.add_argument("--keep", type=Path, help="work in this new folder and leave it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    root = options.keep or Path(tempfile.mkdtemp(dir=options.store))
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        report = measure(options, root)
    finally:
        if options.keep is None:
            shutil.rmtree(root)
    if options.json:
        print(json.dumps(report))
        return 0
    for step in report["steps"]:
        made, access = step["ingest"], step["medians_s"]
        print(
            f"{step['share']:>4.0%}  {made['tokens']} tokens  {made['passages']['all']} passages  "
            f"{made['tokens_per_s']:.0f} tokens/s  peak {step['peak_rss'] / 1e6:.1f} MB"
        )
        for name, stages in access.items():
            print(
                f"      {name:<6}  " + "  ".join(f"{stage} {value * 1e3:.2f} ms" for stage, value in stages.items())
            )
    for name in ("memory_spread", "last_over_first", "retrieval", "answers"):
        if name in report:
            print(f"{name}: {report[name]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
