"""The page of a console in Chromium: it follows, replays, reconnects, searches, shows files, and types."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from execclient.sync import Executor, Process, connect
from tests.conftest import StartServer
from tests.console.conftest import Start, console_process, kill_server, server_process
from tests.console.window import DESK, TELEPHONE, Window
from tests.support.wire import Server

pytestmark = pytest.mark.usefixtures("no_errors")

READABLE = [f"line {number}" for number in range(1, 31)]
"""As many lines as the terminal shows at once."""


def shell(executor: Executor, script: str, **options: object) -> Process:
    return executor.start(["sh", "-c", script], **options)  # type: ignore[arg-type]


# -- following


def test_a_running_process_is_followed_to_its_end(
    window: Window, executor: Executor, start_console: Start
) -> None:
    process = shell(executor, "for i in $(seq 30); do echo line $i; sleep 0.05; done; exit 3")
    window.open(start_console().link)
    window.choose(process.id)

    window.until_lines(READABLE)
    window.until_text(".heading .facts", "exit 3")
    assert "token" not in window.driver.current_url


def test_the_page_reconnects_after_the_server_was_killed_without_a_lost_or_doubled_line(
    window: Window, executor: Executor, server: Server, start_console: Start
) -> None:
    process = shell(executor, "for i in $(seq 30); do echo line $i; sleep 0.15; done")
    window.open(start_console().link)
    window.choose(process.id)
    for seen in ("line 5", "line 15"):
        window.until_line(seen)
        kill_server(server)

    window.until_lines(READABLE)
    window.until_text(".state", "connected")


def test_the_page_says_so_while_the_daemon_does_not_answer(
    window: Window, executor: Executor, server: Server, start_console: Start
) -> None:
    process = shell(executor, "read line; echo $line", stdin=True)
    window.open(start_console().link)
    window.choose(process.id)
    window.until_text(".state", "connected")
    stopped = server_process(server)
    stopped.suspend()
    try:
        window.until_text(".state", "reconnecting")
    finally:
        stopped.resume()
    window.until_text(".state", "connected")
    process.write("again\n")
    window.until_lines(["again"])


def test_the_page_says_that_the_console_has_ended(window: Window, start_console: Start) -> None:
    console = start_console()
    window.open(console.link)
    window.until_text(".state", "connected")
    console.stop()

    window.until_text("[role=alert]", "the console has ended")


def test_a_gap_is_shown_in_the_output_and_in_the_time_line(
    window: Window, start_server: StartServer, tmp_path: Path
) -> None:
    small = start_server(f"unix://{tmp_path}/small", "--retained-output-bytes", "4096")
    with connect(small.url) as executor, console_process(small.url, folder=tmp_path) as console:
        process = shell(executor, "for i in $(seq 200); do echo line $i; echo $(seq 20); sleep 0.005; done")
        process.wait_closed()
        window.open(console.link)
        window.choose(process.id)
        window.until_line("line 200")
        window.until(lambda: window.all(".gap"))
        assert "are no longer kept" in str(window.find(".gap").get_attribute("title"))
        window.find("[aria-label='Search in the output']").send_keys("no longer kept")
        window.until_text(".matches", "1 of 1")


# -- replay


def test_the_time_line_goes_by_the_times_of_the_output(
    window: Window, executor: Executor, start_console: Start
) -> None:
    process = shell(executor, "sleep 0.3; echo one; sleep 1.5; echo two; sleep 1.5; echo three")
    process.wait_closed()
    times = [chunk.at for chunk in process.read().chunks]
    listed = executor.call("process/list", {})["processes"]
    started = next(each["startedAtMs"] for each in listed if each["processId"] == process.id)
    window.open(start_console().link)
    window.choose(process.id)
    window.until_lines(["one", "two", "three"])
    first, second, third = (round(1000 * at) - started for at in times if at is not None)
    assert abs(window.position - third) < 50

    for position, lines in (
        (first + 300, ["one"]),
        (second + 300, ["one", "two"]),
        (second - 50, ["one"]),
        (0, []),
        (third, ["one", "two", "three"]),
    ):
        window.seek(position)
        window.until_lines(lines)
        assert abs(window.position - position) <= 1


def test_a_replay_takes_the_time_of_the_output_and_can_be_paused(
    window: Window, executor: Executor, start_console: Start
) -> None:
    process = shell(executor, "echo one; sleep 3; echo two; sleep 3; echo three")  # 2 s each in a replay
    process.wait_closed()
    window.open(start_console().link)
    window.choose(process.id)
    window.until_lines(["one", "two", "three"])
    begin = time.monotonic()
    window.press("Play")
    window.until_lines(["one"])
    window.until_lines(["one", "two"])
    assert time.monotonic() - begin > 1.9
    window.press("Pause")
    stopped = window.position
    time.sleep(1.3)
    assert (window.lines, window.position) == (["one", "two"], stopped)
    window.press("Play")
    window.until_lines(["one", "two", "three"])
    assert time.monotonic() - begin > 1.9 + 1.3 + 1.8
    window.until_text(".play", "Play")


def test_long_pauses_are_skipped_and_a_replay_can_be_faster(
    window: Window, executor: Executor, start_console: Start
) -> None:
    process = shell(executor, "echo one; sleep 4; echo two")
    process.wait_closed()
    window.open(start_console().link)
    window.choose(process.id)
    window.until_lines(["one", "two"])

    def replay() -> float:
        begin = time.monotonic()
        window.press("Play")
        window.until_text(".play", "Play")
        taken = time.monotonic() - begin
        window.until_lines(["one", "two"])
        return taken

    window.find("[aria-label='Speed of the replay']").send_keys("8")
    assert replay() < 3.5
    window.find(".skip input").click()
    assert replay() > 0.45
    window.find("[aria-label='Speed of the replay']").send_keys("2")
    assert replay() > 1.9


def test_sizes_of_a_terminal_are_applied_in_a_replay(
    window: Window, executor: Executor, start_console: Start
) -> None:
    process = shell(executor, "stty size; read line; stty size", tty=True, size=(10, 40))
    while b"10 40" not in b"".join(each.data for each in process.read().chunks):
        time.sleep(0.05)
    time.sleep(0.5)
    process.resize(20, 60)
    time.sleep(0.5)
    process.write("\n")
    process.wait_closed()
    window.open(start_console().link)
    window.choose(process.id)
    window.until_line("20 60")

    def rows() -> int:
        return len(window.all(".xterm-rows > div"))

    window.until(lambda: rows() == 20)
    window.seek(200)
    window.until(lambda: rows() == 10)
    assert "20 60" not in window.lines
    window.seek(10_000)
    window.until(lambda: rows() == 20)


def test_of_a_long_output_only_the_end_is_drawn_and_the_page_says_so(
    window: Window, executor: Executor, start_console: Start
) -> None:
    process = shell(executor, "seq 1500000")
    process.wait_closed()
    window.open(start_console().link)
    window.choose(process.id)
    window.until_line("1500000", 40)
    window.until_text(".remark", "at most the last 8.0 MiB")
    window.seek(0)
    window.until_lines([])


# -- search, files, approvals


def test_what_is_drawn_can_be_searched(window: Window, executor: Executor, start_console: Start) -> None:
    process = shell(executor, "seq 5000; echo the needle; seq 20")
    process.wait_closed()
    window.open(start_console().link)
    window.choose(process.id)
    window.until_line("the needle")
    window.find("body").send_keys("/")
    found = window.driver.switch_to.active_element
    found.send_keys("1999")
    window.until_text(".matches", "1 of 1")
    assert "1999" in window.lines
    found.clear()
    found.send_keys("nowhere")
    window.until_text(".matches", "not in the last 10,000 lines")
    found.send_keys(Keys.ESCAPE)
    window.until(lambda: window.text(".matches") == "")


def test_files_of_the_folder_of_a_process_are_shown_as_text(
    window: Window, executor: Executor, start_console: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    (folder / "<b>sub").mkdir(parents=True)
    (folder / "<b>sub" / "page.html").write_text("<script>alert(1)</script>\n")
    (folder / "link").symlink_to("/etc/passwd")
    process = shell(executor, "sleep 60", cwd=folder)
    window.open(start_console().link)
    window.choose(process.id)
    window.press("Files")
    window.press("<b>sub/")
    window.press("page.html")
    window.until_text(".files pre", "<script>alert(1)</script>")
    window.press(str(folder))
    window.until_text(".files ul", "<b>sub/")
    assert window.acts() == []


@contextmanager
def host_process(url: str, *questions: tuple[str, str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A host that asks questions, and its link."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.console.host", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as host:
        try:
            assert host.stdin is not None
            assert host.stdout is not None
            host.stdin.write(json.dumps(questions))
            host.stdin.close()
            yield host.stdout.readline().strip(), host
        finally:
            host.send_signal(signal.SIGKILL)


def test_approvals_of_a_host_are_answered_in_the_page(window: Window, server: Server, tmp_path: Path) -> None:
    questions = (("git push", "the <b>branch</b> is ready"), ("rm -r build", "clean"), ("make test", "again"))
    with host_process(server.url, *questions) as (link, host):
        assert host.stdout is not None
        window.open(link)
        window.until_text(".approval .subject", "git push")
        shown = window.text(".approval")
        for text in ("/srv/work", "the <b>branch</b> is ready", "run without a sandbox; use the network"):
            assert text in shown
        for width in (TELEPHONE, DESK):
            window.look(width=width, dark=width == DESK)
            window.driver.save_screenshot(str(tmp_path / f"approval-{width}.png"))
            rendered = window.browser.measure()
            assert rendered["width"] <= width
            assert not rendered["faint"]
        window.press("Approve")
        assert json.loads(host.stdout.readline()) == ["approved", None, []]
        window.until_text(".approval .subject", "rm -r build")
        window.find(".approval input").send_keys("not today")
        window.press("Decline")
        assert json.loads(host.stdout.readline()) == ["denied", "not today", []]
        window.until_text(".approval .subject", "make test")
        window.press("Approve, and always allow: make test")
        assert json.loads(host.stdout.readline()) == ["approved_with_amendment", None, ["make", "test"]]
        window.until(lambda: not window.find(".approvals").is_displayed())


# -- keys, typing


def test_a_process_is_chosen_with_the_keyboard(
    window: Window, executor: Executor, start_console: Start
) -> None:
    first, second = shell(executor, "echo first; sleep 60"), shell(executor, "echo second; sleep 60")
    window.open(start_console().link)
    window.until(lambda: len(window.all(".process")) == 2)
    window.find("[role=listbox]").send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    window.until_lines(["first"])
    window.find("[role=listbox]").send_keys(Keys.ARROW_UP, Keys.ENTER)
    window.until_lines(["second"])
    window.find("body").send_keys("?")
    assert window.find("dialog").is_displayed()
    window.find("dialog").send_keys(Keys.ESCAPE)
    window.until(lambda: not window.find("dialog").is_displayed())
    assert first.id != second.id


def test_a_reload_needs_no_new_link_and_shows_the_same_process(
    window: Window, executor: Executor, start_console: Start
) -> None:
    process = shell(executor, "echo here; sleep 60")
    window.open(start_console().link)
    window.choose(process.id)
    window.until_lines(["here"])
    window.driver.refresh()
    window.until_lines(["here"])


def test_with_write_a_terminal_is_typed_into_resized_and_killed(
    window: Window, executor: Executor, start_console: Start
) -> None:
    process = executor.start(["bash", "--norc", "-i"], tty=True, env={"PS1": "$ ", "LC_ALL": "C.UTF-8"})
    window.open(start_console("--write").link)
    window.choose(process.id)
    window.until_lines(["$"])
    keys = window.find(".xterm-helper-textarea")
    keys.send_keys("echo $((6 * 7)) ü", Keys.ENTER)
    window.until_lines(["$ echo $((6 * 7)) ü", "42 ü", "$"])
    window.press("Fit terminal")
    keys.send_keys("stty size", Keys.ENTER)
    sizes = re.compile(r"\d+ (9\d|\d{3})")
    window.until(lambda: any(sizes.fullmatch(line) for line in window.lines))
    window.press("Kill")
    window.press("Kill it and its descendants?")
    assert process.wait(20) == 128 + signal.SIGKILL
    window.until_text(".heading .facts", "exit 137")


def test_with_write_lines_go_to_the_standard_input(
    window: Window, executor: Executor, start_console: Start
) -> None:
    process = executor.start(["cat"], stdin=True)
    window.open(start_console("--write").link)
    window.choose(process.id)
    window.find(".stdin input").send_keys("a line", Keys.ENTER)
    window.until_lines(["a line"])
    window.press("Close input")
    assert process.wait(20) == 0


def test_without_write_keys_reach_no_process_whatever_the_page_does(
    window: Window, executor: Executor, start_console: Start
) -> None:
    process = executor.start(["cat"], tty=True)
    window.open(start_console().link)
    window.choose(process.id)
    window.until_text(".mode", "read only")
    window.find(".xterm-helper-textarea").send_keys("typed", Keys.ENTER)
    assert not window.find(".controls").is_displayed()
    time.sleep(0.5)
    assert not process.read().chunks


# -- looks


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_the_page_can_be_read(
    window: Window, executor: Executor, start_console: Start, tmp_path: Path, width: int, dark: bool
) -> None:
    script = (
        "for i in 31 32 33 34 35 36 37 90 97; do printf '\\033[%dmcolor %d\\033[0m\\n' $i $i; done; sleep 60"
    )
    process = shell(executor, script, cwd=tmp_path)
    shell(executor, "exit 1")
    window.look(width=width, dark=dark, still=True)
    window.open(start_console("--write").link)
    window.until_text(".state", "connected")
    window.until(lambda: len(window.all(".process")) == 2)
    for name in ("list", "output", "files", "help"):
        if name == "output":
            window.choose(process.id)
            window.until_line("color 97")
        elif name == "files":
            window.press("Files")
            window.until_text(".trail", str(tmp_path))
        elif name == "help":
            window.press("?")
        window.driver.save_screenshot(str(tmp_path / f"{name}-{width}-{'dark' if dark else 'light'}.png"))
        rendered = window.browser.measure()
        assert rendered["width"] <= width, name
        assert not rendered["faint"], name
    assert window.text(".play") == "Play"  # nothing plays by itself
    durations = window.driver.execute_script(
        "return Array.from(document.querySelectorAll('*'), (one) => getComputedStyle(one).transitionDuration)"
    )
    assert set(durations) == {"0s"}
