"""The log: every line JSON, also those of libraries, and no more of them than a disk can bear."""

import json
import logging

import pytest

from vitreous.serve import logs


def test_floods_are_counted_not_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [1000.0]
    monkeypatch.setattr(logs.time, "time", lambda: now[0])
    monkeypatch.setattr(logs, "_pace", logs.Pace())
    for _ in range(500):
        logs.log("info", "request", status=200)
        logs.log("info", "request", status=404)
        logs.log("error", "request", status=500, traceback="very long")
    now[0] += 1
    logs.log("info", "request", status=404)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    statuses = [line.get("status") for line in lines]
    assert statuses.count(200) == 500, "what was answered is always logged"
    assert statuses.count(404) == logs.MOST_LINES + 1 and statuses.count(500) == logs.MOST_TRACEBACKS
    dropped = [line["lines"] for line in lines if line["event"] == "dropped"]
    assert dropped == [2 * 500 - logs.MOST_LINES - logs.MOST_TRACEBACKS]


def test_libraries_write_json(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logs.JSONLines()
    try:
        raise OSError(24, "Too many open files")
    except OSError as error:
        record = logging.LogRecord("asyncio", logging.ERROR, "", 1, "accept %s", ("failed",), None)
        record.exc_info = (type(error), error, error.__traceback__)
    handler.emit(record)
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"], line["message"]) == ("error", "asyncio", "accept failed")
    assert "Too many open files" in line["traceback"]
