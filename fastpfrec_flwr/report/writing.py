"""A table as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import re

from fastpfrec_flwr.report.tables import Cell, Table

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", '"': r"\textquotedbl{}",
    "\N{MINUS SIGN}": "$-$", "\N{PLUS-MINUS SIGN}": r"$\pm$", "\N{EN DASH}": "--", "\N{INFINITY}": r"$\infty$",
}  # fmt: skip


def to_csv(table: Table) -> str:
    """Comma-separated, a header line, figures with all their digits; an empty field where there is none."""
    lines = []
    for row in table.rows:
        line: dict[str, object] = {}
        for cell, column in zip(row, table.columns, strict=True):
            line |= cell.parts or {column.title: cell.text}
        lines.append(line)
    names = list(dict.fromkeys(name for line in lines for name in line)) or [each.title for each in table.columns]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def to_markdown(table: Table) -> str:
    """A pipe table with aligned columns, its caption above and its notes below."""
    cells = [[column.title for column in table.columns], *([_marked(cell) for cell in row] for row in table.rows)]
    cells = [[markdown_text(text) for text in line] for line in cells]
    widths = [max(3, *(len(line[i]) for line in cells)) for i in range(len(table.columns))]
    rights = [column.align == "right" for column in table.columns]
    lines = [
        "| "
        + " | ".join(text.rjust(w) if r else text.ljust(w) for text, w, r in zip(line, widths, rights, strict=True))
        + " |"
        for line in cells
    ]
    rule = "| " + " | ".join("-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, rights, strict=True)) + " |"
    notes = "".join(f"\n{markdown_text(note)}\n" for note in table.notes)
    return f"{markdown_text(table.caption)}\n\n" + "\n".join([lines[0], rule, *lines[1:]]) + "\n" + notes


def _marked(cell: Cell) -> str:
    return f"**{cell.text}**" if cell.strong else cell.text


def markdown_text(text: str) -> str:
    """Text that stays as it is in Markdown, inside a table too; stars around the best figure stay stars."""
    text = re.sub(r"\s+", " ", text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    if text.startswith("**") and text.endswith("**") and len(text) > 4:
        return text
    return text.replace("*", "\\*").replace("_", "\\_").replace("`", "\\`")


def to_latex(table: Table) -> str:
    r"""A `table` environment with booktabs rules; needs `\usepackage{booktabs}`."""
    columns = "".join("r" if column.align == "right" else "l" for column in table.columns)
    head = " & ".join(latex_text(column.title) for column in table.columns)
    body = []
    for place, row in enumerate(table.rows):
        # A rule where the first column goes on to something else.
        if place and table.columns[0].title == "data set" and row[0].text != table.rows[place - 1][0].text:
            body.append(r"\midrule")
        body.append(" & ".join(_bold(cell) for cell in row) + r" \\")
    notes = "".join(f"\\\\[2pt]\n{{\\footnotesize {latex_text(note)}}}\n" for note in table.notes)
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_text(table.title)}. {latex_text(table.caption)}}}",
            rf"\label{{tab:{table.key}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            head + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            notes.rstrip("\n") + ("\n" if notes else "") + r"\end{table}",
            "",
        ]
    )


def _bold(cell: Cell) -> str:
    text = latex_text(cell.text)
    # At the start of a line \\[...] would be read as a length.
    text = "{" + text + "}" if text.startswith("[") else text
    return rf"\textbf{{{text}}}" if cell.strong else text


def latex_text(text: str) -> str:
    """Text with LaTeX's special characters escaped, on one line."""
    return "".join(_LATEX.get(letter, letter) for letter in re.sub(r"\s+", " ", text))
