"""Static discovery: what Spark finds in `pyspark_tidelog`, also where tidelog is broken."""

from __future__ import annotations

import pickle
import sys

import pytest
from pyspark.sql.datasource import DataSource

import pyspark_tidelog
from pyspark_tidelog.daemon import print_exception
from pyspark_tidelog.unavailable import Unavailable


def test_the_source_is_found_under_its_name() -> None:
    """Spark registers the class under what it says its name is."""
    source = pyspark_tidelog.DefaultSource

    assert issubclass(source, DataSource)
    assert source.name() == "tidelog"


def test_what_is_not_asked_for_is_not_there() -> None:
    """``hasattr`` must go on to answer no for other names."""
    assert not hasattr(pyspark_tidelog, "OtherSource")


def test_a_broken_import_neither_raises_nor_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception would hide every source on the path; silence would hide the reason."""
    monkeypatch.setitem(sys.modules, "tidelog.spark.datasource", None)  # Makes its import fail.
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")

    source = pyspark_tidelog.DefaultSource

    assert issubclass(source, DataSource)
    assert source.name() == "tidelog"
    assert pickle.loads(pickle.dumps(source)) is source
    with pytest.raises(ImportError, match=r"cannot be imported by .*: ModuleNotFoundError"):
        source({})


def test_a_source_that_works_again_asks_for_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session has registered the stand-in, and keeps it."""
    monkeypatch.setitem(sys.modules, "tidelog.spark.datasource", sys)  # Any module will do.

    with pytest.raises(ImportError, match="restart the session"):
        Unavailable({})


@pytest.mark.parametrize(
    ("error", "printed"),
    [(BrokenPipeError(), False), (ConnectionResetError(), False), (ValueError("x"), True)],
)
def test_a_worker_is_silent_only_about_a_jvm_that_is_gone(
    error: Exception, printed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever else ends a worker must be seen: there is no other trace of it."""
    try:
        raise error
    except type(error):
        print_exception()

    assert (type(error).__name__ in capsys.readouterr().err) == printed
