"""How a model's tokenizer writes a conversation, and with which tokens the model ends its turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from kvsync.errors import EngineError


def chat_text(tokenizer: Any, turns: Sequence[str], *, reply: bool) -> str:
    """See `kvsync.engines.engine.Engine.chat`."""
    messages = [
        {"role": "assistant" if index % 2 else "user", "content": content} for index, content in enumerate(turns)
    ]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=reply))
    except (TemplateError, ValueError) as error:
        raise EngineError(
            "engine.template",
            f"the model's chat template does not take this conversation: {str(error).splitlines()[0]}",
        ) from error


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """What the generation settings, the config and the tokenizer call an end."""
    return frozenset(_whole_numbers(_named(model, tokenizer)))


def _named(model: Any, tokenizer: Any) -> Iterator[object]:
    for holder in (getattr(model, "generation_config", None), model.config, tokenizer):
        found = getattr(holder, "eos_token_id", None)
        yield from found if isinstance(found, list | tuple) else (found,)


def _whole_numbers(found: Iterator[object]) -> Iterator[int]:
    return (token for token in found if type(token) is int)
