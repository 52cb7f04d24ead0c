"""HumanEval: make one program of a prompt and a completion.

A base model continues the prompt; a chat model answers with prose, fences and often the signature
once more. Several readings of the text are tried in a fixed order, and the first one that compiles
and gives the entry point a body is the program. Text is dropped, never changed, but for the
indentation of a body that was written without it. If no reading works the most likely one is
returned, and running it says what is wrong.
"""

import ast
import re
import textwrap
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

_LONGEST_PROGRAM = 50_000  # characters; longer text is taken as it stands
_MOST_READINGS = 60
_MOST_COMPILED = 1_000_000  # characters, all readings of a text together
_LINE_HEAD = 200  # characters; they tell whether a line is code

_FENCE = re.compile(r"^[ \t]*~{3,}|`{3,}", re.MULTILINE)
# A language word with code behind it on the same line.
_LANGUAGE = re.compile(r"[ \t]*+[\w+#.{}-]*+[ \t]*+(?=def |from |import |class |@)")
_TURN_START = re.compile(
    r"\s*(?:<s>|<bos>|<\|(?:begin_of_text|endoftext)\|>"
    r"|<\|im_start\|>\s*(?:assistant\b)?|<start_of_turn>\s*(?:model\b)?"
    r"|<\|start_header_id\|>\s*assistant\s*<\|end_header_id\|>|<\|assistant\|>)[ \t]*\n*"
)
_REASONING = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_TURN_END = re.compile(
    r"<[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>|<(?:end_of_turn|start_of_turn|eos)>|</s>(?=\s*(?:\Z|\n|<s>))"
)
_FUTURE = re.compile(r"^from __future__ import .*\n", re.MULTILINE)
_CODE_LINE = re.compile(
    r"(?:async\s+def|def|class|from|import|if|for|while|with|try|assert|return|print)\b"
    r"|[@#]|[A-Za-z_][\w.]*(?:\[.*\])?\s*(?::[^=]*)?[-+*/|&]?=[^=]|[rbuf]*(?:\"\"\"|''')"
)

_warnings_lock = threading.Lock()  # catch_warnings is not safe in several threads


@dataclass
class _Effort:
    """Characters that may still be compiled in search of a program."""

    characters: int


def extract_program(prompt: str, completion: str, entry_point: str) -> str:
    """Return the whole program, without tests, that a completion stands for.

    Handled: a bare continuation (its leading blanks are kept), fences with any or no language
    word, a missing opening or closing fence, several fences (the first block that defines the
    entry point), a repeated signature, prose around the code, markers of special tokens. The
    prompt's imports and helper functions are always part of the program; inner functions and
    statements behind the function stay.

    Args:
        prompt: The problem's prompt: imports, helpers, signature and docstring.
        completion: Generated text, without the prompt.
        entry_point: Name of the function under test.
    """
    prompt = _unix(prompt)
    text = _without_markers(_unix(completion))
    likely: str | None = None
    effort = _Effort(_MOST_COMPILED)
    for head, body, cut in islice(_readings(prompt, text, entry_point), _MOST_READINGS):
        program = _usable(head, body, entry_point, cut, effort)
        if program is not None:
            return program
        likely = likely or head + body
    return _ended(likely or prompt + text)


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")


def _ended(program: str) -> str:
    return program if program.endswith("\n") else program + "\n"


def _without_markers(text: str) -> str:
    """Drop markers of the turn's start, reasoning, and all from the first marker of its end."""
    text = _REASONING.sub("", _behind_turn_start(text))
    text = _before_turn_end(text)
    # The prompt may hold the tag that opens the reasoning.
    return _behind_turn_start(text.rpartition("</think>")[2])


def _behind_turn_start(text: str) -> str:
    begin = 0
    while (start := _TURN_START.match(text, begin)) is not None:
        begin = start.end()
    return text[begin:]


def _before_turn_end(text: str) -> str:
    for end in _TURN_END.finditer(text):
        # A marker inside a string literal belongs to the program.
        line = text[text.rfind("\n", 0, end.start()) + 1 : end.start()]
        if line.count('"') % 2 == 0 and line.count("'") % 2 == 0:
            return text[: end.start()]
    return text


def _readings(prompt: str, text: str, entry_point: str) -> Iterator[tuple[str, str, bool]]:
    """Readings of the completion: (part of the prompt, code, may be cut), the most likely first."""
    preamble = _preamble(prompt, entry_point)
    segments = _segments(text)
    inside = [segment for fenced, segment in segments if fenced]
    outside = [segment for fenced, segment in segments if not fenced]
    if text.lstrip("\n")[:1] in (" ", "\t"):
        yield prompt, outside[0], True
    definition = re.compile(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{re.escape(entry_point)}\b", re.M)
    for segment in [*inside, *outside]:
        if definition.search(segment):
            for code in _starts(segment):
                future = "".join(_FUTURE.findall(code))  # must stay the program's first lines
                yield future + preamble, _FUTURE.sub("", code), True
    for _, segment in segments:
        yield prompt, segment, True
    bodies = [body for segment in [*inside, *outside] if (body := segment.strip("\n")).strip()]
    for cut in (False, True):
        for body in bodies:  # one that lost all of its indentation, or that of its first line
            yield prompt, _indented(textwrap.dedent(body)), cut
            yield prompt, "    " + body.lstrip(), cut


def _preamble(prompt: str, entry_point: str) -> str:
    """What the prompt holds in front of the function under test."""
    definition = re.compile(
        rf"^(?:@.*\n)*(?:async[ \t]+)?def[ \t]+{re.escape(entry_point)}\b", re.M
    )
    found = list(definition.finditer(prompt))
    return prompt[: found[-1].start()] if found else prompt


def _segments(text: str) -> list[tuple[bool, str]]:
    """Split the text at its fences: (behind an opening fence, content).

    With one fence missing, what is a block and what is prose cannot be told from the fences; all
    segments are tried.
    """
    segments, begin, fenced = [], 0, False
    for fence in _FENCE.finditer(text):
        segments.append((fenced, text[begin : fence.start()]))
        begin, fenced = fence.end(), not fenced
        line_end = text.find("\n", begin)
        line_end = len(text) if line_end < 0 else line_end
        rest_of_line = text[begin:line_end]
        language = _LANGUAGE.match(rest_of_line)
        if _CODE_LINE.match(rest_of_line.strip()[:_LINE_HEAD]):
            pass  # code on the line of the fence
        elif language is not None:
            begin += language.end()
        else:
            begin = min(line_end + 1, len(text))
    segments.append((fenced, text[begin:]))
    return segments


def _lines(text: str) -> list[str]:
    """Lines as Python's parser sees them, ends kept: no other separator of Unicode ends one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _indented(text: str) -> str:
    return "".join("    " + line if line.strip() else line for line in _lines(text))


def _starts(segment: str) -> Iterator[str]:
    """The segment from each line on where code may begin, the earliest first."""
    lines = _lines(textwrap.dedent(segment))
    for index, line in enumerate(lines):
        if _CODE_LINE.match(line[:_LINE_HEAD]):
            yield "".join(lines[index:])
    for index, line in enumerate(lines):  # an indented block below prose
        if re.match(r"[ \t]+(?:(?:async[ \t]+)?def|from|import|@)\b", line):
            yield textwrap.dedent("".join(lines[index:]))


def _usable(head: str, body: str, entry_point: str, cut: bool, effort: _Effort) -> str | None:
    """Return the program if it compiles and implements the entry point, else None.

    Where it does not compile the body may be cut at the last line at the margin in front of the
    error: behind the code stand prose or an unfinished statement. A function is dropped as a whole
    or not at all.
    """
    lines = _lines(body)
    while lines:
        program = _ended(head + "".join(lines))
        if len(program) > _LONGEST_PROGRAM or len(program) > effort.characters:
            return None
        effort.characters -= len(program)
        tree, error_line = _compile(program)
        if tree is not None:
            return program if _implements(tree, entry_point) else None
        if not cut:
            return None
        wrong = error_line - head.count("\n")
        margins = [i for i, line in enumerate(lines) if line.strip() and line[0] not in " \t"]
        lines = lines[: max((i for i in margins if i < wrong), default=0)]
    return None


def _compile(program: str) -> tuple[ast.Module | None, int]:
    """Compile without running: (tree, 0), or (None, line of the error)."""
    try:
        with _warnings_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(program)
            compile(tree, "<program>", "exec")
    except SyntaxError as error:
        return None, error.lineno or 0
    except (ValueError, RecursionError, MemoryError):  # a null byte; nested too deep
        return None, 0
    return tree, 0


def _implements(tree: ast.Module, entry_point: str) -> bool:
    """Whether the entry point is defined with more than a docstring."""
    implemented = False
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == entry_point:
            implemented = not all(_is_stub(inner, entry_point) for inner in node.body)
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            implemented = implemented or entry_point in names
    return implemented


def _is_stub(node: ast.stmt, entry_point: str) -> bool:
    """A docstring, ``pass``, ``...``, or the signature written again inside the function."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name == entry_point
    return isinstance(node, ast.Pass)
