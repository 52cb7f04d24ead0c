"""What the pages name exists: links, paths, scripts, make targets, settings; the citation file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
import yaml

import river_llm
from river_llm.benchmark.settings import parse as parse_bench
from river_llm.composition import complete, composed, load_config
from river_llm.errors import UserError
from river_llm.sweeps.overrides import expand
from river_llm.sweeps.plan import parse_request
from river_llm.sweeps.profiles import load_profile

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
SUFFIXES = (".py", ".md", ".yaml", ".cpp", ".hpp", ".toml", ".ipynb")
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.M | re.S)
INDENTED = re.compile(r"(?:^|\n)\n((?: {4}\S[^\n]*\n)+)")
PLACEHOLDER = re.compile(r"[<>{}$|=]|\.\.\.|\bNAME\b|\b[A-Z]+_(?:DIR|[A-Z])\b")
MADE_UP = re.compile(r"\btrue_false\b")
"""What a page only shows how to make."""

# --- what a page holds --------------------------------------------------------------------


def blocks(text: str) -> list[str]:
    """Code blocks of shell lines, fenced and indented, dedented."""
    found = [match[3] for match in FENCE.finditer(text) if match[2] in ("", "bash", "sh")]
    found += [match[1] for match in INDENTED.finditer(FENCE.sub("", text))]
    return [re.sub(r"^ +", "", block, flags=re.M) for block in found]


def prose(text: str) -> str:
    return FENCE.sub("", text)


def inline(text: str) -> list[str]:
    """What stands in backticks outside of code blocks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(text))


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(text)))


def commands(text: str) -> Iterator[list[str]]:
    """Words of every command line, with the page's own variables put in."""
    variables = {"RIVER_LLM_BENCHMARK_DATA": "data"}
    lines = "\n".join(blocks(text)).replace("\\\n", " ").splitlines()
    # Of the commands in running text only those of this project.
    lines += [code for code in inline(text) if re.match(r"(python \S+\.py|make [a-z])", code)]
    joined: list[str] = []
    for line in lines:
        # A quote may go on over several lines.
        if joined and joined[-1].count('"') % 2:
            joined[-1] += " " + line
        else:
            joined.append(line)
    for line in joined:
        filled = re.sub(r"\$(\w+)", lambda m: variables.get(m[1], m[0]), line)
        words = shlex.split(filled, comments=True)
        if len(words) == 1 and re.match(r"[A-Z]+=", words[0]):
            name, _, value = words[0].partition("=")
            variables[name] = value
        elif words:
            yield words


# --- what is wrong with it ----------------------------------------------------------------


@cache
def files() -> tuple[str, ...]:
    """Every file and folder of the sources, as paths from the root."""
    tops = [path for path in ROOT.iterdir() if not path.name.startswith((".venv", ".git"))]
    skipped = {"results", "build"}
    below = [p for top in tops if top.is_dir() and top.name not in skipped for p in top.rglob("*")]
    return tuple(path.relative_to(ROOT).as_posix() for path in [*tops, *below])


@cache
def first_names() -> frozenset[str]:
    """Names with which a path of this repository may begin, from its root or the package's."""
    places = (ROOT, ROOT / "src/river_llm", ROOT / "conf")
    return frozenset(path.name for place in places for path in place.iterdir() if path.is_dir())


def looks_like_a_path(code: str) -> bool:
    if (
        PLACEHOLDER.search(code)
        or MADE_UP.search(code)
        or not re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", code)
    ):
        return False
    if code.startswith("results/") or re.match(r"\.venv|~", code):
        return False
    if "/" not in code.rstrip("/"):
        return code.endswith((".py", ".cpp", ".hpp")) or code.rstrip("/") in first_names()
    return code.endswith(SUFFIXES) or code.partition("/")[0] in first_names()


def exists(code: str) -> bool:
    """Whether a path, or the end of one, is there."""
    pattern = re.escape(code.rstrip("/")).replace(r"\*", "[^/]*")
    return any(re.search(rf"(?:^|/){pattern}$", path) for path in files())


def faults_of_paths(page: Path, text: str) -> list[str]:
    targets = [link.partition("#")[0] for link in links(text) if "://" not in link]
    found = [f"link {t}" for t in targets if t and not (page.parent / t).exists()]
    return found + [f"path {c}" for c in inline(text) if looks_like_a_path(c) and not exists(c)]


def targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))


def compose(script: str, arguments: Sequence[str]) -> None:
    """Composes the settings that a command line gives.

    Raises:
        UserError: settings that the script would refuse.
    """
    given = [a for a in arguments if re.match(r"[+~]*[a-z_./]+=", a)]
    own = [a for a in given if not re.match(r"hydra[./]", a)]
    if script in ("scripts/bench_decode.py", "scripts/profile_decode.py"):
        parse_bench(complete(composed(own, "bench_decode")))
    elif script == "scripts/reproduce_table2.py":
        compose("run.py", ["-m", *load_profile(arguments[0]).overrides(own)])
    elif "-m" in arguments:
        for cell in expand(parse_request(own).grid):
            load_config(cell)
    elif script != "scripts/table.py":
        load_config(own)


def faults_of_command(words: Sequence[str]) -> list[str]:
    """What a command names that is not there; commands of others name nothing of ours."""
    if MADE_UP.search(" ".join(words)):
        return []
    if all(re.match(r"[a-z_.]+=", word) for word in words):
        # A list of settings that belongs behind `python run.py`.
        words = ["python", "run.py", *words]
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    if words[:1] == ["make"]:
        goals = [word for word in words[1:] if "=" not in word]
        found = [f"make {goal}" for goal in goals if goal not in targets()]
        extra = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        if not found and "reproduce-table2" in goals and "PROFILE" in extra:
            more = [
                *shlex.split(extra.get("ARGS", "")),
                *([f"limit={n}"] if (n := extra.get("LIMIT")) else []),
            ]
            return faults_of_command(
                ["python", "scripts/reproduce_table2.py", extra["PROFILE"], *more]
            )
        return found
    if words[:3] == ["python", "-m", "pytest"]:
        return [f"tests {w}" for w in words[3:] if w.startswith("tests/") and not exists(w)]
    if words[:1] != ["python"] or len(words) < 2 or not words[1].endswith(".py"):
        return []
    if not (ROOT / words[1]).is_file():
        return [f"script {words[1]}"]
    try:
        compose(words[1], words[2:])
    except UserError as error:
        return [f"{' '.join(words)}: {error}"]
    return []


# --- the pages ----------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_exist(page: Path):
    assert faults_of_paths(page, page.read_text("utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_scripts_targets_and_settings_that_exist(page: Path):
    lines = list(commands(page.read_text("utf-8")))
    assert [fault for words in lines for fault in faults_of_command(words)] == []


def test_the_pages_are_really_read():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert ["make", "demo"] in list(commands(readme))
    assert sum(words[:2] == ["python", "run.py"] for words in commands(readme)) >= 10
    seen = [code for page in PAGES for code in inline(page.read_text("utf-8"))]
    assert sum(looks_like_a_path(code) for code in seen) >= 100


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("see [here](docs/no_such.md)", "link docs/no_such.md"),
        ("see `docs/no_such.md`", "path docs/no_such.md"),
        ("see `evalution/traffic.py`", "path evalution/traffic.py"),
        ("see `traffik.py`", "path traffik.py"),
        ("see `tests/no_such/`", "path tests/no_such/"),
        ("all of `conf/nosuch/*.yaml`", "path conf/nosuch/*.yaml"),
    ],
)
def test_a_path_that_is_not_there_is_found(text: str, fault: str):
    assert faults_of_paths(ROOT / "README.md", text) == [fault]


@pytest.mark.parametrize(
    "text",
    [
        "[a](https://example.org/x) [b](docs/methods.md#river) [c](#here)",
        "`results/runs/<exp>/x.md` `conf/criterion/NAME.yaml` `results/table2/` `meta-llama/Llama`",
        "`evaluation/traffic.py` `decoding/` `conf/method/*.yaml` `samples.jsonl` `mask.py`",
    ],
)
def test_what_is_there_or_a_placeholder_is_no_fault(text: str):
    assert faults_of_paths(ROOT / "README.md", text) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("python scripts/no_such.py", "script scripts/no_such.py"),
        ("make no-such", "make no-such"),
        ("make reproduce-table2 PROFILE=nosuch", "unknown profile 'nosuch'"),
        ('make reproduce-table2 PROFILE=embedded ARGS="model=nosuch"', "unknown model 'nosuch'"),
        ("python -m pytest tests/test_no_such.py", "tests tests/test_no_such.py"),
        ("python run.py exp=gsm8k criterion.tua=0.7", "unknown key criterion.tua"),
        ("python run.py -m sweep=nosuch", "unknown sweep 'nosuch'"),
        ("python run.py -m method=river,nosuch", "unknown method 'nosuch'"),
        ("python scripts/bench_decode.py step=3", "unknown key step"),
        ("python scripts/analyze_depth.py exp=nosuch --tokens 4", "unknown exp 'nosuch'"),
        ('C="exp=nosuch"\nOMP_NUM_THREADS=1 python run.py $C', "unknown exp 'nosuch'"),
        ("method=static_first", "method.k has no default"),
        ("python run.py method=river \\\n  limit=-1", "limit=-1 is too small"),
    ],
)
def test_a_command_that_would_be_refused_is_found(line: str, fault: str):
    lines = list(commands(f"```bash\n{line}\n```\n"))
    (found,) = [f for words in lines for f in faults_of_command(words)]
    assert fault in found


# --- the citation file --------------------------------------------------------------------


def test_the_citation_file_names_software_and_paper():
    content = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert content["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "type"} <= set(content)
    assert content["type"] == "software"
    assert content["version"] == river_llm.__version__
    assert content["license"] == "Apache-2.0"
    assert content["authors"] == [{"name": "river-llm contributors"}]
    paper = content["preferred-citation"]
    assert {"type", "title", "authors"} <= set(paper)
    assert "doi" not in paper
    assert [a["family-names"] for a in paper["authors"]] == ["Shen", "Zou"]
    assert "2604.18396" in paper["url"]


def test_the_changelog_begins_with_this_version():
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert headings[0] == river_llm.__version__
