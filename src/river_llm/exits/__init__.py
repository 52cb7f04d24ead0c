"""Exit criteria: one file each."""

from river_llm.exits.base import Criterion
from river_llm.exits.confidence import Confidence
from river_llm.exits.fixed import Fixed
from river_llm.exits.never import Never
from river_llm.exits.replay import Replay
from river_llm.exits.similarity import Similarity

__all__ = ["Confidence", "Criterion", "Fixed", "Never", "Replay", "Similarity"]
