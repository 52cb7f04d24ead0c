"""Typed settings of a run, the check of a composed Hydra configuration, and the run identity.

Every group of `conf/` has one dataclass here; groups with several options (method, criterion,
quant, engine) have one dataclass per option, so that a setting exists only where it is used.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import operator
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal

from river_llm.errors import UserError

SCHEMA = 4
"""Raised when a default or a meaning changes, so that old runs are not taken for new ones."""


@dataclass(frozen=True, kw_only=True)
class ColumnsConfig:
    """Columns of a file of the user's own; `id` null: rows are numbered."""

    prompt: str
    answer: str
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExpConfig:
    """Which benchmark, how it is prompted, and how much of it is run.

    `columns` and `grader` are for a task of the user's own, read from `data.path`.
    """

    name: str
    max_new_tokens: int
    fewshot: int = 0
    fewshot_source: Literal["own", "train"] = "own"
    limit: int | None = None
    allow_code_execution: bool = False
    sandbox: Literal["auto", "bubblewrap", "namespaces", "process"] = "auto"
    timeout_s: float = 10.0
    columns: ColumnsConfig | None = None
    grader: Literal["gsm8k", "math", "exact"] | None = None


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Local data in place of the hub; null: the hub or the package.

    Each is a file (.jsonl, .jsonl.gz or .parquet), or a folder with one named after the task.
    """

    path: str | None = None
    fewshot_path: str | None = None


RANDOM = "random"
"""Value of `model.path` for random weights of a known shape."""

ShapeName = Literal[
    "tiny", "smollm2_135m", "llama3.2_1b", "llama3.1_8b", "phi4_mini", "ministral3_8b"
]
"""The shapes that random weights can have."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A hub id or a local folder; `path: embedded` is the model shipped as a package.

    `path: random` has seeded random weights of a given `shape` and no tokenizer; it can be timed,
    not evaluated. `base` is only a name that recipes may use as a path: the base checkpoint of an
    instruct model, or the model itself where no base was published.
    """

    name: str
    path: str
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    device: str = "auto"
    chat: Literal["auto", "always", "never"] = "auto"
    shape: ShapeName | None = None
    base: str | None = None


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """What every method says of itself beside its own settings."""

    needs_river: ClassVar[bool] = False
    """Whether any layer runs in the river."""

    @property
    def exits(self) -> bool:
        """Whether the exit criterion is asked."""
        return False

    @property
    def prompt_in(self) -> str:
        """Where the prompt runs: backbone, river, or sequence (one exit depth for all of it)."""
        return "backbone"


@dataclass(frozen=True, kw_only=True)
class NoExitConfig(MethodConfig):
    """Every layer of the backbone for every token."""

    name: Literal["no_exit"] = "no_exit"


@dataclass(frozen=True, kw_only=True)
class FullQuantConfig(MethodConfig):
    """Every layer of the river for every token, the prompt included."""

    needs_river: ClassVar[bool] = True
    name: Literal["full_quant"] = "full_quant"

    @property
    def prompt_in(self) -> str:
        return "river"


@dataclass(frozen=True, kw_only=True)
class RiverConfig(MethodConfig):
    """Backbone up to the exit depth, river from there on (paper, method section)."""

    needs_river: ClassVar[bool] = True
    name: Literal["river"] = "river"
    prefill: Literal["sequence", "backbone"] = "sequence"
    pool: Literal["last", "mean"] = "last"

    @property
    def exits(self) -> bool:
        return True

    @property
    def prompt_in(self) -> str:
        return self.prefill


@dataclass(frozen=True, kw_only=True)
class ExitingConfig(MethodConfig):
    """A method that leaves the backbone where the criterion says, prompt in the backbone."""

    @property
    def exits(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class MaskConfig(ExitingConfig):
    """Later tokens do not see the entries that an exit left out (D-LLM)."""

    name: Literal["mask"] = "mask"


@dataclass(frozen=True, kw_only=True)
class StatePropagationConfig(ExitingConfig):
    """Skipped layers get entries from the exit state (CALM)."""

    name: Literal["state_propagation"] = "state_propagation"


@dataclass(frozen=True, kw_only=True)
class RecomputeConfig(ExitingConfig):
    """Pending tokens run again with a later one (EE-LLM).

    With `max_pending` tokens, the present one included, a pass is a full one; null: blocks grow
    without bound, as released. `restart` says where pending tokens start: at the embedding, as
    released, or at the depth where they were left.
    """

    name: Literal["recompute"] = "recompute"
    max_pending: int | None = None
    restart: Literal["embedding", "exit"] = "embedding"


@dataclass(frozen=True, kw_only=True)
class MonoDecreasingConfig(MethodConfig):
    """The number of active layers never grows along the text (SkipDecode).

    `form: cap` clamps the criterion's depth to the previous token's. `form: schedule` goes
    linearly from `most` (null: all layers) to `fewest` over `length` decode steps; `place` says
    whether what is left beside `warm_up` bottom layers is spent at the top of the stack.
    """

    name: Literal["mono_decreasing"] = "mono_decreasing"
    form: Literal["cap", "schedule"] = "cap"
    most: int | None = None
    fewest: int = 1
    length: int = 256
    warm_up: int = 1
    place: Literal["exit_top", "skip_low"] = "skip_low"

    @property
    def exits(self) -> bool:
        return self.form == "cap"


@dataclass(frozen=True, kw_only=True)
class QuantDecodeConfig(MethodConfig):
    """Control: prompt in the backbone, every decode layer in the river."""

    needs_river: ClassVar[bool] = True
    name: Literal["quant_decode"] = "quant_decode"


@dataclass(frozen=True, kw_only=True)
class StaticConfig(MethodConfig):
    """Controls: k decode layers at 16 bits, the others in the river, no criterion."""

    needs_river: ClassVar[bool] = True
    k: int


@dataclass(frozen=True, kw_only=True)
class StaticFirstConfig(StaticConfig):
    """The first k layers."""

    name: Literal["static_first"] = "static_first"


@dataclass(frozen=True, kw_only=True)
class StaticLastConfig(StaticConfig):
    """The last k layers."""

    name: Literal["static_last"] = "static_last"


@dataclass(frozen=True, kw_only=True)
class StaticRankedConfig(StaticConfig):
    """The k layers that a calibration text ranks highest."""

    name: Literal["static_ranked"] = "static_ranked"


@dataclass(frozen=True, kw_only=True)
class RiverShuffledConfig(MethodConfig):
    """Control: a River run's own depths, permuted within each sample (needs criterion=replay)."""

    needs_river: ClassVar[bool] = True
    name: Literal["river_shuffled"] = "river_shuffled"

    @property
    def exits(self) -> bool:
        return True

    @property
    def prompt_in(self) -> str:
        return "sequence"


@dataclass(frozen=True, kw_only=True)
class SimilarityConfig:
    """Exit where the cosine of a block's input and output exceeds tau."""

    name: Literal["similarity"] = "similarity"
    tau: float = 0.5
    min_depth: int = 1
    max_depth: int | None = None


@dataclass(frozen=True, kw_only=True)
class ConfidenceConfig:
    """Exit where the head's largest probability on a block's output exceeds tau."""

    name: Literal["confidence"] = "confidence"
    tau: float = 0.5
    min_depth: int = 1
    max_depth: int | None = None


@dataclass(frozen=True, kw_only=True)
class FixedConfig:
    """The same planned depth for every step."""

    name: Literal["fixed"] = "fixed"
    depth: int


@dataclass(frozen=True, kw_only=True)
class NeverConfig:
    """No exit at all, planned: what `river` costs without a criterion."""

    name: Literal["never"] = "never"


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """The depths that an earlier run recorded, sample by sample and step by step."""

    name: Literal["replay"] = "replay"
    from_run: str


HeadBits = Literal["none", "int8", "int4"]


@dataclass(frozen=True, kw_only=True)
class QuantSettings:
    """What every quantizer of the river says beside its own settings.

    `head` is no part of the river: it quantizes the LM head of every arm, no_exit too, or of
    none (as in the paper).
    """

    head: HeadBits = "none"


@dataclass(frozen=True, kw_only=True)
class HqqInt4Config(QuantSettings):
    """4 bits, zero points by half-quadratic quantization (the paper's quantizer)."""

    name: Literal["hqq_int4"] = "hqq_int4"
    group_size: int = 64


@dataclass(frozen=True, kw_only=True)
class RtnInt4Config(QuantSettings):
    """4 bits, scale and zero from the group's minimum and maximum (round to nearest)."""

    name: Literal["rtn_int4"] = "rtn_int4"
    group_size: int = 64


@dataclass(frozen=True, kw_only=True)
class RtnInt8Config(QuantSettings):
    """8 bits, symmetric, one scale for each output channel (round to nearest); a control."""

    name: Literal["rtn_int8"] = "rtn_int8"


@dataclass(frozen=True, kw_only=True)
class NoQuantConfig(QuantSettings):
    """A river of copied 16- or 32-bit linears, for exactness tests."""

    name: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True)
class _EngineConfig:
    """What every engine is told; `threads` null: `OMP_NUM_THREADS`, else the physical cores."""

    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class EagerConfig(_EngineConfig):
    """Layers run one operator at a time."""

    name: Literal["eager"] = "eager"


@dataclass(frozen=True, kw_only=True)
class CompiledConfig(_EngineConfig):
    """Passes of a few tokens run in C++ that is compiled on this machine (CPU)."""

    name: Literal["compiled"] = "compiled"


@dataclass(frozen=True, kw_only=True)
class CudaGraphsConfig(_EngineConfig):
    """Passes of a few tokens are captured once as CUDA graphs and replayed (CUDA)."""

    name: Literal["cuda_graphs"] = "cuda_graphs"


@dataclass(frozen=True, kw_only=True)
class AutoConfig(_EngineConfig):
    """`cuda_graphs` on a CUDA device, else `compiled`, each where it can serve.

    Where it cannot, `eager`, which is said aloud.
    """

    name: Literal["auto"] = "auto"


@dataclass(frozen=True, kw_only=True)
class SpeedupConfig:
    """Size of the paired timing: prompts x tokens x rounds of A B B A; prompts 0: none.

    `vs_eager` and `vs_hf` time the arm beside two more references, each in the same size.
    """

    prompts: int = 4
    tokens: int = 48
    rounds: int = 1
    vs_eager: bool = False
    vs_hf: bool = False


@dataclass(frozen=True, kw_only=True)
class FidelityConfig:
    """Size of the comparison with no_exit's text; limit 0: none."""

    limit: int = 8
    tokens: int = 64


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """`peak` measures the method's peak memory in a process of its own."""

    peak: bool = False


@dataclass(frozen=True, kw_only=True)
class OffloadConfig:
    """Backbone layers with index `after` and above stay out of device memory; null: off.

    `after: auto` takes the smallest k that a share `coverage` of the decode steps of a warm-up did
    not go beyond. `on_miss` says what becomes of a token that wants a layer that is not there:
    `fetch` brings it, which costs time alone; `exit_at_k` ends its backbone at depth k, which
    changes the text.
    """

    after: int | str | None = None
    on_miss: Literal["fetch", "exit_at_k"] = "fetch"
    coverage: float = 0.95


@dataclass(frozen=True, kw_only=True)
class ResumeConfig:
    """`force` lets a run append to records that another commit wrote."""

    force: bool = False


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """Folder that holds `runs/`."""

    dir: str = "results"


@dataclass(frozen=True, kw_only=True)
class WandbConfig:
    """Records are mirrored to Weights & Biases when a run has ended.

    `mode: auto` is `WANDB_MODE` where set, else online where the wandb package finds a key, else
    offline. `group` null: the sweep's name. At most `table_rows` samples stand in the table;
    `timeout_s` bounds what logging one run may take.
    """

    name: Literal["wandb"] = "wandb"
    mode: Literal["auto", "online", "offline"] = "auto"
    project: str = "river-llm"
    entity: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    table_rows: int = 200
    timeout_s: float = 120.0


@dataclass(frozen=True, kw_only=True)
class NoLoggerConfig:
    """The records on disk are all there is."""

    name: Literal["none"] = "none"


Method = (
    NoExitConfig
    | FullQuantConfig
    | RiverConfig
    | MaskConfig
    | StatePropagationConfig
    | RecomputeConfig
    | MonoDecreasingConfig
    | QuantDecodeConfig
    | StaticFirstConfig
    | StaticLastConfig
    | StaticRankedConfig
    | RiverShuffledConfig
)
CriterionConfig = SimilarityConfig | ConfidenceConfig | FixedConfig | NeverConfig | ReplayConfig
ResolvedEngine = EagerConfig | CompiledConfig | CudaGraphsConfig
"""What an engine's settings come to on a machine."""
EngineConfig = ResolvedEngine | AutoConfig
QuantConfig = HqqInt4Config | RtnInt4Config | RtnInt8Config | NoQuantConfig
LoggerConfig = WandbConfig | NoLoggerConfig


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, fully typed. Built by :func:`parse`."""

    exp: ExpConfig
    model: ModelConfig
    method: Method
    criterion: CriterionConfig
    quant: QuantConfig
    engine: EngineConfig = field(default_factory=AutoConfig)
    data: DataConfig = field(default_factory=DataConfig)
    speedup: SpeedupConfig = field(default_factory=SpeedupConfig)
    fidelity: FidelityConfig = field(default_factory=FidelityConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    offload: OffloadConfig = field(default_factory=OffloadConfig)
    resume: ResumeConfig = field(default_factory=ResumeConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    logger: LoggerConfig = field(default_factory=WandbConfig)
    seed: int = 0

    def as_no_exit(self) -> RunConfig:
        """The same run without exits: what this run is compared with."""
        return replace(self, method=NoExitConfig(), offload=OffloadConfig())


def parse(composed: Mapping[str, Any]) -> RunConfig:
    """Checks a composed configuration and types it.

    Args:
        composed: plain nested dict (`OmegaConf.to_container(cfg, resolve=True)`). The top-level
            `limit` is a shorthand for `exp.limit`.

    Raises:
        UserError: a key that no schema knows, a missing or ill-typed value, NaN, a value out of
            range.
    """
    values = dict(composed)
    limit = values.pop("limit", None)
    config: RunConfig = read(RunConfig, values, "")
    if limit is not None and limit != config.exp.limit:
        raise UserError(
            f"limit={limit} and exp.limit={config.exp.limit} disagree: give one of them"
        )
    check_ranges(config)
    return config


def check_ranges(config: RunConfig) -> None:
    """Refuses what has the right type and is out of range.

    Raises:
        UserError: the value, and what to give.
    """

    def at_least(key: str, value: float | None, lowest: float) -> None:
        if value is not None and value < lowest:
            raise UserError(f"{key}={value} is too small: give {lowest:g} or more")

    for key, name in (("model.name", config.model.name), ("exp.name", config.exp.name)):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise UserError(
                f"{key}={name!r} names a folder of results: use letters, digits, dots, hyphens "
                "and underscores"
            )
    if (config.exp.columns is None) != (config.exp.grader is None):
        raise UserError("exp.columns and exp.grader belong together: use exp=jsonl, or neither")
    if config.model.path == RANDOM and config.model.shape is None:
        raise UserError(
            f"model.path={RANDOM} needs model.shape=: choose one of "
            f"{', '.join(typing.get_args(ShapeName))}"
        )
    if config.model.path != RANDOM and config.model.shape is not None:
        raise UserError(
            f"model.shape={config.model.shape} is for model.path={RANDOM}: "
            f"model.path={config.model.path} has a shape of its own"
        )
    at_least("limit", config.exp.limit, 0)
    at_least("exp.max_new_tokens", config.exp.max_new_tokens, 1)
    at_least("exp.fewshot", config.exp.fewshot, 0)
    if config.exp.timeout_s <= 0:
        raise UserError(f"exp.timeout_s={config.exp.timeout_s} must be above 0 seconds")
    at_least("speedup.prompts", config.speedup.prompts, 0)
    at_least("speedup.tokens", config.speedup.tokens, 2)
    at_least("speedup.rounds", config.speedup.rounds, 1)
    at_least("fidelity.limit", config.fidelity.limit, 0)
    at_least("fidelity.tokens", config.fidelity.tokens, 1)
    at_least("engine.threads", config.engine.threads, 1)
    if isinstance(config.quant, HqqInt4Config | RtnInt4Config):
        at_least("quant.group_size", config.quant.group_size, 1)
    _check_offload(config)
    if isinstance(config.logger, WandbConfig):
        at_least("logger.table_rows", config.logger.table_rows, 0)
        if config.logger.timeout_s <= 0:
            raise UserError(f"logger.timeout_s={config.logger.timeout_s} must be above 0 seconds")
        if not re.fullmatch(r"[^/\\#?%:]{1,128}", config.logger.project):
            raise UserError(
                f"logger.project={config.logger.project!r}: give 1 to 128 characters, none of "
                "them / \\ # ? % :"
            )


def _check_offload(config: RunConfig) -> None:
    offload, method = config.offload, config.method
    after = offload.after
    if not 0 < offload.coverage <= 1:
        raise UserError(f"offload.coverage={offload.coverage} is no share: give one in (0, 1]")
    if after is None:
        return
    if isinstance(after, str):
        if after != "auto":
            raise UserError(f"offload.after={after!r}: give a number of layers, auto or null")
    elif after < 0:
        raise UserError(f"offload.after={after} is too small: give 0 or more")
    if isinstance(method, FullQuantConfig) or not method.needs_river:
        raise UserError(
            f"offload.after={after}: method={method.name} has no backbone layers beside a river; "
            "use method=river or offload.after=null"
        )
    if not method.exits and (after == "auto" or offload.on_miss == "exit_at_k"):
        key = "after=auto" if after == "auto" else "on_miss=exit_at_k"
        raise UserError(
            f"offload.{key}: method={method.name} asks no exit criterion; give offload.after=k "
            "and offload.on_miss=fetch"
        )
    if offload.on_miss == "exit_at_k" and after == 0:
        raise UserError(
            "offload.after=0 with offload.on_miss=exit_at_k leaves no backbone layer to exit "
            "from: give 1 or more, or use method=full_quant"
        )


def read(kind: Any, value: Any, key: str) -> Any:
    """Turns a plain value into `kind`, or says in one line why it does not fit.

    Args:
        kind: a dataclass, a union of them told apart by `name`, an optional or plain type, a
            Literal, or a tuple of any length.
        value: plain data.
        key: its name in messages.

    Raises:
        UserError: what does not fit.
    """
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _read_union(kind, value, key)
    if is_dataclass(kind):
        return _read_dataclass(kind, value, key)
    if origin is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise UserError(f"{key}={value!r}: choose one of {', '.join(map(str, choices))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise UserError(f"{key}={value!r} must be a list")
        inner = typing.get_args(kind)[0]
        return tuple(read(inner, item, f"{key}[{n}]") for n, item in enumerate(value))
    return _read_scalar(kind, value, key)


def _read_union(kind: Any, value: Any, key: str) -> Any:
    options = typing.get_args(kind)
    if types.NoneType in options:
        if value is None:
            return None
        inner = tuple(option for option in options if option is not types.NoneType)
        return read(functools.reduce(operator.or_, inner), value, key)
    if not any(is_dataclass(option) for option in options):
        if type(value) not in options:
            names = " or ".join(option.__name__ for option in options)
            raise UserError(f"{key}={value!r} is no {names}")
        return value
    by_name = {typing.get_type_hints(o)["name"].__args__[0]: o for o in options}
    name = value.get("name") if isinstance(value, Mapping) else value
    if not isinstance(name, str) or name not in by_name:
        raise UserError(f"{key}={name!r} is unknown: choose one of {', '.join(sorted(by_name))}")
    return read(by_name[name], value, key)


def _read_dataclass(kind: Any, value: Any, key: str) -> Any:
    if not isinstance(value, Mapping):
        raise UserError(f"{key or 'the configuration'} must be a group of settings, not {value!r}")
    annotated = typing.get_type_hints(kind)
    hints = {item.name: annotated[item.name] for item in fields(kind)}
    dot = f"{key}." if key else ""
    unknown = sorted(str(k) for k in value if k not in hints)
    if unknown:
        raise UserError(
            f"unknown key {dot}{unknown[0]}: known here are "
            f"{', '.join(dot + name for name in sorted(hints))}"
        )
    for item in fields(kind):
        optional = item.default is not MISSING or item.default_factory is not MISSING
        if not optional and item.name not in value:
            raise UserError(f"{dot}{item.name} is missing: give {dot}{item.name}=...")
    return kind(**{name: read(hints[name], v, dot + name) for name, v in value.items()})


def _read_scalar(kind: Any, value: Any, key: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        words = {
            float: "a number",
            int: "a whole number",
            bool: "true or false",
            str: "text (quote what looks like a number: '" + key + '="1e3"\')',
        }
        raise UserError(f"{key}={value!r} is not {words[kind]}")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{key}={value} is not a finite number")
    return value


def identity(config: RunConfig, *, layers: int, resolved: Mapping[str, Any]) -> str:
    """Hash of everything that can change the text or the times of a run's samples.

    Settings that the method does not use are dropped and equivalent settings are written the
    same way, so that equal computations have equal identity. Limit, output, logger, permissions
    and the sizes of the measurements beside the samples are left out.

    Args:
        config: the run.
        layers: number of backbone layers L (a fixed depth of L is no exit).
        resolved: what `auto` settings and paths came to: fingerprints of data, weights and
            recorded depths, device kind, whether the chat template is used.

    Returns:
        12 hexadecimal digits.
    """
    content = {"schema": SCHEMA, **effective_settings(config, layers=layers), **resolved}
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def effective_settings(config: RunConfig, *, layers: int) -> dict[str, Any]:
    """The settings that the run really uses, as plain data."""
    exp = {
        "name": config.exp.name,
        "max_new_tokens": config.exp.max_new_tokens,
        "fewshot": config.exp.fewshot,
    }
    if config.exp.fewshot:
        exp["fewshot_source"] = config.exp.fewshot_source
    if config.exp.grader is not None:
        exp["grader"] = config.exp.grader  # of the columns, their content counts
    settings: dict[str, Any] = {
        "exp": exp,
        "model": {"name": config.model.name, "dtype": config.model.dtype},
        "method": asdict(config.method),
        "engine": {key: value for key, value in asdict(config.engine).items() if value is not None},
    }
    if isinstance(config.method, MonoDecreasingConfig) and config.method.exits:
        settings["method"] = {"name": config.method.name, "form": config.method.form}
    if config.method.exits:
        criterion = asdict(config.criterion)
        criterion.pop("from_run", None)
        if isinstance(config.criterion, FixedConfig) and config.criterion.depth == layers:
            criterion = asdict(NeverConfig())
        scored = isinstance(config.criterion, SimilarityConfig | ConfidenceConfig)
        if isinstance(config.criterion, SimilarityConfig | ConfidenceConfig):
            deepest = config.criterion.max_depth
            criterion["max_depth"] = None if deepest is None or deepest >= layers else deepest
        if not (scored and config.method.prompt_in == "sequence"):
            settings["method"].pop("pool", None)
        settings["criterion"] = criterion
    if config.method.needs_river:
        settings["quant"] = quantizer_settings(config.quant)
    if config.quant.head != "none":
        settings["head"] = config.quant.head
    if config.offload.after is not None:
        # Fetching changes no text, but times.
        settings["offload"] = {"after": config.offload.after, "on_miss": config.offload.on_miss}
        if config.offload.after == "auto":
            settings["offload"]["coverage"] = config.offload.coverage
    return settings


def quantizer_settings(config: QuantConfig) -> dict[str, Any]:
    """The settings of the river's quantizer, without the head's."""
    return {key: value for key, value in asdict(config).items() if key != "head"}
