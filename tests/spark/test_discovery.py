"""Static discovery: Spark's lookup of `pyspark_tidelog`, even if tidelog cannot be imported."""

from __future__ import annotations

import pickle
import sys

import pytest
from pyspark.sql.datasource import DataSource

import pyspark_tidelog
from pyspark_tidelog.daemon import print_exception
from pyspark_tidelog.unavailable import Unavailable


def test_the_source_is_found_under_its_name() -> None:
    """Spark registers the class under the name that it returns."""
    source = pyspark_tidelog.DefaultSource

    assert issubclass(source, DataSource)
    assert source.name() == "tidelog"


def test_what_is_not_asked_for_is_not_there() -> None:
    """``hasattr`` must return False for other names."""
    assert not hasattr(pyspark_tidelog, "OtherSource")


def test_a_broken_import_neither_raises_nor_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken import must not hide other sources on the path, and must keep its reason."""
    monkeypatch.setitem(sys.modules, "tidelog.spark.datasource", None)  # Makes its import fail.
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")

    source = pyspark_tidelog.DefaultSource

    assert issubclass(source, DataSource)
    assert source.name() == "tidelog"
    assert pickle.loads(pickle.dumps(source)) is source
    with pytest.raises(ImportError, match=r"cannot be imported by .*: ModuleNotFoundError"):
        source({})


def test_a_source_that_works_again_asks_for_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session has registered the stand-in and keeps it, so the user must restart it."""
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
    """Any other exception that ends a worker must be printed: it leaves no other trace."""
    try:
        raise error
    except type(error):
        print_exception()

    assert (type(error).__name__ in capsys.readouterr().err) == printed
