"""`fastpfrec report`: the files it leaves and the page, from fixtures and from real runs."""

import re
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from fastpfrec_flwr.cli import app
from fastpfrec_flwr.report import chapters, plots
from fastpfrec_flwr.report.results import Results
from fastpfrec_flwr.report.study import read_study
from tests.report.studies import write_json, write_run, write_study

_VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Refuses tags that do not close in their order; keeps ids, links, tables and what would be loaded from elsewhere."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.loads, self.headings, self.labels = [], [], [], [], [], []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag not in _VOID:
            self.open.append(tag)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if tag == "a" else []
        self.loads += [values[name] for name in ("src", "srcset") if name in values]
        self.loads += [values["href"]] if tag == "link" else []
        self.labels += [values["aria-label"]] if values.get("role") == "img" else []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        if tag == "h2":
            self.headings.append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in _VOID:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.rows and {"td", "th"} & set(self.open):
            self.rows[-1][-1] = (self.rows[-1][-1] + data).strip()
        if "h2" in self.open:
            self.headings[-1] += data


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    study = write_study(folder / "study")
    failed = study.runs["c", "more noise", 2]
    write_json(failed / "run.json", {
        "variant": "more noise", "data_set": "c", "seed": 2, "status": "failed", "error": "killed <b>hard</b> & fast",
    })  # fmt: skip
    result = report(study.path, "--output", folder / "out")
    assert result.exit_code == 0, result.output
    return folder / "out"


def test_the_files(made):
    files = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    tables = [
        "differences",
        "ndcg",
        "hit-ratio-micro",
        "comparisons",
        "ranks",
        "privacy",
        "time",
        "check",
        "unfinished",
    ]
    drawn = [f"{kind}-{data_set}" for kind in ("quality", "learning") for data_set in "abc"] + ["ranks", "noise"]
    assert files >= {f"tables/{name}.{kind}" for name in tables for kind in ("csv", "tex")}
    assert files - {f"figures/ranks.{kind}" for kind in ("svg", "png")} == {
        "report.html", "report.md", "tables/all-metrics.csv",
        *(f"tables/{name}.{kind}" for name in tables for kind in ("csv", "tex")),
        *(f"figures/{name}.{kind}" for name in drawn if name != "ranks" for kind in ("svg", "png")),
    }  # fmt: skip
    for path in (made / "figures").iterdir():
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_page_is_whole_and_alone(made):
    text = (made / "report.html").read_text()
    page = Page(text)
    assert len(page.ids) == len(set(page.ids)), "an id stands twice"
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert page.loads == ["data:,"], "the page loads something"
    outside = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert re.findall(r"(?:https?:)?//[\w.]+\.\w+/", outside) == []
    assert re.findall(r"@import|url\((?!#)", text) == []
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(page.ids)
    assert set(re.findall(r'href="#([^"]*)"', text)) <= set(page.ids)


def test_the_page_says_what_the_runs_say(made):
    page = Page((made / "report.html").read_text())
    assert page.headings[:3] == ["What differs", "Ranking quality", "Beside FastPFRec"]
    assert ["noise-scale", "0.1", "0.0", "0.5"] in page.rows
    failed = next(row for row in page.rows if "failed" in row)
    assert failed == ["c", "more noise", "2", "failed", "round 20", "killed <b>hard</b> & fast"]
    ours = next(row for row in page.rows if row[:2] == ["a", "FastPFRec"])
    assert re.fullmatch(r"0\.\d{4} ± 0\.\d{4}", ours[5])
    assert re.fullmatch(r"\[0\.\d{4}, 0\.\d{4}\]", ours[6])
    assert ours[7] == "0.1000"
    assert len(page.labels) >= 7
    assert all(len(label) > 30 for label in page.labels)


def test_the_same_runs_give_the_same_figures(tmp_path):
    study = write_study(tmp_path / "study", ("a",), (1,)).path
    for name in ("once", "again"):
        assert report(study, "-o", tmp_path / name).exit_code == 0
    for path in sorted((tmp_path / "once").glob("*/*")):
        assert (tmp_path / "again" / path.relative_to(tmp_path / "once")).read_bytes() == path.read_bytes(), path.name


def test_markdown_names_its_figures(made):
    text = (made / "report.md").read_text()
    assert text.startswith("# What noise costs\n")
    for name in re.findall(r"\]\((figures/[^)]*)\)", text):
        assert (made / name).is_file()
    assert "| a        | FastPFRec  |" in text


def test_names_cannot_break_the_page(tmp_path):
    study = write_study(tmp_path / "study", ("a",), (1,))
    bad = '<script>alert("x")</script> $y_1$'
    for (_, name, _), folder in study.runs.items():
        if name == "no noise":
            record = {"variant": bad, "data_set": "a", "seed": 1, "status": "done"}
            write_json(folder / "run.json", record)
    study.change(
        variants=[{"name": "FastPFRec"}, {"name": bad, "about": "</style><b>"}, {"name": "more noise"}], title=bad
    )
    result = report(study.path, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "out" / "report.html").read_text()
    Page(text)
    assert text.count("<script>") == 1
    assert text.count("</style>") >= 1
    assert "</style><b>" not in text


# ---- runs that stand alone, and bad input ----------------------------------------------------------------------------


def test_two_real_runs_show_their_difference_first(finished):
    first, second = finished(), finished(noise="none", noise_scale=0.0)
    result = report(first.folder, second.folder)
    assert result.exit_code == 0, result.output
    page = Page((first.folder / "report" / "report.html").read_text())
    assert page.headings[0] == "What differs"
    assert page.rows[:3] == [
        ["setting", "noise = laplace, noise-scale = 0.1", "noise = none, noise-scale = 0.0"],
        ["noise", "laplace", "none"],
        ["noise-scale", "0.1", "0.0"],
    ]
    shown = next(row for row in page.rows if row[0] == "synthetic" and row[1].startswith("noise = none"))
    assert shown[5] == f"{second.summary['test']['ndcg@20']:.4f}"
    assert "no figures per user" in (first.folder / "report" / "report.md").read_text()


def test_one_run(tmp_path):
    folder = write_run(tmp_path / "run", "a", 1, 0.3)
    result = report(folder)
    assert result.exit_code == 0, result.output
    assert str(folder / "report" / "report.html") in result.output.replace("\n", "")
    assert "at least 3 data sets and 3 variants" in (folder / "report" / "report.md").read_text()


def test_a_run_and_a_study_are_chapters(tmp_path):
    run, study = write_run(tmp_path / "run", "a", 1, 0.3), write_study(tmp_path / "study", ("a",), (1,))
    result = report(study.path, run, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    Page((tmp_path / "out" / "report.html").read_text())
    assert (tmp_path / "out" / "tables" / "runs-ndcg.csv").is_file()
    assert (tmp_path / "out" / "tables" / "noise-ndcg.csv").is_file()


def test_nothing_to_report(tmp_path):
    result = report(tmp_path)
    assert result.exit_code == 2
    assert "is neither a run folder" in result.output


def test_notices_are_said(tmp_path):
    folder = write_run(tmp_path / "run", "a", 1, 0.3)
    (folder / "config.json").write_text("{")
    result = report(folder)
    assert result.exit_code == 0
    assert f"note: {folder / 'config.json'}: cannot be read as JSON" in result.output.replace("\n", "")


def test_an_output_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    result = report(write_run(tmp_path / "run", "a", 1, 0.3), "-o", tmp_path / "file")
    assert result.exit_code == 2
    assert "--output must be a folder that can be written" in result.output


def test_a_run_that_did_not_finish_still_has_its_curve(tmp_path):
    folder = write_run(tmp_path / "run", "a", 1, 0.3)
    (folder / "summary.json").unlink()
    assert report(folder).exit_code == 0
    assert (folder / "report" / "figures" / "learning-a.svg").is_file()
    assert "summary.json is missing" in (folder / "report" / "report.md").read_text().replace("\\", "")


def test_ranks_without_scikit_posthocs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scikit_posthocs", None)
    section = chapters.ranks_section(Results(read_study(write_study(tmp_path / "study", seeds=(1,)).path)))
    assert section.text == ("no diagram: it needs scikit-posthocs; pip install 'fastpfrec-flwr[report]'.",)
    assert section.plots == ()
    assert [table.key for table in section.tables] == ["ranks"]


def test_variants_keep_their_style_and_never_share_all_of_it():
    styles = [tuple(map(str, plots.style_of(place).values())) for place in range(35)]
    assert len(set(styles)) == 35
