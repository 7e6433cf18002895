"""The program behind the 50-of-50 figure runs, compares in two processes, and says what it compared."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.engines.tiny_models import Models

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "exactness.py"


def save_letters(folder: Path) -> None:
    """A tokenizer that gives a text as many different tokens as it has letters."""
    letters = {chr(32 + index): index for index in range(95)}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=" ").save_pretrained(folder)


def test_a_small_run_is_exact_and_says_so(tiny: Models, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny.folder("llama"), tmp_path / "model"))
    save_letters(model)
    command = [sys.executable, str(PROGRAM), "--json", "--pairs", "3", "--threads", "1", "--dtype", "F32"]
    done = subprocess.run([*command, "--model", str(model)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    (run,) = found["runs"]
    assert found["exact"]
    assert (run["pairs"], run["equal"], run["whole"], run["prefix"]) == (3, 3, "2/2", "1/1")
    digests = [
        row[name][side] for row in run["rows"] for name in ("logits_sha256", "decode_sha256") for side in row[name]
    ]
    assert len(set(digests)) == len(digests) / 2
