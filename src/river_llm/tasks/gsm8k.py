"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168), test split of 1,319 problems."""

from river_llm.tasks.base import Sample
from river_llm.tasks.data import HubSplit, read_file, read_hub
from river_llm.tasks.gsm import GsmTask


class Gsm8k(GsmTask):
    """GSM8K from the hub (``openai/gsm8k``) or from a local copy with the same columns."""

    name = "gsm8k"
    label = "GSM8K"
    test_split = HubSplit("openai/gsm8k", "main", "test")
    train_split = HubSplit("openai/gsm8k", "main", "train")

    def _load(self) -> list[Sample]:
        path = self.settings.data_path
        columns = self.columns
        rows = read_hub(self.test_split, columns) if path is None else read_file(path, columns)
        return self._samples((f"gsm8k/test/{i}", row) for i, row in enumerate(rows))
