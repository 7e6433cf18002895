"""Loading without progress bars, log lines or network, and with everything as it was afterwards."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import huggingface_hub.constants
from transformers.utils import logging as transformers_logging


@contextmanager
def quiet_and_offline() -> Iterator[None]:
    """transformers and the hub client say nothing and reach nothing inside this block."""
    bars = transformers_logging.is_progress_bar_enabled()
    level = transformers_logging.get_verbosity()
    offline = huggingface_hub.constants.HF_HUB_OFFLINE
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity(logging.CRITICAL)
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = offline
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
