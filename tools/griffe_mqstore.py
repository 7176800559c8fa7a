"""Griffe extension that describes what the source of mqstore does not say in plain definitions.

`mkdocs.yml` names it for the API reference. Griffe reads the source without running it, so it needs help with:

- Methods of `mqstore.aio` that are made from blocking ones in one line: `flush = in_thread(mqstore.Store.flush)`.
- Methods of `mqstore.aio` that take their parameters and the rest of their docstring from a blocking one:
  `@like(mqstore.Store.append)`.
- Typed dictionaries: their docstrings describe the keys as arguments.
"""

from __future__ import annotations

import copy
from typing import Any

import griffe

# The functions that make methods in mqstore.aio, and whether the made method is a coroutine.
_MAKERS = {
    "in_thread": True,
    "_in_thread": True,
    "at_length": True,
    "awaitable": True,
    "making": False,
    "reading": False,
    "_twin": False,
}


class Definitions(griffe.Extension):
    """Adds functions, docstrings and signatures to the loaded package."""

    def on_package(self, *, pkg: griffe.Module, **_options: Any) -> None:
        """Changes the package once all its modules are loaded."""
        if pkg.path != "mqstore":
            return
        for name, kind in pkg["types"].classes.items():
            if not name.startswith("_"):
                _add_signature(kind)
        for module in pkg["aio"].modules.values():
            for place in (module, *module.classes.values()):
                for member in list(place.members.values()):
                    _describe(pkg, place, member)


def _add_signature(kind: griffe.Class) -> None:
    keys = [member for member in kind.all_members.values() if member.is_attribute]
    keyword = griffe.ParameterKind.keyword_only
    parameters = [griffe.Parameter(key.name, annotation=key.annotation, kind=keyword, default="...") for key in keys]
    own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    kind.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(own, *parameters)))


def _describe(
    package: griffe.Module, place: griffe.Module | griffe.Class, member: griffe.Object | griffe.Alias
) -> None:
    if member.is_alias:
        return
    if member.is_attribute and isinstance(member.value, griffe.ExprCall):
        maker = str(member.value.function)
        if maker in _MAKERS:
            arguments = member.value.arguments
            made = _made(member, _named(package, str(arguments[0])), is_coroutine=_MAKERS[maker])
            if maker == "making":
                made.returns = f"Making[{arguments[1]}]"
            elif maker == "reading":
                made.returns = arguments[1]
            elif maker == "_twin":
                made.returns = "Scan"
            place.set_member(member.name, made)
        elif member.value.arguments and str(member.value.arguments[0]).startswith("mqstore."):
            # `mkdocs build --strict` fails.
            griffe.logger.warning("%s: %s is not in _MAKERS of tools/griffe_mqstore.py", member.path, maker)
    elif member.is_function:
        for decorator in member.decorators:
            call = decorator.value
            if isinstance(call, griffe.ExprCall) and str(call.function) == "like":
                _complete(member, _named(package, str(call.arguments[0])))


def _named(package: griffe.Module, path: str) -> griffe.Function:
    """Returns the function with this path, also if it is inherited or imported from another module."""
    found: Any = package
    for name in path.split(".")[1:]:
        found = (found.all_members if found.is_class else found.members)[name]
        if found.is_alias:
            found = found.final_target
    return found


def _made(attribute: griffe.Attribute, source: griffe.Function, *, is_coroutine: bool) -> griffe.Function:
    made = griffe.Function(
        attribute.name,
        parameters=copy.copy(source.parameters),
        returns=source.returns,
        lineno=attribute.lineno,
        endlineno=attribute.endlineno,
    )
    if is_coroutine:
        made.labels.add("async")
    if source.docstring is not None:
        made.docstring = _docstring(source.docstring.value, made, source.docstring)
    return made


def _complete(function: griffe.Function, source: griffe.Function) -> None:
    function.parameters = copy.copy(source.parameters)
    if function.docstring is None or source.docstring is None:
        return
    rest = source.docstring.value.partition("\n\n")[2]
    if rest:
        function.docstring = _docstring(f"{function.docstring.value}\n\n{rest}", function, function.docstring)


def _docstring(text: str, owner: griffe.Function, model: griffe.Docstring) -> griffe.Docstring:
    return griffe.Docstring(text, parent=owner, parser=model.parser, parser_options=model.parser_options)
