"""From Hydra overrides to a typed configuration, with every mistake told in one line."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from river_llm.config import RunConfig, parse
from river_llm.errors import UserError

CONF = Path(__file__).resolve().parents[2] / "conf"


def model_name(name: str, path: str, given: object) -> str:
    """Name of a model in results: a group's own, or the last part of another path.

    Args:
        name: the group's name for its own path.
        path: the group's own path.
        given: the path that the run uses.
    """
    if given == path:
        return name
    return re.sub(r"[^A-Za-z0-9._-]", "_", str(given).rstrip("/").rpartition("/")[2]).lstrip("._-")


OmegaConf.register_new_resolver("river_llm.model_name", model_name, replace=True)


def load_config(overrides: Sequence[str]) -> RunConfig:
    """Composes `conf/config.yaml` with command-line overrides and checks the result.

    Args:
        overrides: as on the command line, e.g. `["exp=gsm8k", "criterion.tau=0.7"]`.

    Raises:
        UserError: unknown group option or key, a value that cannot be read or does not fit.
    """
    for override in overrides:
        if re.match(r"\++hydra\.", override):
            key = override.lstrip("+").partition("=")[0]
            raise UserError(f"unknown key {key}: nothing can be added to Hydra's own settings")
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return typed(compose("config", list(overrides)))
    except OverrideParseException as error:
        raise UserError(_unreadable(error.override)) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(_one_line(str(error))) from error
    finally:
        GlobalHydra.instance().clear()


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """The override lists of all cells of a sweep, in Hydra's order.

    Raises:
        UserError: an override that cannot be read.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise UserError(_unreadable(error.override)) from error
    choices = [
        [f"{item.get_key_element()}={value}" for value in item.sweep_string_iterator()]
        if item.is_sweep_override()
        else [item.input_line or ""]
        for item in parsed
    ]
    return [list(cell) for cell in itertools.product(*choices)]


def typed(composed: DictConfig) -> RunConfig:
    """Checks a composed configuration.

    Raises:
        UserError: what is wrong with it.
    """
    missing = sorted(OmegaConf.missing_keys(composed))
    if missing:
        raise UserError(f"{missing[0]} has no default: give {missing[0]}=...")
    plain = OmegaConf.to_container(composed, resolve=True)
    if not isinstance(plain, dict):
        raise UserError(f"the configuration is no group of settings: {plain!r}")
    return parse({str(key): value for key, value in plain.items()})


def _unreadable(override: str) -> str:
    """Why Hydra cannot parse an override, and how to quote it."""
    key, _, value = override.partition("=")
    advice = f"""; quote a value that holds special characters twice: '{key}="{value}"'"""
    return f"{override!r} cannot be read as key=value{advice if value else ''}"


def _one_line(message: str) -> str:
    """Hydra's message in one line, without its advice to add unknown keys by force."""
    option = re.search(
        r"Could not find '([^']+)/([^'/]+)'\s+Available options in '[^']+':\s+(.*)", message, re.S
    )
    if option:
        group, name, known = option.groups()
        names = re.findall(r"^\s*(\S+)\s*$", known, re.M)
        return f"unknown {group} {name!r}: choose one of {', '.join(names)}"
    key = re.search(r"Could not override '([^']+)'", message)
    if key:
        return f"unknown key {key[1]}: no such setting with these options; conf/ lists them"
    return " ".join(message.split())
