"""gsm_mini: GSM-style problems written for this project and shipped with it."""

from river_llm.errors import UserError
from river_llm.tasks.base import Sample, TaskSettings
from river_llm.tasks.data import check_unique, read_packaged
from river_llm.tasks.gsm import GsmTask


class GsmMini(GsmTask):
    """A small set that needs no download. It is not GSM8K and says nothing about GSM8K."""

    name = "gsm_mini"
    label = "gsm_mini (own)"
    embedded = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        if self.settings.data_path is not None:
            raise UserError(
                f"data.path={settings.data_path!r}: exp=gsm_mini is embedded and reads no file; "
                f"use exp=gsm8k for a file with columns question and answer"
            )

    def _load(self) -> list[Sample]:
        rows = read_packaged("gsm_mini.jsonl", ("id", *self.columns))
        check_unique(rows, "id")
        return self._samples((row.fields["id"], row) for row in rows)
