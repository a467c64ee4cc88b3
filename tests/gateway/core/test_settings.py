"""Settings: flags over environment over defaults, and complaints that name the flag or the variable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.errors import ConfigurationError
from gateway.settings import HttpAddress, Settings, home_directories


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("CODESPACE_"):
            monkeypatch.delenv(name)


def test_the_defaults_are_the_documented_ones() -> None:
    settings = Settings.load()
    assert (settings.runner, settings.max_processes, settings.log_level) == ("uds", 8, "info")
    assert settings.prepared_sandboxes == 4
    assert settings.allow_uids == {0, os.getuid()}
    assert settings.http is None


def test_a_flag_wins_over_the_environment_and_an_empty_variable_counts_as_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CODESPACE_MAX_PROCESSES", "3")
    monkeypatch.setenv("CODESPACE_RUNNER", "in-process")
    monkeypatch.setenv("CODESPACE_HTTP", "")
    settings = Settings.load(max_processes=5, runner=None)
    assert (settings.max_processes, settings.runner, settings.http) == (5, "in-process", None)


def test_every_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "REGISTRY": "r.json",
        "SOCKET": "/s",
        "HTTP": "[::1]:80",
        "TOKEN_FILE": "/t",
        "DATA_DIR": "/d",
        "ALLOW_UIDS": "0, 1000",
        "ALLOW_HOSTS": "A.example,b",
        "LOG_LEVEL": "DEBUG",
        "PREPARED_SANDBOXES": "0",
    }.items():
        monkeypatch.setenv(f"CODESPACE_{name}", value)
    settings = Settings.load()
    assert settings.require_registry() == Path.cwd() / "r.json"
    assert (settings.socket_path(), settings.token_file, settings.data_path()) == (Path("/s"), Path("/t"), Path("/d"))
    assert settings.http is not None
    assert (settings.http.host, settings.http.port) == ("::1", 80)
    assert settings.allow_uids == {0, 1000}
    assert settings.allow_hosts == ("a.example", "b")
    assert settings.log_level == "debug"
    assert settings.prepared_sandboxes == 0
    held = dict(settings.guarded().private)
    assert held == {"the token": "/t", "the MCP socket": "/s"}
    assert settings.guarded().data_dir == "/d"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("http", "8080"),
        ("http", "::1:80"),
        ("http", "localhost:99999"),
        ("runner", "docker"),
        ("max_processes", "0"),
        ("max_processes", "many"),
        ("prepared_sandboxes", "-1"),
        ("prepared_sandboxes", "65"),
        ("allow_uids", "root"),
        ("allow_uids", "-1"),
        ("allow_hosts", "a b"),
        ("log_level", "loud"),
    ],
)
def test_a_bad_value_names_where_it_came_from(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match="--" + name.replace("_", "-")) as by_flag:
        Settings.load(**{name: value})
    assert by_flag.value.exit_status == 2
    monkeypatch.setenv(f"CODESPACE_{name.upper()}", value)
    with pytest.raises(ConfigurationError, match=f"CODESPACE_{name.upper()}"):
        Settings.load()


def test_paths_without_a_place_are_refused_with_the_flag_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    settings = Settings.load()
    with pytest.raises(ConfigurationError, match="--socket"):
        settings.socket_path()
    with pytest.raises(ConfigurationError, match="--data-dir"):
        settings.data_path()
    with pytest.raises(ConfigurationError, match="--registry"):
        settings.require_registry()
    monkeypatch.setenv("HOME", "/h")
    assert settings.data_path() == Path("/h/.local/state/codespace")
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/r")
    assert settings.data_path() == Path("/x/codespace")
    assert settings.socket_path() == Path("/r/codespace/mcp.sock")


def test_homes_are_those_of_people_and_never_the_root_directory() -> None:
    homes = home_directories()
    assert os.path.realpath(os.path.expanduser("~")) in homes
    assert "/" not in homes


def test_an_address_keeps_the_text_it_was_given() -> None:
    assert HttpAddress("[::1]:8080") == "[::1]:8080"
    assert HttpAddress("localhost:0").port == 0
