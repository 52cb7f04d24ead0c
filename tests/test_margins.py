"""The margin of each emitted token: its logit minus the second largest."""

import pytest
import torch

from river_llm.decoding import NoExit
from river_llm.exits import Never
from river_llm.generation import StopRules, generate
from tiny import KINDS, LAYERS, PROMPT, make_executor, tiny_model


@pytest.mark.parametrize("kind", KINDS)
def test_margins_are_those_of_the_two_largest_logits(kind, rivers):
    model = tiny_model(kind)
    decoder = NoExit(*make_executor(model, Never(LAYERS), rivers))
    *_, result = generate(decoder, PROMPT, StopRules(6), lambda ids: "x" * len(ids))
    sequence = torch.tensor([[*PROMPT, *result.tokens[:-1]]])
    with torch.no_grad():
        logits = model(sequence).logits[0, len(PROMPT) - 1 :]
    top = logits.sort(-1, descending=True).values
    assert result.margins == pytest.approx((top[:, 0] - top[:, 1]).tolist(), abs=1e-4)
    assert min(result.margins) > 0


def test_equal_largest_logits_have_no_margin_and_the_first_is_taken(rivers, monkeypatch):
    decoder = NoExit(*make_executor(tiny_model("llama"), Never(LAYERS), rivers))
    logits = torch.full((1, 1, 8), -1.0)
    logits[0, 0, [2, 6]] = 3.0
    monkeypatch.setattr(decoder.executor, "logits", lambda: logits)
    output = decoder.prefill([PROMPT])
    assert (output.tokens, output.margins) == ([[2]], [[0.0]])
