"""The prompts of a run as token ids, all checked before the first token is generated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from river_llm.errors import UserError
from river_llm.models.loading import LoadedModel
from river_llm.models.prompting import encode_chat, encode_text
from river_llm.tasks import Sample, Task


@dataclass(frozen=True)
class Prompt:
    """A sample with its prompt.

    Attributes:
        index: of the sample in its task.
        sample: what is asked and graded.
        ids: token ids of the prompt.
    """

    index: int
    sample: Sample
    ids: list[int]

    @property
    def hash(self) -> str:
        """16 hexadecimal digits over the token ids."""
        return hashlib.sha256(json.dumps(self.ids).encode()).hexdigest()[:16]


def encode(model: LoadedModel, task: Task, index: int, sample: Sample) -> Prompt:
    """The prompt of one sample."""
    if model.chat:
        ids = encode_chat(model.tokenizer, task.messages(sample))
    else:
        ids = encode_text(model.tokenizer, task.text(sample))
    return Prompt(index, sample, ids)


def encode_all(
    model: LoadedModel, task: Task, samples: Sequence[Sample], new_tokens: int
) -> list[Prompt]:
    """The prompts of all samples.

    A prompt that does not fit together with its budget is refused, not shortened: a clipped
    prompt or budget would change the sample without a trace in its score.

    Args:
        model: tokenizer, chat or plain, context length.
        task: builds the prompts.
        samples: of the task, in order from its first.
        new_tokens: budget that must fit behind the prompt.

    Raises:
        UserError: prompt and budget exceed the model's context (sample, lengths, what fits).
    """
    context = model.adapter.context
    prompts = [encode(model, task, index, sample) for index, sample in enumerate(samples)]
    for prompt in prompts:
        if len(prompt.ids) + new_tokens > context:
            room = context - len(prompt.ids)
            advice = (
                f"use exp.max_new_tokens={room} or less" if room > 0 else "use a lower exp.fewshot"
            )
            raise UserError(
                f"sample {prompt.sample.id}: a prompt of {len(prompt.ids)} tokens and "
                f"{new_tokens} new ones exceed {model.adapter.context_words}: {advice}"
            )
    return prompts


def data_fingerprint(task: Task, samples: Sequence[Sample]) -> str:
    """Hash of a task's data (all samples), equal for the hub's copy and a local one."""
    digest = hashlib.sha256(task.name.encode())
    for sample in samples:
        row = [sample.id, dict(sample.question), sample.gold]
        digest.update(json.dumps(row, sort_keys=True).encode())
    return digest.hexdigest()
