"""What the default precision costs, on the beginnings of the texts that docs/design/precision.md
has the whole figures of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from headway.bench.quality import Difference, Scores, compare, score, windows
from headway.config import EngineArgs
from headway.llm import build_engine
from headway.models.spec import DecoderWeights
from headway.models.weights import ModelFile
from headway.runtime import kernels

Array = npt.NDArray[np.float32]

TEXTS = Path(__file__).parents[1] / "data" / "quality"
WINDOW, NUM_WINDOWS = 512, 3
MOST_CHANGE = 0.01
"""Of the perplexity. Over the whole texts it is measured; over so few tokens it has an error."""

pytestmark = pytest.mark.skipif(
    kernels.why_missing() is not None, reason="without the kernels float32 is the default"
)


def scores_of(path: Path, dtype: str) -> dict[str, Scores]:
    engine = build_engine(EngineArgs(model=str(path), dtype=dtype, num_kv_blocks=400, probe="off"))
    assert engine.config.dtype == ("int8" if dtype == "auto" else dtype)
    assert engine.config.kv_cache_dtype == engine.config.dtype
    found = {}
    for name in ("prose", "code"):
        text = (TEXTS / f"{name}.txt").read_text(encoding="utf-8")
        pieces = windows(engine.tokenizer, text, WINDOW)[:NUM_WINDOWS]
        found[name] = score(engine.core, pieces)
    engine.core.close()
    return found


@pytest.fixture(scope="module")
def better(model_path: Path) -> dict[str, Scores]:
    return scores_of(model_path, "float32")


def is_good(found: Difference) -> bool:
    return found.change < MOST_CHANGE + 1.5 * found.change_error and found.agreement > 0.9


def test_the_default_precision_is_at_most_one_percent_worse(
    model_path: Path, better: dict[str, Scores], capsys: pytest.CaptureFixture[str]
) -> None:
    for text, own in scores_of(model_path, "auto").items():
        found = compare(own, better[text])
        with capsys.disabled():
            print(
                f"\n{text}: perplexity {100 * found.change:+.2f} % "
                f"(± {100 * found.change_error:.2f}), {found.agreement:.3f} of the tokens the same"
            )
        assert found.num_tokens == NUM_WINDOWS * (WINDOW - 1)
        assert found.change_error < 0.004
        assert is_good(found)
        assert found.agreement < 1  # it is another precision


def test_weights_that_are_a_little_off_are_noticed(
    model_path: Path, better: dict[str, Scores], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a tenth of their own size, at random: as if rounded to four bits."""
    load = ModelFile.load_weights

    def off(matrix: Array, rng: np.random.Generator) -> Array:
        noise = rng.standard_normal(matrix.shape, np.float32)
        return matrix + np.float32(0.1) * np.sqrt(np.mean(matrix**2)) * noise

    def load_off(self: ModelFile) -> DecoderWeights:
        weights, rng = load(self), np.random.default_rng(0)
        return replace(
            weights,
            layers=(
                replace(layer, gate=off(layer.gate, rng), down=off(layer.down, rng))
                for layer in weights.layers
            ),
        )

    monkeypatch.setattr(ModelFile, "load_weights", load_off)
    for text, own in scores_of(model_path, "auto").items():
        assert not is_good(compare(own, better[text]))
