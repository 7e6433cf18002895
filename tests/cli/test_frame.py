"""What every command shares: options, streams, errors, statuses."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from kvsync.cli._render import Facts, Outcome, Table, Terminal, printable, seconds, size
from kvsync.errors import EXIT_STATUS


def _python(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, check=False, env={**os.environ, **environment}
    )


def test_help_loads_nothing_heavy():
    program = "import sys; from kvsync.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = _python("-c", program)
    loaded = set(done.stderr.decode().split())
    assert done.returncode == 0
    assert b"Commands:" in done.stdout
    heavy = {
        "torch",
        "transformers",
        "aiohttp",
        "cryptography",
        "numpy",
        "safetensors",
        "zstandard",
        "rich",
        "asyncio",
    }
    assert not loaded & heavy
    assert "kvsync.cli._app" in loaded


def test_no_words_at_all_show_the_help(kvsync):
    assert kvsync().out == kvsync("--help").out


def test_version_is_a_result(kvsync):
    from importlib.metadata import version

    assert kvsync("--version").out == f"kvsync {version('kvsync')}\n"
    assert kvsync("--version", "--json").json == {"version": version("kvsync")}


@pytest.mark.parametrize("words", [("--json", "keys", "show"), ("keys", "show", "--json")])
def test_global_options_work_before_and_after_the_command(kvsync, home, words):
    shown = kvsync(*words)
    assert shown.status == 0
    assert sorted(shown.json) == ["peer", "signer"]


def test_home_is_taken_from_the_option_before_the_environment(kvsync, home, tmp_path):
    other = tmp_path / "other"
    assert kvsync("init", "--home", other, "--json").json["home"] == str(other)
    assert kvsync("--home", other, "keys", "show").out != kvsync("keys", "show").out


def test_errors_go_to_stderr_in_one_sentence_with_a_hint(kvsync, tmp_path):
    missing = kvsync("--home", tmp_path / "none", "keys", "show")
    assert missing.status == 9
    assert missing.out == ""
    assert missing.err == f"error: {tmp_path}/none is not a kvsync home\nhint: kvsync init\n"


def test_errors_are_one_object_on_stdout_with_json(kvsync, tmp_path):
    missing = kvsync("--home", tmp_path / "none", "keys", "show", "--json")
    assert missing.err == ""
    assert missing.json == {
        "error": {
            "exit_status": 9,
            "code": "home.missing",
            "message": f"{tmp_path}/none is not a kvsync home",
            "hint": "kvsync init",
        }
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nonsense",), "no such command 'nonsense'"),
        (("trust",), "missing command"),
        (("trust", "add", "bob"), "missing argument"),
        (("ls", "--nonsense"), "no such option"),
        (("completion", "tcsh"), "tcsh"),
        (("--home",), "--home"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_a_usage_error(kvsync, words, message):
    told = kvsync(*words)
    assert (told.status, told.out) == (2, "")
    assert message in told.err
    assert told.err.splitlines()[1].startswith("hint: kvsync ")
    as_json = kvsync("--json", *words)
    assert (as_json.status, as_json.err, as_json.code) == (2, "", "usage.arguments")


def test_an_unexpected_error_is_one_line_and_a_traceback_only_on_demand(kvsync, home, monkeypatch):
    def broken(self):
        raise RuntimeError("lamp is broken")

    monkeypatch.setattr("kvsync.keys.TrustList.signers", broken)
    told = kvsync("trust", "ls")
    assert told.status == 1
    assert told.err.splitlines()[0] == "error: unexpected error: RuntimeError: lamp is broken"
    assert "Traceback" not in told.err
    assert "Traceback" in kvsync("trust", "ls", "--verbose").err
    assert kvsync("trust", "ls", "--json").code == "run.unexpected"


def test_an_interrupt_has_its_own_status(kvsync, home, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("kvsync.keys.TrustList.signers", interrupted)
    assert kvsync("trust", "ls").status == 130
    assert kvsync("trust", "ls", "--json").code == "run.interrupted"


def test_quiet_keeps_results_and_drops_notes(kvsync, home):
    assert kvsync("init").err == "the home was there already, nothing changed\n"
    quiet = kvsync("init", "--quiet")
    assert quiet.err == ""
    assert quiet.out.startswith("home ")


def test_a_reader_that_goes_away_is_no_crash(home):
    program = "import sys; from kvsync.cli import main; sys.exit(main(['keys', 'show']))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert done.stderr == b""
    assert done.returncode == 1


def test_control_characters_never_reach_the_terminal(capsys):
    hostile = "a\x1b[2Jb\x07\u202ec\r\nd"
    assert printable(hostile) == "a\ufffd[2Jb\ufffd\ufffdc\ufffd\ufffdd"
    Terminal().show(Outcome({}, [Table(("NAME",), [(hostile,)]), Facts([("name", hostile)]), hostile]))
    Terminal().note(hostile)
    out, err = capsys.readouterr()
    assert not set("\x1b\x07\r\u202e") & set(out + err)


def test_colour_appears_on_a_terminal_only(home):
    assert b"\x1b[" not in _python("-m", "kvsync.cli", "trust", "ls").stdout
    assert b"\x1b[" in _on_a_terminal("trust", "ls")
    assert b"\x1b[" not in _on_a_terminal("trust", "ls", NO_COLOR="1")


def _on_a_terminal(*words: str, **environment: str) -> bytes:
    ours, theirs = pty.openpty()
    settings = {**os.environ, "TERM": "xterm", **environment}
    command = [sys.executable, "-m", "kvsync.cli", *words]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=settings)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux reports the end of a terminal's last writer as EIO
            break
        shown += piece
    os.close(ours)
    assert process.wait() == 0
    return shown


def test_json_is_one_object_whatever_the_text_holds(capsys):
    Terminal(as_json=True).show(Outcome({"text": "ä\n\x1b"}, ["not shown"]))
    assert json.loads(capsys.readouterr().out) == {"text": "ä\n\x1b"}


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (2**60, "1024.0 PiB")]
)
def test_sizes_are_told_in_binary_units(count, text):
    assert size(count) == text


@pytest.mark.parametrize(("value", "text"), [(0.0032, "3.2 ms"), (1.5, "1.5 s"), (125.4, "2 min 5 s")])
def test_durations_are_told_in_the_unit_a_person_would_choose(value, text):
    assert seconds(value) == text


def test_every_exit_status_but_the_usual_ones_belongs_to_an_error_class():
    assert set(EXIT_STATUS.values()) == set(range(2, 11))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_kvsync_back(kvsync, shell):
    script = kvsync("completion", shell)
    assert script.status == 0
    assert "_KVSYNC_COMPLETE" in script.out


def test_bash_completes_commands(tmp_path: Path):
    script = tmp_path / "complete.sh"
    script.write_bytes(_python("-m", "kvsync.cli", "completion", "bash").stdout)
    program = Path(sys.executable).with_name("kvsync")
    words = (
        f"source {script}; COMP_WORDS=(kvsync fin) COMP_CWORD=1; _kvsync_completion {program}; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", words], capture_output=True, check=True)
    assert done.stdout.split() == [b"fingerprint"]
