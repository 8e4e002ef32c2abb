"""How an engine is composed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headway.errors import InvalidRequest
from headway.llm.build import _chat_template


def test_a_chat_template_that_cannot_be_used_is_no_obstacle_until_it_is_asked_for() -> None:
    model: Any = SimpleNamespace(chat_template="{{ messages | nonsense }}")
    tokenizer: Any = SimpleNamespace(bos_token="<s>", eos_token="</s>")
    said: list[str] = []
    template = _chat_template(model, tokenizer, said.append)
    assert template is not None
    assert "nonsense" in said[0]
    with pytest.raises(InvalidRequest, match=r"messages: .* not usable: .*nonsense"):
        template.render([{"role": "user", "content": "hi"}])
