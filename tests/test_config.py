"""Every configuration composes, every mistake is told in one line, and the identity of a run."""

from __future__ import annotations

import functools
import itertools
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from river_llm import composition
from river_llm.composition import CONF, at_most, load_config
from river_llm.config import (
    AutoConfig,
    FixedConfig,
    FullQuantConfig,
    HqqInt4Config,
    NeverConfig,
    NoExitConfig,
    NoLoggerConfig,
    NoQuantConfig,
    ReplayConfig,
    RiverConfig,
    RtnInt4Config,
    RtnInt8Config,
    RunConfig,
    SimilarityConfig,
    WandbConfig,
    identity,
    parse,
)
from river_llm.errors import UserError

# Settings that have no default, by option.
REQUIRED = {
    "fixed": ["criterion.depth=3"],
    "replay": ["criterion.from_run=results/runs/x"],
    "static_first": ["method.k=3"],
    "static_last": ["method.k=3"],
    "static_ranked": ["method.k=3"],
    "random": ["model.shape=phi4_mini"],
}

NAMES = {"random": "random-phi4_mini"}
"""Options whose name holds a setting."""
METHODS = [
    "full_quant",
    "mask",
    "mono_decreasing",
    "no_exit",
    "quant_decode",
    "recompute",
    "river",
    "river_shuffled",
    "state_propagation",
    "static_first",
    "static_last",
    "static_ranked",
]


def options(group: str) -> list[str]:
    """Names of the files of a group, read from the folder and not from a list that may age."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def refusal(*overrides: str) -> str:
    """The message with which overrides are refused; it has one line."""
    with pytest.raises(UserError) as caught:
        load_config(overrides)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


# --- every file composes ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exp", "method"), list(itertools.product(options("exp"), options("method")))
)
def test_every_exp_composes_with_every_method(exp: str, method: str):
    config = load_config([f"exp={exp}", f"method={method}", *REQUIRED.get(method, [])])
    assert (config.exp.name, config.method.name) == (exp, method)


@pytest.mark.parametrize("name", options("criterion"))
def test_every_criterion_composes(name: str):
    config = load_config([f"criterion={name}", *REQUIRED.get(name, [])])
    assert config.criterion.name == name


@pytest.mark.parametrize("name", options("quant"))
def test_every_quantizer_composes(name: str):
    assert load_config([f"quant={name}"]).quant.name == name


@pytest.mark.parametrize("name", options("model"))
def test_every_model_composes(name: str):
    config = load_config([f"model={name}", *REQUIRED.get(name, [])])
    assert config.model.name == NAMES.get(name, name)


@pytest.mark.parametrize("name", options("engine"))
def test_every_engine_composes(name: str):
    assert load_config([f"engine={name}"]).engine.name == name


@pytest.mark.parametrize("name", options("logger"))
def test_every_logger_composes(name: str):
    assert load_config([f"logger={name}"]).logger.name == name


def test_no_group_is_left_out_above():
    groups = {path.parent.name for path in CONF.rglob("*.yaml")} - {CONF.name}
    # Of sweeps, not of a run; profiles are no group of Hydra's.
    groups -= {"sweep", "sweeper", "profile"}
    assert groups == {"exp", "method", "criterion", "quant", "model", "engine", "logger"}
    assert min(len(options(group)) for group in groups) > 0


@pytest.mark.parametrize("path", sorted(CONF.rglob("*.yaml")), ids=lambda path: path.stem)
def test_an_option_is_called_like_its_file(path: Path):
    if path.parent.name == "sweep":
        assert composition.composed([f"sweep={path.stem}"]).sweep.name == path.stem
    elif path.parent not in (CONF, CONF / "hydra" / "sweeper", CONF / "profile"):
        group, name = path.parent.name, path.stem
        config = load_config([f"{group}={name}", *REQUIRED.get(name, [])])
        assert getattr(config, group).name == NAMES.get(name, name)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("embedded", "smollm2_135m"),
        ("org/Tiny-LM", "Tiny-LM"),
        ("'/ck/run 3/'", "run_3"),
        ("../up", "up"),
    ],
)
def test_another_model_is_not_filed_under_the_default_ones_name(path: str, name: str):
    assert load_config([f"model.path={path}"]).model.name == name
    assert load_config([f"model.path={path}", "model.name=mine"]).model.name == "mine"


def test_defaults_are_those_that_the_documents_name():
    config = load_config([])
    assert (config.exp.name, config.model.name) == ("gsm_mini", "smollm2_135m")
    assert config.method == RiverConfig(prefill="sequence", pool="last")
    assert config.criterion == SimilarityConfig(tau=0.5, min_depth=1, max_depth=None)
    assert config.quant == HqqInt4Config(group_size=64)
    assert config.engine == AutoConfig(threads=None)
    assert (config.model.path, config.model.dtype) == ("embedded", "bf16")
    assert config.exp.limit is None
    assert not config.exp.allow_code_execution
    assert not config.resume.force
    assert (config.output.dir, config.seed) == ("results", 0)
    assert config.logger == WandbConfig(mode="auto", project="river-llm", entity=None, tags=())


@pytest.mark.parametrize(
    ("exp", "fewshot", "budget"),
    [
        ("gsm8k", 8, 256),
        ("math", 0, 512),
        ("humaneval", 0, 512),
        ("gsm_mini", 0, 256),
        ("math_mini", 0, 512),
        ("jsonl", 0, 256),
    ],
)
def test_each_exp_has_its_exemplars_and_budget(exp: str, fewshot: int, budget: int):
    config = load_config([f"exp={exp}"])
    assert (config.exp.fewshot, config.exp.max_new_tokens) == (fewshot, budget)


def test_yaml_defaults_agree_with_the_schema():
    # A key that is deleted on the command line falls back to the schema: one default, not two.
    for group, kinds in {
        "method": (NoExitConfig, FullQuantConfig, RiverConfig),
        "criterion": (SimilarityConfig, NeverConfig),
        "quant": (HqqInt4Config, RtnInt4Config, RtnInt8Config, NoQuantConfig),
        "logger": (WandbConfig, NoLoggerConfig),
    }.items():
        for kind in kinds:
            name = kind().name
            assert getattr(load_config([f"{group}={name}"]), group) == kind()


# --- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("exp", ["gsm8k", "gsm_mini", "humaneval", "jsonl", "math", "math_mini"]),
        ("method", METHODS),
        ("criterion", ["confidence", "fixed", "never", "replay", "similarity"]),
        (
            "model",
            [
                "llama3.1_8b",
                "llama3.2_1b",
                "ministral3_8b",
                "phi4_mini",
                "random",
                "smollm2_135m",
            ],
        ),
        ("quant", ["hqq_int4", "none", "rtn_int4", "rtn_int8"]),
        ("engine", ["auto", "compiled", "cuda_graphs", "eager"]),
    ],
)
def test_an_unknown_option_lists_the_known_ones(group: str, names: list[str]):
    message = refusal(f"{group}=nosuch")
    assert "'nosuch'" in message
    assert f"choose one of {', '.join(names)}" in message


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("lmit=5", "lmit"),
        ("+lmit=5", "lmit"),
        ("++lmit=5", "lmit"),
        ("criterion.tua=0.7", "criterion.tua"),
        ("+criterion.tua=0.7", "criterion.tua"),
        ("+exp.max_tokens=9", "exp.max_tokens"),
        ("+exp.extra.deep.deeper=1", "exp.extra"),
        ("+extra.deep.deeper=1", "extra"),
        ("+data.pth=x.jsonl", "data.pth"),
        ("+model.name_or_path=x", "model.name_or_path"),
        ("+output.folder=x", "output.folder"),
        ("+resume.froce=true", "resume.froce"),
        ("+speedup.warmup=1", "speedup.warmup"),
        ("+fidelity.samples=1", "fidelity.samples"),
        ("+engine.compile=true", "engine.compile"),
        ("+quant.bits=3", "quant.bits"),
        ("+limits.limit=1", "limits"),
    ],
)
def test_an_unknown_key_is_refused(override: str, key: str):
    assert f"unknown key {key}:" in refusal(override)


@pytest.mark.parametrize(
    "overrides",
    [
        ["method=no_exit", "+method.prefill=backbone"],
        ["method=full_quant", "+method.pool=mean"],
        ["criterion=fixed", "criterion.depth=2", "+criterion.tau=0.5"],
        ["criterion=never", "+criterion.depth=2"],
        ["quant=none", "+quant.group_size=64"],
    ],
)
def test_a_setting_of_another_option_is_an_unknown_key(overrides: list[str]):
    key = overrides[-1].removeprefix("+").partition("=")[0]
    assert f"unknown key {key}:" in refusal(*overrides)


def test_the_refusal_of_an_added_key_lists_the_known_ones():
    message = refusal("+criterion.tua=0.7")
    for known in ("criterion.tau", "criterion.min_depth", "criterion.max_depth"):
        assert known in message


@pytest.mark.parametrize(
    ("override", "value", "word"),
    [
        # not a number
        ("criterion.tau=abc", "'abc'", "number"),
        ("criterion.tau=true", "True", "number"),
        ("criterion.tau=null", "None", "number"),
        ("criterion.tau=[0.5]", "[0.5]", "number"),
        ("criterion.tau=", "''", "number"),
        ("criterion.tau=\"'0.5'\"", "0.5", "number"),
        # not finite
        ("criterion.tau=nan", "nan", "finite"),
        ("criterion.tau=NaN", "nan", "finite"),
        ("criterion.tau=inf", "inf", "finite"),
        ("criterion.tau=-inf", "-inf", "finite"),
        ("+exp.timeout_s=nan", "nan", "finite"),
        # not a whole number
        ("limit=2.5", "2.5", "whole number"),
        ("limit=1e2", "100.0", "whole number"),
        ("limit=None", "'None'", "whole number"),
        ("limit=all", "'all'", "whole number"),
        ("limit=true", "True", "whole number"),
        ("limit=nan", "nan", "whole number"),
        ("seed=0.5", "0.5", "whole number"),
        ("exp.max_new_tokens=null", "None", "whole number"),
        ("exp.max_new_tokens=64.0", "64.0", "whole number"),
        ("criterion.max_depth=false", "False", "whole number"),
        # not text: Hydra turns it into a number
        ("model.path=1e3", "1000.0", "quote"),
        ("model.path=3_1", "31", "quote"),
        ("data.path=7", "7", "quote"),
        ("output.dir=null", "None", "text"),
        # not a yes or no
        ("resume.force=1", "1", "true or false"),
        ("resume.force=maybe", "'maybe'", "true or false"),
        # not one of a few words
        ("model.dtype=int8", "'int8'", "bf16, fp16, fp32"),
        ("model.dtype=[bf16]", "['bf16']", "bf16, fp16, fp32"),
        ("method.prefill=layer", "'layer'", "sequence, backbone"),
        ("method.pool=true", "True", "last, mean"),
        ("model.chat=null", "None", "auto, always, never"),
        ("logger.mode=disabled", "'disabled'", "auto, online, offline"),
        ("logger.tags=a", "'a'", "list"),
        ("logger.project=a/b", "'a/b'", "none of them"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(override: str, value: str, word: str):
    message = refusal(override)
    key = override.removeprefix("+").partition("=")[0].replace("limit", "exp.limit", 1)
    assert key in message
    assert value in message
    assert word in message


@pytest.mark.parametrize(
    ("override", "bound"),
    [
        ("limit=-1", "0"),
        ("logger.table_rows=-1", "0"),
        ("exp.limit=-1", "0"),
        ("exp.max_new_tokens=0", "1"),
        ("exp.fewshot=-1", "0"),
        ("quant.group_size=0", "1"),
        ("speedup.prompts=-1", "0"),
        ("speedup.tokens=1", "2"),
        ("speedup.rounds=0", "1"),
        ("fidelity.limit=-1", "0"),
        ("fidelity.tokens=0", "1"),
    ],
)
def test_a_number_below_its_range_is_refused(override: str, bound: str):
    message = refusal(override)
    assert override.removeprefix("exp.") in message
    assert f"give {bound} or more" in message


@pytest.mark.parametrize("seconds", ["0", "-1", "0.0"])
def test_a_time_limit_must_be_above_zero(seconds: str):
    message = refusal("exp=humaneval", f"exp.timeout_s={seconds}")
    assert f"exp.timeout_s={float(seconds)}" in message


@pytest.mark.parametrize("seconds", ["0", "-1"])
def test_a_logger_has_some_time(seconds: str):
    message = refusal(f"logger.timeout_s={seconds}")
    assert message == f"logger.timeout_s={float(seconds)} must be above 0 seconds"


@pytest.mark.parametrize("group", ["data", "speedup", "fidelity", "resume", "output"])
@pytest.mark.parametrize("value", ["null", "3"])
def test_a_group_that_is_no_group_is_refused(group: str, value: str):
    assert f"{group} must be a group of settings" in refusal(f"{group}={value}")


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["criterion=fixed"], "criterion.depth"),
        (["criterion=replay"], "criterion.from_run"),
        (["criterion.tau=???"], "criterion.tau"),
        (["~exp.max_new_tokens"], "exp.max_new_tokens"),
        (["~criterion"], "criterion"),
    ],
)
def test_a_missing_value_says_how_to_give_it(overrides: list[str], key: str):
    assert f"give {key}=..." in refusal(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["method.name=rivre"],
        ["method.name=[river]"],
        ["data=[1]"],
        ["criterion.name={a: 1}"],
        ["exp=null"],
        ["criterion=null"],
        ["logger=null"],
        ["=5"],
        ["foo"],
        ["criterion.tau=0.5,0.7"],
        ["criterion.tau=${nosuch}"],
        ["hydra/launcher=nosuch"],
        ["~nosuch"],
        ["exp@somewhere=math"],
    ],
)
def test_whatever_cannot_be_composed_is_told_in_one_line(overrides: list[str]):
    refusal(*overrides)


# --- limit --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "limit"),
    [
        ([], None),
        (["limit=null"], None),
        (["limit=5"], 5),
        (["exp.limit=5"], 5),
        (["limit=5", "exp.limit=5"], 5),
        (["limit=null", "exp.limit=3"], 3),
    ],
)
@pytest.mark.parametrize("exp", options("exp"))
def test_limit_and_exp_limit_are_one_setting(exp: str, overrides: list[str], limit: int | None):
    assert load_config([f"exp={exp}", *overrides]).exp.limit == limit


@pytest.mark.parametrize("other", ["3", "null"])
def test_limit_and_exp_limit_that_disagree_are_refused(other: str):
    message = refusal("limit=5", f"exp.limit={other}")
    assert "limit=5" in message
    assert "exp.limit" in message


# --- values that need care ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ('model.path="/ck/step=300"', "/ck/step=300"),
        ('model.path="1e3"', "1e3"),
        ("model.path=org/tiny-lm", "org/tiny-lm"),
        ("model.path='/a folder/with, commas'", "/a folder/with, commas"),
    ],
)
def test_a_path_reaches_the_run_as_it_was_quoted(override: str, path: str):
    assert load_config([override]).model.path == path


@pytest.mark.parametrize(("text", "tau"), [("1", 1.0), ("7e-1", 0.7), ("-1", -1.0), ("0", 0.0)])
def test_whole_numbers_serve_where_any_number_does(text: str, tau: float):
    criterion = load_config([f"criterion.tau={text}"]).criterion
    assert isinstance(criterion, SimilarityConfig)
    assert type(criterion.tau) is float
    assert criterion.tau == tau


def test_one_composition_leaves_nothing_for_the_next():
    load_config(["exp=math", "limit=7", "criterion.tau=0.9"])
    refusal("exp=nosuch")
    assert load_config([]) == load_config(["exp=gsm_mini", "limit=null", "criterion.tau=0.5"])


def plain(**groups: Any) -> dict[str, Any]:
    """A complete configuration as plain data, with some groups replaced."""
    return {
        "exp": {"name": "gsm_mini", "max_new_tokens": 8},
        "model": {"name": "m", "path": "p"},
        "method": {"name": "river"},
        "criterion": {"name": "similarity"},
        "quant": {"name": "none"},
        **groups,
    }


@pytest.mark.parametrize("tau", [math.nan, math.inf, -math.inf])
def test_nan_is_refused_in_plain_data_too(tau: float):
    with pytest.raises(UserError, match=r"criterion\.tau=.* is not a finite number"):
        parse(plain(criterion={"name": "similarity", "tau": tau}))


def test_plain_data_is_not_changed_by_reading_it():
    values = plain(limit=None)
    parse(values)
    assert values == plain(limit=None)


# --- identity -----------------------------------------------------------------------------

LAYERS = 30
RESOLVED = {"data": "d0", "first_prompt": "p0", "weights": "w0", "device": "cpu", "chat": True}
FIXED = ["criterion=fixed", "criterion.depth=3"]
BACKBONE = ["method.prefill=backbone"]
ZERO_SHOT = ["exp=gsm8k", "exp.fewshot=0"]


@functools.cache
def composed(*overrides: str) -> RunConfig:
    return load_config(overrides)


def key(overrides: list[str], resolved: dict[str, Any] | None = None) -> str:
    return identity(composed(*overrides), layers=LAYERS, resolved=resolved or RESOLVED)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # settings that the method does not use
        (["method=no_exit"], ["method=no_exit", "criterion.tau=0.9"]),
        (["method=no_exit"], ["method=no_exit", *FIXED]),
        (["method=no_exit"], ["method=no_exit", "criterion=never"]),
        (["method=no_exit"], ["method=no_exit", "quant=rtn_int4"]),
        (["method=no_exit"], ["method=no_exit", "quant.group_size=32"]),
        (
            ["method=no_exit", "quant.head=int4"],
            ["quant=rtn_int8", "method=no_exit", "quant.head=int4"],
        ),
        (["method=full_quant"], ["method=full_quant", "criterion.tau=0.9"]),
        (["method=full_quant"], ["method=full_quant", "criterion.min_depth=4"]),
        # one meaning, two ways to write it
        ([], ["criterion.max_depth=30"]),
        ([], ["criterion.max_depth=99"]),
        (["criterion.tau=1"], ["criterion.tau=1.0"]),
        (["criterion.tau=0.5"], ["criterion.tau=5e-1"]),
        ([], ["~criterion.tau"]),
        (
            ["exp=gsm8k", "exp.fewshot=0"],
            ["exp=gsm8k", "exp.fewshot=0", "exp.fewshot_source=train"],
        ),
        # pooling is for a decision on the prompt, which these do not make
        (BACKBONE, [*BACKBONE, "method.pool=mean"]),
        (FIXED, [*FIXED, "method.pool=mean"]),
        (["criterion=never"], ["criterion=never", "method.pool=mean"]),
        # how much, where to, what is measured beside it, and what is allowed
        ([], ["limit=5"]),
        ([], ["exp.limit=5"]),
        ([], ["output.dir=elsewhere"]),
        ([], ["resume.force=true"]),
        ([], ["logger=none"]),
        ([], ["logger.mode=offline", "logger.project=other", "logger.tags=[a]"]),
        ([], ["speedup.prompts=0"]),
        ([], ["speedup.tokens=16", "speedup.rounds=3"]),
        ([], ["fidelity.limit=0"]),
        ([], ["fidelity.tokens=16"]),
        (["exp=humaneval"], ["exp=humaneval", "exp.allow_code_execution=true"]),
        (["exp=humaneval"], ["exp=humaneval", "exp.sandbox=process"]),
        # known by what it holds (`resolved`), not by where it lies
        (["exp=gsm8k"], ["exp=gsm8k", "data.path=copy.jsonl"]),
        ([], ["model.path=elsewhere", "model.name=smollm2_135m"]),
        ([], ["model.device=cpu"]),
        ([], ["model.chat=always"]),
        (
            ["criterion=replay", "criterion.from_run=a"],
            ["criterion=replay", "criterion.from_run=b"],
        ),
    ],
)
def test_equal_computations_have_equal_identity(one: list[str], other: list[str]):
    assert one != other
    assert key(one) == key(other)


DIFFERENT: list[list[str]] = [
    [],
    ["exp=gsm8k"],
    ["exp=gsm8k", "exp.fewshot=4"],
    ["exp=gsm8k", "exp.fewshot=0"],
    ["exp=gsm8k", "exp.fewshot_source=train"],
    ["exp=math"],
    ["exp=humaneval"],
    ["exp.max_new_tokens=255"],
    ["model=llama3.2_1b"],
    ["model=llama3.1_8b"],
    ["model.dtype=fp32"],
    ["model.dtype=fp16"],
    ["method=no_exit"],
    ["method=full_quant"],
    ["method=full_quant", "quant=rtn_int4"],
    ["method=full_quant", "quant.group_size=32"],
    BACKBONE,
    ["method.pool=mean"],
    ["criterion.tau=0.7"],
    ["criterion.tau=0.7000001"],
    [*BACKBONE, "criterion.tau=0.7"],
    ["criterion.min_depth=2"],
    ["criterion.max_depth=29"],
    ["criterion.max_depth=5"],
    ["criterion=never"],
    FIXED,
    [*FIXED, *BACKBONE],
    ["criterion=fixed", "criterion.depth=4"],
    ["criterion=replay", "criterion.from_run=a"],
    ["quant=rtn_int4"],
    ["quant=none"],
    ["quant.group_size=32"],
    ["quant.head=int8"],
    ["quant.head=int4"],
    ["method=no_exit", "quant.head=int8"],
    ["method=no_exit", "quant.head=int4"],
    ["method=full_quant", "quant.head=int8"],
]


def test_whatever_changes_the_text_changes_the_identity():
    found: dict[str, list[str]] = {}
    for overrides in DIFFERENT:
        digits = key(overrides)
        assert digits not in found, f"{overrides} and {found[digits]} share {digits}"
        found[digits] = overrides
    assert len(found) == len(DIFFERENT)


@pytest.mark.parametrize(
    "changed",
    [
        {"data": "d1"},
        {"first_prompt": "p1"},
        {"weights": "w1"},
        {"device": "cuda"},
        {"chat": False},
        {"depths": "r0"},
    ],
)
def test_what_settings_came_to_changes_the_identity(changed: dict[str, Any]):
    assert key([], {**RESOLVED, **changed}) != key([])


def test_max_depth_counts_by_the_models_own_depth():
    config, other = composed("criterion.max_depth=20"), composed()

    def equal(layers: int) -> bool:
        return identity(config, layers=layers, resolved=RESOLVED) == identity(
            other, layers=layers, resolved=RESOLVED
        )

    assert [equal(layers) for layers in (16, 20, 21, 30)] == [True, True, False, False]


@pytest.mark.parametrize("overrides", DIFFERENT[:4])
def test_the_identity_is_12_hexadecimal_digits(overrides: list[str]):
    digits = key(overrides)
    assert len(digits) == 12
    assert set(digits) <= set("0123456789abcdef")
    assert digits == key(overrides)


def test_the_order_of_overrides_changes_nothing():
    pieces = ["exp=math", "criterion.tau=0.7", "quant.group_size=32"]
    assert len({key(list(order)) for order in itertools.permutations(pieces)}) == 1


@pytest.mark.parametrize("method", ["no_exit", "full_quant", "river"])
def test_every_run_is_compared_with_the_same_no_exit(method: str):
    reference = composed(f"method={method}", "criterion.tau=0.8").as_no_exit()
    assert isinstance(reference.method, NoExitConfig)
    assert identity(reference, layers=LAYERS, resolved=RESOLVED) == key(["method=no_exit"])
    quantized = composed(f"method={method}", "quant.head=int8").as_no_exit()
    assert identity(quantized, layers=LAYERS, resolved=RESOLVED) == key(
        ["method=no_exit", "quant.head=int8"]
    )


def test_a_configuration_survives_its_own_record():
    for overrides in [*DIFFERENT, ["limit=5"], ["model.path=elsewhere"]]:
        config = composed(*overrides)
        assert parse(json.loads(json.dumps(asdict(config)))) == config


def test_criteria_are_typed_by_their_option():
    assert load_config(FIXED).criterion == FixedConfig(depth=3)
    assert load_config(["criterion=replay", "criterion.from_run=a"]).criterion == ReplayConfig(
        from_run="a"
    )


# --- names that become folders ------------------------------------------------------------


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "", ".", "..", "/abs", "a\nb"])
def test_a_model_name_that_is_no_folder_name_is_refused(name: str):
    with pytest.raises(UserError, match=r"model\.name"):
        parse(plain(model={"name": name, "path": "p"}))


def test_a_key_added_below_hydra_is_refused():
    assert "hydra.lmit" in refusal("+hydra.lmit=5")


def test_an_unquoted_equals_sign_is_explained():
    assert 'model.path="/ck/step=300"' in refusal("model.path=/ck/step=300")


@pytest.mark.parametrize(
    ("overrides", "prompts", "texts"),
    [
        ([], 4, 8),
        (["limit=3"], 3, 3),
        (["exp.limit=6"], 4, 6),
        (["limit=100"], 4, 8),
        # No free text: the measurements keep their own size.
        (["limit=0"], 4, 8),
        (["limit=2", "fidelity.limit=5"], 2, 5),
    ],
)
def test_measurements_are_no_larger_than_a_small_limit(overrides, prompts, texts):
    config = load_config(overrides)
    assert (config.speedup.prompts, config.fidelity.limit) == (prompts, texts)


@pytest.mark.parametrize(
    ("limits", "least"), [((), 4), ((None,), 4), ((9, 2), 2), ((0, -1, True, "1", 1.5), 4)]
)
def test_what_is_no_limit_does_not_count_as_one(limits, least):
    assert at_most(4, *limits) == least
