"""Reports in notebooks and as data frames: `_repr_html_`, `to_pandas`, `to_polars`."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

import mqstore
from conftest import python


class Cells(HTMLParser):
    """The cells of the tables, and whether every tag was closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


@pytest.fixture
def damaged(filled: Path) -> mqstore.VerifyReport:
    log = filled / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    content[content.index(b"body 7")] ^= 0x01
    log.write_bytes(content)
    return mqstore.verify(filled)


def test_reports_are_html_with_units(filled: Path, damaged: mqstore.VerifyReport) -> None:
    cells = Cells(damaged._repr_html_()).cells
    assert cells[:2] == ["ok", "no"]
    assert {"kind", "path", damaged.problems[0].kind, damaged.problems[0].detail} <= set(cells)
    shown = Cells(mqstore.info(filled)._repr_html_()).cells
    assert "64.0 KiB" in shown
    assert shown[shown.index("segment size") + 1] == "64.0 KiB"
    with mqstore.open(filled) as store:
        for report in (store.stats(), store.queues("orders")[0], store.expire(dry_run=True)):
            assert Cells(report._repr_html_()).cells


def test_html_of_a_dry_run_changes_nothing(filled: Path) -> None:
    (filled / "consumequeue" / "orders" / "0" / f"{0:020d}").unlink()
    cells = Cells(mqstore.repair(filled, dry_run=True)._repr_html_()).cells
    assert cells[cells.index("would change") + 1] == "yes"
    assert "changed" not in cells


def test_html_is_escaped_and_limited() -> None:
    problem = mqstore.Problem("<b>", "a & b", None, "detail", "bad", "none")
    page = mqstore.VerifyReport(False, 0, 0, (problem,) * 250)._repr_html_()
    cells = Cells(page).cells
    assert (cells.count("<b>"), cells.count("a & b")) == (100, 100)
    assert "150 more" in page


def test_reports_are_frames_of_pandas(damaged: mqstore.VerifyReport) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = damaged.to_pandas()
    assert frame.to_dict("records") == [{"ok": False, "messages": damaged.messages, "bytes": damaged.bytes}]
    problems = damaged.to_pandas("problems")
    assert list(problems["kind"]) == [one.kind for one in damaged.problems]
    with pytest.raises(ValueError, match="it has problems"):
        damaged.to_pandas("lost")


def test_reports_are_frames_of_polars(filled: Path) -> None:
    pytest.importorskip("polars", reason="polars is not installed")
    info = mqstore.info(filled)
    assert info.to_polars("disk").to_dicts() == [part.to_dict() for part in info.disk]
    assert info.to_polars("parts").to_dicts() == [{"parts": name} for name in info.parts]
    assert info.to_polars()["messages"].to_list() == [45]
    assert info.to_polars("topics")["topic"].to_list() == ["events", "orders"]
    assert info.to_polars("consumers").height == 0


@pytest.mark.parametrize(("library", "call"), [("pandas", "to_pandas"), ("polars", "to_polars")])
def test_a_missing_library_is_named_with_its_extra(library: str, call: str) -> None:
    code = f"""
import sys; sys.modules[{library!r}] = None
import mqstore
for report in (mqstore.QueueInfo(0, 0, 7), mqstore.scan("nothing")):
    try:
        report.{call}()
    except ImportError as error:
        assert str(error).endswith('pip install "mqstore[{library}]"'), error
    else:
        raise AssertionError
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_a_report_imports_no_library() -> None:
    done = python(
        "import sys, mqstore\n"
        "mqstore.QueueInfo(0, 0, 7)._repr_html_()\n"
        "assert not {'pandas', 'polars', 'pyarrow', 'rich'} & set(sys.modules)"
    )
    assert done.returncode == 0, done.stderr
