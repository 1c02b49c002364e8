"""The page in a real browser, from the disk: nothing on the console, nothing from the network, everything shown."""

import json
import shutil

import pytest

from fastpfrec_flwr.report.building import build_report
from tests.report.studies import write_study

pytest.importorskip("selenium", reason="selenium is not installed: pip install '.[test]'")

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium with its driver: apt-get install chromium chromium-driver"
)

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,1600",
)  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return build_report([write_study(folder / "study", ("a", "b", "c"), (1,)).path], folder / "out").page


@pytest.fixture(scope="module")
def browser(page, tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for each in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.get(page.as_uri())
        yield driver
    finally:
        driver.quit()


def texts(browser, selector):
    return browser.execute_script(
        "return Array.from(document.querySelectorAll(arguments[0]), (each) => each.textContent.trim())", selector
    )


def test_no_word_on_the_console_and_nothing_from_elsewhere(browser, page):
    assert browser.get_log("browser") == []
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [each["params"] for each in sent if each["method"] == "Network.requestWillBeSent"]
    asked = [each["request"]["url"] for each in sent if each["documentURL"] == page.as_uri()]
    assert page.as_uri() in asked
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
    assert browser.title == "What noise costs"


def test_tables_and_plots_are_shown(browser):
    shown = browser.execute_script(
        "return Array.from(document.querySelectorAll('table, figure svg'), (each) => "
        "[each.tagName, each.getBoundingClientRect().width, each.getBoundingClientRect().height])"
    )
    assert [tag for tag, _, _ in shown].count("TABLE") == 8
    assert [tag for tag, _, _ in shown].count("svg") == 8
    assert all(width > 300 and height > 80 for _, width, height in shown)


def test_lines_bars_and_labels_are_drawn(browser):
    """What a clip or a reference to a missing mark would leave out: every mark of a plot has a size on the screen."""
    empty = browser.execute_script(
        "return Array.from(document.querySelectorAll('figure svg use'), (each) => each.getBoundingClientRect())"
        ".filter((box) => box.width === 0 && box.height === 0).length"
    )
    assert empty == 0
    for name in ("FastPFRec", "no noise", "more noise"):
        assert texts(browser, "figure svg text").count(name) >= 6


def test_nothing_is_wider_than_the_window(browser):
    for width in (1280, 420):
        browser.set_window_size(width, 1000)
        inside, all_of_it = browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
        assert all_of_it <= inside
    browser.set_window_size(1280, 1600)


def test_headings_sort(browser):
    where = "#c1-table-time tbody tr td:nth-child(2)"
    column = browser.find_element("css selector", "#c1-table-time thead th:nth-child(2)")
    before = texts(browser, where)
    button = column.find_element("css selector", "button")
    browser.execute_script("arguments[0].click()", button)
    assert column.get_attribute("aria-sort") == "ascending"
    assert texts(browser, where) == sorted(before)
    browser.execute_script("arguments[0].click()", button)
    assert texts(browser, where) == sorted(before, reverse=True)
    assert browser.get_log("browser") == []


def test_numbers_sort_as_numbers_and_gaps_stay_last(browser):
    where = "#c1-table-ndcg tbody tr td:nth-child(8)"
    button = browser.find_element("css selector", "#c1-table-ndcg thead th:nth-child(8) button")
    for expected in (["0.1000", "0.1250"], ["0.1250", "0.1000"]):
        browser.execute_script("arguments[0].click()", button)
        assert texts(browser, where) == expected + ["–"] * 7


def test_dark_and_light_are_readable(browser):
    from selenium.webdriver.support.color import Color

    def brightness(colour):
        found = Color.from_string(colour)
        return (found.red * 299 + found.green * 587 + found.blue * 114) / 1000

    for scheme, page_is_light in (("light", True), ("dark", False)):
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        page, ink, drawn = browser.execute_script(
            "const of = (selector, name) => getComputedStyle(document.querySelector(selector))[name];"
            "return [of('body', 'backgroundColor'), of('td', 'color'), of('figure svg text', 'fill')]"
        )
        assert (brightness(page) > 128) is page_is_light
        assert abs(brightness(page) - brightness(ink)) > 125
        assert abs(brightness(page) - brightness(drawn)) > 125
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_print_shows_whole_tables(browser):
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    hidden = browser.execute_script(
        "return Array.from(document.querySelectorAll('.sheet')).filter((each) => each.scrollHeight > each.clientHeight + 1).length"
    )
    assert hidden == 0
    assert browser.find_element("css selector", "nav").value_of_css_property("display") == "none"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_print_unfolds_a_few_runs_not_dozens(browser):
    """Nine runs here stay folded; once there are six, paper shows what a click would."""
    folded = "return document.querySelectorAll('details:not([open])').length"
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script(folded) == 9
    browser.execute_script("Array.from(document.querySelectorAll('details')).slice(6).forEach((each) => each.remove())")
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script(folded) == 0
