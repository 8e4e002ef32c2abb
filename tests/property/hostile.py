"""How hard the tests of hostile input try, and what every model file must keep to.

The same few examples every time, unless `HEADWAY_FUZZ=100` asks for 100 times as many, at random:

    HEADWAY_FUZZ=100 pytest tests/property -k hostile
"""

from __future__ import annotations

import os
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings

from headway.errors import HeadwayError, InvalidRequest, ModelError
from headway.models.spec import row_parts
from headway.models.weights import open_model
from headway.text.chat_template import ChatTemplate

_TIMES = int(os.environ.get("HEADWAY_FUZZ", "1"))

_MAX_MESSAGE = 2000
_MAX_SECONDS = 5  # of one processor; a file of these sizes takes some 10 ms
_MAX_BYTES = 64 * 2**20
_MAX_BYTES_PER_BYTE = 40  # a Python object where the file has a byte or a few


def tries(num_examples: int) -> settings:
    """`num_examples`, times what `HEADWAY_FUZZ` says."""
    return settings(
        max_examples=num_examples * _TIMES,
        derandomize=_TIMES == 1,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def use_model(path: Path) -> str | None:
    """Does with a model what serving it begins with. Returns the error that ended it.

    Fails where that is not an error of ours that names the path and is short, or took long
    or much memory.
    """
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    tracemalloc.start()
    start = time.process_time()
    try:
        _use(path)
    except InvalidRequest as error:  # a tokenizer need not have tokens for every text
        message = str(error)
    except HeadwayError as error:
        message = str(error)
        assert str(path) in message
    else:
        message = None
    seconds = time.process_time() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert message is None or 0 < len(message) < _MAX_MESSAGE
    assert seconds < _MAX_SECONDS
    assert peak < _MAX_BYTES + _MAX_BYTES_PER_BYTE * size
    return message


def _use(path: Path) -> None:
    model = open_model(path)
    assert model.num_parameters > 0
    assert model.precision
    if model.chat_template is not None:
        with suppress(ModelError):  # knows no path; its own tests say what it keeps to
            ChatTemplate(model.chat_template, bos_token=None, eos_token=None)
    weights = model.load_weights()
    assert weights.embedding.shape == (model.spec.vocab_size, model.spec.hidden_size)
    for part in row_parts(weights.embedding):
        assert part.dtype == np.float32
    for layer in weights.layers:
        assert layer.down.dtype == np.float32
    tokenizer = model.tokenizer()
    ids = tokenizer.encode("Hello <s>, é 🙂 1234\n")
    assert all(0 <= token < tokenizer.vocab_size for token in ids)
    tokenizer.decode(ids, skip_special_tokens=False)
