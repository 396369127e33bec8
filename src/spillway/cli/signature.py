"""Options that several commands share, declared once: one parameter stands for a set of flags."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import typer

Options = dict[str, tuple[Any, Any]]  # name: (annotation, default)


def expanded(
    command: Callable[..., None],
    parameter: str,
    options: Options,
    build: Callable[[typer.Context, dict[str, Any]], Any],
) -> Callable[..., None]:
    """`command` with `parameter` replaced by these options; `build` makes its value of theirs."""
    own = inspect.signature(command).parameters
    kept = [one for name, one in own.items() if name not in (parameter, "ctx")]
    added = [_keyword(name, annotation, default) for name, (annotation, default) in options.items()]
    context = _keyword("ctx", typer.Context, inspect.Parameter.empty)
    everything = [context, *(one.replace(kind=one.KEYWORD_ONLY) for one in kept), *added]
    passes_context = "ctx" in own

    @wraps(command)
    def entry(**given: Any) -> None:
        ctx = given["ctx"] if passes_context else given.pop("ctx")
        mine = {name: given.pop(name) for name in options}
        command(**given, **{parameter: build(ctx, mine)})

    described: Any = entry  # what typer reads instead of **given
    described.__signature__ = inspect.Signature(everything)
    described.__annotations__ = {one.name: one.annotation for one in everything}
    return entry


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:  # noqa: ANN401
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
