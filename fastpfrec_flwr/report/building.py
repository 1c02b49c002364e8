"""From paths to the files of a report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastpfrec_flwr import __version__
from fastpfrec_flwr.files import write_atomically
from fastpfrec_flwr.report.chapters import Chapter, chapter_of
from fastpfrec_flwr.report.errors import ReportError
from fastpfrec_flwr.report.page import render_markdown, render_page
from fastpfrec_flwr.report.plots import slug
from fastpfrec_flwr.report.study import read_all
from fastpfrec_flwr.report.writing import to_csv, to_latex


@dataclass(frozen=True)
class Written:
    """What a report came to: its page, how many files, and what could not be used."""

    page: Path
    files: int
    notices: tuple[str, ...]


def build_report(paths: Sequence[Path], output: Path | None = None) -> Written:
    """Read runs and studies and write `report.html`, `report.md`, `tables/*.csv`, `*.tex` and `figures/*.svg`, `*.png`.

    Parameters
    ----------
    paths : run folders and study folders; runs that stand alone are reported together.
    output : a folder; None for `report` inside the first path.

    Raises
    ------
    ReportError if nothing can be reported or the folder cannot be written.
    """
    chapters = [chapter_of(study) for study in read_all(paths)]
    target = (output or paths[0] / "report").expanduser().resolve()
    title = chapters[0].study.title if len(chapters) == 1 else "Report"
    made = f"Made by fastpfrec {__version__} on {time.strftime('%Y-%m-%d %H:%M')}."
    names = _prefixes(chapters)
    files: dict[str, bytes] = {
        "report.html": render_page(chapters, title, made).encode(),
        "report.md": render_markdown(chapters, title, made, names).encode(),
    }
    for chapter, prefix in zip(chapters, names, strict=True):
        for table in chapter.tables():
            files[f"tables/{prefix}{table.key}.csv"] = to_csv(table).encode()
            if not table.csv_only:
                files[f"tables/{prefix}{table.key}.tex"] = to_latex(table).encode()
        for plot in chapter.plots():
            files[f"figures/{prefix}{plot.key}.svg"] = plot.svg.encode()
            files[f"figures/{prefix}{plot.key}.png"] = plot.png
    try:
        for name, data in files.items():
            write_atomically(target / name, data)
    except OSError as error:
        raise ReportError(
            f"--output must be a folder that can be written, got {str(target)!r} ({error.strerror})"
        ) from error
    return Written(target / "report.html", len(files), tuple(each for chapter in chapters for each in chapter.notices))


def _prefixes(chapters: Sequence[Chapter]) -> list[str]:
    """What file names begin with: nothing for one chapter, else the study's name, numbered where two share it."""
    if len(chapters) == 1:
        return [""]
    keys = [slug(chapter.study.key) for chapter in chapters]
    return [f"{key}-{i + 1}-" if keys.count(key) > 1 else f"{key}-" for i, key in enumerate(keys)]
