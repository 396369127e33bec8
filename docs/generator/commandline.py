# ruff: noqa: INP001 (scripts beside their pages, not a package)
"""The page of the command line."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from markdown import code, head, table, unwrapped

from spillway.cli.lazy import load
from spillway.cli.root import HELP, SpillwayGroup
from spillway.cli.session import DEFAULT_URL, OPTIONS, PANEL, TEXTS


def cli() -> str:
    parts = [head("Command line", "the commands in src/spillway/cli"), _cli_introduction()]
    panel = ""
    for name, entry in SpillwayGroup.entries.items():
        if entry.panel != panel:
            panel = entry.panel
            parts.append(f"## {panel}\n")
        parts.extend(_commands(f"spillway {name}", load(name, entry)))
    return "\n".join(parts)


def _cli_introduction() -> str:
    said = [" ".join(text.split()) for text in HELP.split("\n\n")[1:] if text.strip()]
    rows = ((_flag(name), TEXTS[name].replace(DEFAULT_URL, code(DEFAULT_URL))) for name in OPTIONS)
    shared = "Every command that talks to a broker takes these too:"
    return "\n\n".join([*said, shared, table(("option", "meaning"), rows)])


def _flag(name: str) -> str:
    return code(f"--{name.strip('_').replace('_', '-')}")


def _commands(name: str, command: Any) -> Iterator[str]:  # noqa: ANN401 (click's classes are typer's)
    inner = getattr(command, "commands", None)
    if inner is None:
        yield _command(name, command)
        return
    for word, one in inner.items():
        yield from _commands(f"{name} {word}", one)


def _command(name: str, command: Any) -> str:  # noqa: ANN401
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    own = [one for one in options if one.rich_help_panel != PANEL and one.name != "help"]
    usage = " ".join([name, *map(_argument, arguments), *(["[OPTIONS]"] if own else [])])
    parts = [f"### {name}\n", unwrapped(command.help or ""), f"    {usage}\n"]
    if arguments:
        rows = ((code(_metavar(one)), one.help or "") for one in arguments)
        parts.append(table(("argument", "meaning"), rows))
    if own:
        parts.append(table(("option", "default", "meaning"), map(_option, own)))
    return "\n".join(parts)


def _metavar(argument: Any) -> str:  # noqa: ANN401
    return str(argument.metavar or argument.name).upper()


def _argument(argument: Any) -> str:  # noqa: ANN401
    text = _metavar(argument) + ("..." if argument.nargs == -1 or argument.multiple else "")
    return text if argument.required else f"[{text}]"


def _option(option: Any) -> tuple[str, str, str]:  # noqa: ANN401
    names = ", ".join(code(name) for name in (*option.opts, *option.secondary_opts))
    words = [option.help or "", _choices(option), _bounds(option)]
    if option.envvar and "env" not in words[0]:
        words.append(f"(env {option.envvar})")
    return names, _default(option), " ".join(word for word in words if word)


def _choices(option: Any) -> str:  # noqa: ANN401
    annotation = option.type_descriptor.annotation
    words = get_args(annotation) if get_origin(annotation) is Literal else ()
    return f"One of {', '.join(map(code, words))}." if words else ""


def _bounds(option: Any) -> str:  # noqa: ANN401
    low, high = (None if edge is None else f"{edge:,}" for edge in (option.min, option.max))
    if low is None:
        return "" if high is None else f"At most {high}."
    return f"At least {low}." if high is None else f"{low} to {high}."


def _default(option: Any) -> str:  # noqa: ANN401
    value = option.default
    if value in (None, False, ()) or callable(value) or option.required:
        return ""
    return code(value)
