"""The engines that victims and attackers run: tiny, random, alike in every shape."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvsync.engines.engine import Context, Engine, Logits
from kvsync.engines.transformers import load, wrap
from kvsync_protocol.layout import DType
from tests.engines.tiny_models import BLOCK, FAMILIES, edit_config, save_model

LLAMA = "llama"
GEMMA = "gemma3, window of one block"
PHI = "phi3, rope that changes at 200"
STEPS = 4
_SAME: dict[str, Any] = {"threads": 1, "block_tokens": BLOCK}


class Engines:
    """Engines by name, made once; and what a fresh computation on each of them gives."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, Engine] = {}
        self._fresh: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {}

    def victim(self, family: str = LLAMA, dtype: DType = DType.F32) -> Engine:
        return self._once(f"{family} {dtype.value}", lambda: load(self._folder(family), dtype=dtype, **_SAME))

    def other_weights(self) -> Engine:
        """The same architecture, freshly initialised: what an instruct model is to its base."""
        return self._once("seed 1", lambda: load(save_model(self._new(), FAMILIES[LLAMA](), seed=1), **_SAME))

    def other_attention(self) -> Engine:
        return self._once("eager", lambda: load(self._folder(LLAMA), attention="eager", **_SAME))

    def edited(self, family: str, **entries: Any) -> Engine:
        """The same weights under another config."""

        def make() -> Engine:
            folder = Path(shutil.copytree(self._folder(family), self._new(), dirs_exist_ok=True))
            edit_config(folder, **entries)
            return load(folder, **_SAME)

        return self._once(f"{family} {entries}", make)

    def another_build(self) -> Engine:
        """Every version string as the victim's, other arithmetic: an epsilon that no config names."""

        def make() -> Engine:
            model = self.model()
            for module in model.modules():
                if hasattr(module, "variance_epsilon"):
                    module.variance_epsilon *= 100
            return wrap(model, threads=1, block_tokens=BLOCK)

        return self._once("another build", make)

    def model(self) -> Any:
        """A Llama as its user has loaded it, nobody else's."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self._folder(LLAMA)).eval()

    def fresh(self, engine: Engine, tokens: Sequence[int], question: Sequence[int]) -> str:
        """What the victim should see: the canonical fresh computation, cut where the document ends."""
        key = id(engine), tuple(tokens), tuple(question)
        if key not in self._fresh:
            context, schedule = engine.new_context(), engine.schedule.with_boundary(len(tokens))
            engine.prefill(context, tokens, schedule)
            self._fresh[key] = said(engine, context, engine.extend(context, question, schedule))
        return self._fresh[key]

    def _folder(self, family: str) -> Path:
        folder = self._root / "".join(letter if letter.isalnum() else "-" for letter in family)
        return folder if folder.exists() else save_model(folder, FAMILIES[family]())

    def _new(self) -> Path:
        folder = self._root / f"model-{len(list(self._root.iterdir()))}"
        folder.mkdir()
        return folder

    def _once(self, name: str, make: Callable[[], Engine]) -> Engine:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]


def said(engine: Engine, context: Context, logits: Logits) -> str:
    """Digest of the logits behind every token of a question and of a few greedy steps."""
    _, steps = engine.decode_greedy(context, logits, STEPS)
    return f"{logits.sha256().hex} {steps.sha256().hex}"
