"""From Hydra overrides to a typed configuration, with every mistake told in one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
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


def at_most(count: int, *limits: object) -> int:
    """`count`, or less where a limit above 0 is smaller; what is no limit is refused elsewhere."""
    return min([count, *(limit for limit in limits if type(limit) is int and limit > 0)])


OmegaConf.register_new_resolver("river_llm.model_name", model_name, replace=True)
OmegaConf.register_new_resolver("river_llm.at_most", at_most, replace=True)


def load_config(overrides: Sequence[str]) -> RunConfig:
    """Composes `conf/config.yaml` with command-line overrides and checks the result.

    Args:
        overrides: as on the command line, e.g. `["exp=gsm8k", "criterion.tau=0.7"]`.

    Raises:
        UserError: unknown group option or key, a value that cannot be read or does not fit.
    """
    return typed(composed(overrides))


def composed(overrides: Sequence[str], root: str = "config") -> DictConfig:
    """Composes a root file of `conf/` with command-line overrides.

    Args:
        overrides: as on the command line.
        root: name of the file, without `.yaml`.

    Raises:
        UserError: unknown group option or key, a value that cannot be read.
    """
    for override in overrides:
        if re.match(r"\++hydra\.", override):
            key = override.lstrip("+").partition("=")[0]
            raise UserError(f"unknown key {key}: nothing can be added to Hydra's own settings")
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose(root, list(overrides))
    except OverrideParseException as error:
        raise unreadable(error.override) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(_one_line(str(error))) from error
    finally:
        GlobalHydra.instance().clear()


def typed(config: DictConfig) -> RunConfig:
    """Checks the composed configuration of one run.

    Raises:
        UserError: what is wrong with it.
    """
    settings = complete(config)
    recipe = settings.pop("sweep", None)
    if recipe and recipe["cells"]:
        raise UserError(f"sweep={recipe['name']} lists many runs: add -m")
    for key in ("shard", "dry_run"):
        if value := settings.pop(key, None):
            raise UserError(f"{key}={value} is for sweeps: add -m")
    return parse(settings)


def complete(config: DictConfig) -> dict[str, Any]:
    """A composed configuration as nested dicts and lists, checked for values that are missing.

    Raises:
        UserError: a key without a value, or an interpolation that leads nowhere.
    """
    try:
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            raise UserError(f"{missing[0]} has no default: give {missing[0]}=...")
        return plain(config)
    except OmegaConfBaseException as error:
        raise UserError(_one_line(str(error))) from error


def plain(config: DictConfig) -> dict[str, Any]:
    """A composed configuration as nested dicts and lists, interpolations resolved."""
    content = OmegaConf.to_container(config, resolve=True)
    if not isinstance(content, dict):
        raise UserError(f"the configuration is no group of settings: {content!r}")
    return {str(key): value for key, value in content.items()}


def unreadable(override: str) -> UserError:
    """Says of an override that Hydra cannot parse how to quote it."""
    key, _, value = override.partition("=")
    advice = f"""; quote a value that holds special characters twice: '{key}="{value}"'"""
    return UserError(f"{override!r} cannot be read as key=value{advice if value else ''}")


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
