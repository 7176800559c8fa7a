"""The pages of the API reference, of the options and of the errors agree with the package."""

from __future__ import annotations

import ast
import dataclasses
import html
import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mqstore
from mqstore import errors

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = ROOT / "python"


def entries() -> Counter[str]:
    """The documented names, and on how many places each of them is."""
    pages = sorted((DOCS / "api").glob("*.md"))
    assert len(pages) > 10
    return Counter(name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE))


def public_modules() -> dict[str, list[str]]:
    """The modules without an underscore that list their public names."""
    found = {}
    for path in sorted(SOURCES.glob("mqstore/**/*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if not any(part.startswith("_") for part in name.split(".")) and (names := listed_names(path)) is not None:
            found[name] = names
    return found


def listed_names(path: Path) -> list[str] | None:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


def fixtures() -> list[str]:
    tree = ast.parse((SOURCES / "pytest_mqstore" / "__init__.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]


def test_each_public_name_is_on_one_page() -> None:
    modules = public_modules()
    assert {"mqstore", "mqstore.aio", "mqstore.testing", "mqstore.spark", "mqstore.metrics", "mqstore.types"} <= set(
        modules
    )
    # The exceptions are on the page under the name with which programs import them.
    assert set(modules.pop("mqstore.errors")) <= set(modules["mqstore"])
    expected = {f"{module}.{name}" for module, names in modules.items() for name in names}
    # The contents of a module are on the pages, not the module.
    expected -= {*modules, "mqstore.errors"}
    expected |= {f"pytest_mqstore.{name}" for name in fixtures()}
    found = entries()
    assert set(found) == expected
    assert [name for name, count in found.items() if count > 1] == []


def rows(page: str) -> dict[str, list[str]]:
    """The cells of the rows that begin with a name, by this name."""
    found = {}
    for line in (DOCS / page).read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and re.fullmatch(r"`\w+`", cells[0]):
            assert cells[0] not in found, f"{cells[0]} has two rows"
            found[cells[0].strip("`")] = cells[1:]
    return found


def test_each_exception_is_in_the_table() -> None:
    table = rows("errors.md")
    assert set(table) == set(errors.__all__)
    for name, (base, raised, what_to_do) in table.items():
        bases = {kind.__name__ for kind in getattr(errors, name).__bases__} - {"MQStoreError"}
        # Older versions of Python have no such class.
        if name == "ShutDown":
            bases = {"ShutDown"}
        assert {one.rpartition(".")[2] for one in re.findall(r"[\w.]+", base)} == bases, name
        assert raised.endswith(".")
        assert what_to_do.endswith(".")


OPTIONS = [
    (kind, option) for kind in (mqstore.StoreOptions, mqstore.BrokerOptions) for option in dataclasses.fields(kind)
]


def test_each_option_is_in_the_table() -> None:
    assert list(rows("options.md")) == [option.name for _, option in OPTIONS]


@pytest.mark.parametrize("option", [option for _, option in OPTIONS], ids=lambda option: option.name)
def test_types_and_effects_of_options(option: dataclasses.Field[Any]) -> None:
    kind, _default, bounds, effect, _setting = rows("options.md")[option.name]
    shown = html.unescape(re.sub(r"`|</?code>", "", kind)).replace(" or ", " | ")
    assert shown.removesuffix(f", {options_page().unit(option)}") == option.type
    assert effect.endswith(".")
    assert bounds


def test_units_defaults_bounds_and_settings_of_options() -> None:
    """The script that writes the tables has nothing to change."""
    page = (DOCS / "options.md").read_text()
    tool = options_page()
    assert tool.updated(page) == page, "run .venv/bin/python tools/options_page.py"
    source = (SOURCES / "mqstore" / "types.py").read_text()
    assert tool.with_help(source, page) == source, "run .venv/bin/python tools/options_page.py"


def test_the_script_sees_changes_of_options() -> None:
    tool = options_page()
    page = (DOCS / "options.md").read_text()
    for right, wrong in [
        ("| `segment_size` | `int`, bytes | 1 GiB |", "| `segment_size` | `int`, bytes | 2 GiB |"),
        ("| 1 ms to 24 h |", "| 1 ms to 25 h |"),
        ("`maxHashSlotNum`", "`maxIndexNum`"),
        ("| `record_crc` | `bool` |", "| `record_crc` | `int` |"),
    ]:
        assert right in page
        assert tool.updated(page.replace(right, wrong, 1)) == page
    without = "\n".join(line for line in page.split("\n") if not line.startswith("| `retention_bytes`"))
    row = f"| `retention_bytes` | `int` or `None`, bytes | `None` | 1 or more | {tool.UNDESCRIBED} |"
    assert row in tool.updated(without)


def options_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("options_page", ROOT / "tools" / "options_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
