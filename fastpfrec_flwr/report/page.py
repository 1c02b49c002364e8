"""The report as one page: everything inline, so it opens from a disk, from a mail, without a network."""

from __future__ import annotations

from collections.abc import Sequence

from fastpfrec_flwr.report.chapters import Chapter
from fastpfrec_flwr.report.drawing import Plot


def render_page(chapters: Sequence[Chapter], title: str, made: str) -> str:
    """Fill in the page.

    Parameters
    ----------
    made : when and by which version, for the foot.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def drawn(plot: Plot) -> Markup:
        """Our own SVG, from which matplotlib has escaped every text."""
        return Markup(plot.inline)

    environment = Environment(
        loader=PackageLoader("fastpfrec_flwr.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawn"] = drawn
    return environment.get_template("report.html").render(chapters=chapters, title=title, made=made)


def render_markdown(chapters: Sequence[Chapter], title: str, made: str, names: Sequence[str]) -> str:
    """The same as Markdown, with plots as files beside it.

    Parameters
    ----------
    names : for each chapter what its files' names begin with.
    """
    from fastpfrec_flwr.report.writing import markdown_text, to_markdown

    lines = [f"# {markdown_text(title)}", ""]
    for chapter, prefix in zip(chapters, names, strict=True):
        study = chapter.study
        if len(chapters) > 1:
            lines += [f"## {markdown_text(study.title)}", ""]
        lines += [each for text in (study.question, study.protocol) if text for each in (markdown_text(text), "")]
        if chapter.notices:
            lines += ["**To be known:**", "", *(f"- {markdown_text(each)}" for each in chapter.notices), ""]
        for section in chapter.sections:
            lines += [f"{'###' if len(chapters) > 1 else '##'} {markdown_text(section.title)}", ""]
            lines += [each for text in section.text for each in (markdown_text(text), "")]
            for plot in section.plots:
                alt = markdown_text(plot.alt).replace("[", "(").replace("]", ")")
                lines += [f"![{alt}](figures/{prefix}{plot.key}.png)", "", markdown_text(plot.caption), ""]
            for table in section.tables:
                lines += [to_markdown(table), ""]
    return "\n".join([*lines, made, ""])
