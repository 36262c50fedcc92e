"""Names that others wrote are shown, never interpreted: by terminals, spreadsheets, Markdown, LaTeX or a page."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from recollect.cli import app
from recollect.cli.console import print_json, print_text, stdout
from recollect.cli.rendering.predictions import TablePrinter
from recollect.cli.rendering.progress import ProgressBar
from recollect.cli.rendering.sweep import print_best, run_sweep
from recollect.escaping import escape, escape_controls, escape_csv, escape_html, escape_latex, escape_markdown
from recollect.report.layout import Sheet
from recollect.report.tables import print_comparison
from recollect.report.write import write_report
from recollect.storage import write_json
from recollect.sweeps import load_preset
from tests.report.results import result_of

HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202egnp.exe\u2066[bold]b[/bold] [link=https://evil.example]x[/link]:bomb:\\"
)
SHOWN = (
    r"\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202egnp.exe\u2066[bold]b[/bold] [link=https://evil.example]x[/link]:bomb:"
    + "\\"
)


def recording() -> Console:
    """As `stdout()` is, on a terminal."""
    return Console(file=io.StringIO(), force_terminal=True, width=1000, emoji=False)


def printed(console: Console) -> str:
    """What was printed, without the styles of ours."""
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("déjà vu 象 👍🏽 ‍", "déjà vu 象 👍🏽 ‍"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\x9b\x7f\x00", r"\x9b\x7f\x00"),
        ("\u202e\u2066\u200f\u061c\u2028", r"\u202e\u2066\u200f\u061c\u2028"),
        ("caf\udce9", r"caf\udce9"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert escape_controls(text) == shown
    assert escape_controls(text, keep_lines=True) == shown.replace(r"\n", "\n")


@pytest.mark.parametrize("text", [HOSTILE, "a\\", "\\[bold]", "[/]", "[red]", "[@click=f]x[/]", ":smile:", "a[b"])
def test_text_that_looks_like_markup_is_printed_literally(text: str) -> None:
    console = recording()
    console.print(f"[bold]{escape(text)}[/] end")
    assert printed(console) == f"{escape_controls(text)} end\n"


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-1+1", "'-1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", r"'\t=1"),
        ("\r=1", r"'\r=1"),
        ("  =1", "'  =1"),
        ("＝1+1", "'＝1+1"),
        ("-1.5", "-1.5"),
        ("+3", "+3"),
        ("-1e-05", "-1e-05"),
        ("-1.5 ± 0.3", "-1.5 ± 0.3"),
        ("+1.5 (± 0.3 over tasks)", "+1.5 (± 0.3 over tasks)"),
        ("-1.5 ± 0.3+1", "'-1.5 ± 0.3+1"),
        ("–", "–"),
        ("a=b", "a=b"),
    ],
)
def test_formulas_are_text_in_a_spreadsheet(text: str, cell: str) -> None:
    assert escape_csv(text) == cell
    sheet = Sheet("s", "t", [text], [[text]])
    assert list(csv.reader(io.StringIO(sheet.csv()))) == [[cell], [cell]]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)>"),
        ("[x](javascript:alert(1))", r"\[x\](javascript:alert(1))"),
        ("![x](https://a.b)", r"!\[x\](https\://a.b)"),
        ("see https://a.b or www.a.b", r"see https\://a.b or www\.a.b"),
        ("&lt;b&gt; & c", "&amp;lt;b&amp;gt; & c"),
        ("a|b", r"a\|b"),
        (r"a\|b", r"a\\\|b"),
        ("**best** `code`", r"\*\*best\*\* \`code\`"),
        ("a\n\n# b", "a # b"),
        ("\x1b[2J", r"\\x1b\[2J"),
        ("train_per_class=5", "train_per_class=5"),
        ("_em_ __strong__ a_b_", r"\_em\_ \_\_strong\_\_ a_b\_"),
        ("~~gone~~ ~gone~", r"\~\~gone\~\~ \~gone\~"),
        ("@owner a@b.example", "@&#8203;owner a@&#8203;b.example"),
    ],
)
def test_markdown_escapes_html_links_and_line_breaks(text: str, line: str) -> None:
    assert escape_markdown(text) == line
    sheet = Sheet("s", text, ["a", text], [[text, text]], [text])
    assert sheet.markdown().splitlines() == [
        f"### {line}", "", f"| a | {line} |", "| --- | ---: |", f"| {line} | {line} |", "", f"- {line}"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "tex"),
    [
        (r"\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("50 % $x^2$ #1 ~", r"50 \% \$x\textasciicircum{}2\$ \#1 \textasciitilde{}"),
        ("[3cm]", "{[}3cm]"),
        ("*", "{*}"),
        ("a\n\nb", "a b"),
        ("\x1b", r"\textbackslash{}x1b"),
    ],
)
def test_latex_escapes_commands(text: str, tex: str) -> None:
    assert escape_latex(text) == tex
    assert f"\n{tex} & {tex} \\\\\n" in Sheet("s", "t", ["a", "b"], [[text, text]]).latex()


def test_the_page_escapes_html_elements() -> None:
    assert escape_html('"><script>\u202e') == r"&quot;&gt;&lt;script&gt;\u202e"


def test_hostile_names_are_escaped_in_reports(tmp_path: Path) -> None:
    name = "=cmd()<img src=x onerror=alert(1)>[x](https://evil.example)\x1b[31m\u202e"
    result = result_of("rfe", 0, 50.0)
    config = result["config"]
    result |= {
        "config": config | {"method": config["method"] | {"name": name}, "stream": config["stream"] | {"name": name}}
    }
    write_report([result], tmp_path, name)
    texts = {
        path: path.read_text("utf-8") for path in tmp_path.rglob("*") if path.suffix in (".md", ".tex", ".csv", ".html")
    }
    assert len(texts) > 10
    for path, text in texts.items():
        assert not {"\x1b", "\u202e"} & set(text), path
        assert "<img src=x" not in text or path.suffix in (".tex", ".csv"), path
        if path.suffix == ".md":
            assert "[x](" not in text
            assert "https://" not in text
        if path.suffix == ".csv":
            assert not any(cell.startswith("=") for row in csv.reader(io.StringIO(text)) for cell in row)


def test_hostile_names_are_escaped_on_terminals(tmp_path: Path) -> None:
    console = recording()
    print_comparison(console, {HOSTILE: [result_of("rfe", 0, 50.0)]})
    row = {"path": HOSTILE, "class": HOSTILE, "task": HOSTILE, "probability": 0.5}
    TablePrinter(console).add([row | {"top": [row]}, {"path": HOSTILE, "error": HOSTILE}])
    result = result_of("rfe", 0, 50.0)
    config = result["config"]
    write_json(tmp_path / "r.json", result | {"config": config | {"method": config["method"] | {"name": HOSTILE}}})
    print_best(console, [tmp_path])
    text = printed(console)
    assert text.count(SHOWN) == 7
    assert not {"\x1b", "\x07", "\x9b", "\x7f", "\u202e", "\u2066"} & set(text)
    assert stdout()._emoji is False


def test_a_progress_bar_shows_any_title() -> None:
    console, hostile, shown = recording(), *(text.replace(":bomb:", "") for text in (HOSTILE, SHOWN))
    with ProgressBar(console, hostile + "{task.nothing}{0}") as bar:
        bar.phase(hostile + "{x}", 10)
        bar.event("task", task=1, til=[50.0], cil=[50.0])
        bar._progress.refresh()
    assert shown + "{task.nothing}{0}" in printed(console)
    assert shown + "{x}" in printed(console)


def test_the_reason_of_a_failed_run_is_printed_literally(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=1000, emoji=False)
    preset = tmp_path / "small.toml"
    preset.write_text('seeds = [0]\n[[runs]]\nstream = "split-digits"\nmethod = "finetune"\n')
    (job,) = load_preset(str(preset)).jobs(precision="fp32")
    (tmp_path / job.name).mkdir(parents=True)
    (tmp_path / job.name / "[red]\x1b[31m").write_text("")
    assert run_sweep(console, [job], tmp_path, [], 1, None, {"device": "auto"}) == 1
    text = printed(console)
    assert text.count("[red]") == 2
    assert "\x1b" not in text


def test_errors_and_json_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    app.print_message(f"one {HOSTILE}\ntwo")
    assert capsys.readouterr().err == f"recollect: one {SHOWN}\ntwo\n"
    print_text(HOSTILE + "\n")
    assert capsys.readouterr().out == f"{SHOWN}\\n\n"
    value: dict[str, Any] = {"name": HOSTILE + "象"}
    print_json(value)
    out = capsys.readouterr().out
    assert json.loads(out) == value
    assert not {"\x1b", "\x9b", "\x7f", "\u202e"} & set(out)
    assert "象" in out or "utf" not in (sys.stdout.encoding or "").lower()
